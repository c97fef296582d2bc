package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Two pools of one network that share addresses (R11) may be served by two managers. The younger pool commits that it
// yields to the older one, by UID and generation, and grants nothing from then on. The older pool grants from the
// shared addresses only after it has seen that commit and has then listed what the younger one has: that cannot grow
// any more. The younger pool grants again when it sees a later generation of the older one that leaves its addresses
// alone, and has listed what the older one still has in use of them. Its yield stays on record until the older one has
// none of them, for a manager that takes over and whose watches are behind.

// maxYields bounds status.yields: a pool that overlaps with more pools leaves the others waiting.
const maxYields = 64

// excludeSharedRanges keeps a pool from granting what other pools of its network have or may grant, and records to
// which of them it yields. It reads from the API server only where a younger pool has just yielded, or an older one is
// gone.
func (a *Allocator) excludeSharedRanges(ctx context.Context, p *grants.Pool) {
	for !a.tryExcludeSharedRanges(ctx, p) {
		continue // a block is gone meanwhile, and what its pool still has of it was excluded since
	}
}

// tryExcludeSharedRanges reports whether no range was excluded while it ran; otherwise it has set nothing.
func (a *Allocator) tryExcludeSharedRanges(ctx context.Context, p *grants.Pool) bool {
	m := p.Lock()
	published, began := m.Base.Pool.PoolStatus().Yields, m.Excluded.Count
	m.Unlock()
	specs, neighbours := a.overlaps.snapshotFor(p.Key)
	own := specs[p.Key]
	excluded := map[netipx.IPRange]pools.Key{}
	var yields []v1alpha1.YieldedPool
	waitsFor, outstanding := "", ""
	for _, n := range neighbours {
		if own.allowsOverlap || (n.declaration.allowsOverlap && !n.isOlder) {
			continue
		}
		if n.isOlder {
			if to := newYieldedPool(n.key, n.declaration.uid, n.declaration.generation); len(yields) < maxYields {
				yields = append(yields, withLatestGeneration(to, published))
			}
			continue
		}
		ranges, final := a.rangesToExclude(ctx, a.getOrCreatePool(n.key), newYieldedPool(p.Key, own.uid, own.generation), n.sharedRanges)
		for _, r := range ranges {
			excluded[r] = n.key
		}
		if !final && waitsFor == "" {
			waitsFor = fmt.Sprintf("; this pool grants none of the shared addresses until the younger pool, %s, has yielded them: make sure that a manager serves the younger pool", n.key)
		}
	}
	for _, old := range published {
		if slices.ContainsFunc(yields, func(y v1alpha1.YieldedPool) bool { return y.UID == old.UID }) {
			continue
		}
		left, why := a.rangesUsedByOlderPool(ctx, p, old, own)
		for _, r := range left {
			excluded[r] = yieldedPoolKey(old)
		}
		if outstanding = cmp.Or(outstanding, why); why != "" || len(left) > 0 {
			yields = append(yields, old)
		}
	}
	outstanding = cmp.Or(outstanding, a.excludeRangesUsedOutsideSpec(ctx, p, specs, excluded))
	m = p.Lock()
	defer m.Unlock()
	if m.Excluded.Count != began {
		return false
	}
	m.Overlap.WaitMessage, m.Overlap.Yields, m.Overlap.OutstandingYieldMessage = waitsFor, yields, outstanding
	m.Excluded.SetExcluded(excluded)
	return true
}

func newYieldedPool(key pools.Key, uid types.UID, generation int64) v1alpha1.YieldedPool {
	return v1alpha1.YieldedPool{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, UID: string(uid), Generation: generation}
}

// withLatestGeneration returns a yield with the later generation of those in which it was published before: this manager
// may have seen an older one.
func withLatestGeneration(to v1alpha1.YieldedPool, published []v1alpha1.YieldedPool) v1alpha1.YieldedPool {
	for _, old := range published {
		if old.UID == to.UID {
			to.Generation = max(to.Generation, old.Generation)
		}
	}
	return to
}

func yieldedPoolKey(y v1alpha1.YieldedPool) pools.Key {
	return pools.Key{Kind: y.Kind, Namespace: y.Namespace, Name: y.Name}
}

// rangesToExclude returns which of the ranges that a younger pool shares with an older one the older one must not
// grant: all of them while the younger one has not yielded, then what the younger one has. final reports whether it has
// yielded.
func (a *Allocator) rangesToExclude(ctx context.Context, younger *grants.Pool, to v1alpha1.YieldedPool, shared []netipx.IPRange) (keep []netipx.IPRange, final bool) {
	m := younger.Lock()
	yields := m.Observed.HasYieldedTo(to)
	m.Unlock()
	if !yields {
		return shared, false
	}
	if err := a.surveyPool(ctx, younger, to); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list allocations of the younger overlapping pool; shared addresses stay blocked",
			"pool", yieldedPoolKey(to).String(), "younger", younger.Key.String())
		return shared, false
	}
	m = younger.Lock()
	defer m.Unlock()
	if !m.Observed.HasYieldedTo(to) {
		return shared, false // it has withdrawn its yield meanwhile
	}
	return m.Overlap.UsedRangesIn(shared), true
}

// surveyPool lists what a pool has, once for each reason: that it has yielded to another pool, or that another pool,
// which had yielded to it, has seen a later generation of it.
func (a *Allocator) surveyPool(ctx context.Context, p *grants.Pool, reason v1alpha1.YieldedPool) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	for {
		m := p.Lock()
		surveyed, vanished := m.Observed.ListedFor[reason], m.Observed.VanishedCount
		m.Unlock()
		if surveyed {
			return nil
		}
		found, err := a.poolLister.listPool(ctx, p.Key)
		if err != nil {
			return err
		}
		m = p.Lock()
		m.ObserveListed(found)
		done := m.Observed.RecordListing(reason, vanished)
		m.Unlock()
		if done {
			return nil
		}
	}
}

// rangesUsedByOlderPool returns what an older pool, with which a pool no longer overlaps, still has of its addresses:
// the yield to the older pool stays on record as long. A non-empty why means that the pool grants nothing yet, since
// the older pool may have changed since this manager saw it, and may grant the addresses that both have.
func (a *Allocator) rangesUsedByOlderPool(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	key := yieldedPoolKey(to)
	if own.allowsOverlap || own.layout == nil {
		return nil, ""
	}
	if a.isOutOfView(key) {
		return a.rangesUsedOutOfView(ctx, p, to, own)
	}
	seen := a.overlaps.declarationFor(key)
	if string(seen.uid) != to.UID {
		ctx, cancel := withRequestTimeout(ctx)
		defer cancel()
		if live, err := key.GetPool(ctx, a.Live); apierrors.IsNotFound(err) || (err == nil && string(live.GetUID()) != to.UID) {
			return nil, ""
		}
	}
	if string(seen.uid) != to.UID || seen.generation < to.Generation {
		return nil, fmt.Sprintf("%s had addresses of this pool; they are granted here again once the manager has read the current spec of that pool", key)
	}
	older := a.getOrCreatePool(key)
	if err := a.surveyPool(ctx, older, newYieldedPool(p.Key, own.uid, seen.generation)); err != nil {
		return nil, fmt.Sprintf("%s had addresses of this pool; they are granted here again once the manager can list what that pool has in use: %v", key, err)
	}
	m := older.Lock()
	defer m.Unlock()
	return m.Overlap.UsedRangesIn(own.layout.GrantableRanges()), ""
}

// excludeRangesUsedOutsideSpec adds to excluded what other pools of the network have in use outside of their own
// addresses: they were narrowed, or lost a block by force, and their claims keep what they have. Addresses of the pools
// above a carved pool are not excluded from it: its blocks are theirs. Where the root pool allows overlaps, only the
// pools that are carved from the same root count. A non-empty why means that the pool grants nothing yet.
//
// Everything is decided on the specs in specs, which also decided which pools are neighbours: a pool that is no
// neighbour by these specs must be outside of the same specs.
func (a *Allocator) excludeRangesUsedOutsideSpec(ctx context.Context, p *grants.Pool, specs map[pools.Key]poolDeclaration, excluded map[netipx.IPRange]pools.Key) (why string) {
	own := specs[p.Key]
	ranges, above := a.grantableRanges(p, own)
	if len(ranges) == 0 {
		return ""
	}
	root := a.overlaps.rootPool(p.Key)
	top := specs[root]
	mayOverlap := func(other *grants.Pool) bool {
		if other.Key == p.Key || slices.Contains(above, other.Key) {
			return false
		}
		at := a.overlaps.rootPool(other.Key)
		return at == root || (!top.allowsOverlap && specs[at].mayBeInNetwork(top.network))
	}
	others := a.allPools()
	if unlisted := slices.DeleteFunc(slices.Clone(others), func(o *grants.Pool) bool { return !isUnlisted(o) || !mayOverlap(o) }); len(unlisted) > 0 {
		why = a.listUnlistedPools(ctx, unlisted)
	}
	for _, other := range others {
		used, unseen := rangesUsedOutsideSpec(other, specs[other.Key], ranges)
		if len(used) == 0 || !mayOverlap(other) {
			continue
		}
		if unseen && a.surveyPool(ctx, other, newYieldedPool(p.Key, own.uid, own.generation)) == nil {
			used, _ = rangesUsedOutsideSpec(other, specs[other.Key], ranges)
		}
		for _, r := range used {
			excluded[r] = a.overlaps.childOnPathTo(p.Key, other.Key)
		}
	}
	return why
}

func isUnlisted(p *grants.Pool) bool {
	m := p.Lock()
	defer m.Unlock()
	return m.Observed.NeedsListing()
}

// listUnlistedPools lists what pools have, each once in the life of this manager: from then on HasUnresolvedGrants
// tracks what becomes of a grant in flight. Pools of one namespace share a list. A non-empty why means that a list
// failed.
func (a *Allocator) listUnlistedPools(ctx context.Context, unlisted []*grants.Pool) (why string) {
	reasons := make([]string, len(unlisted))
	var all sync.WaitGroup
	for i, other := range unlisted {
		all.Go(func() {
			if err := a.surveyPool(ctx, other, v1alpha1.YieldedPool{}); err != nil {
				reasons[i] = fmt.Sprintf("%s may have addresses of this pool; addresses are granted here once the manager can list what that pool has in use: %v", other.Key, err)
			}
		})
	}
	all.Wait()
	return cmp.Or(reasons...)
}

// rangesUsedOutsideSpec returns what a pool has of some ranges, if it has anything outside of its declaration. unseen
// reports whether that counts grants whose end no manager has seen; a list shows that.
func rangesUsedOutsideSpec(p *grants.Pool, declared poolDeclaration, ranges []netipx.IPRange) (used []netipx.IPRange, unseen bool) {
	m := p.Lock()
	defer m.Unlock()
	used = m.Overlap.UsedOutsideSpec(ranges, declared.layoutVersion, declared.layout)
	return used, len(used) > 0 && m.Observed.HasUnresolvedGrants()
}

// grantableRanges returns the addresses that a pool may grant: those of its spec, or of its open blocks. above are the
// pools that these blocks come from.
func (a *Allocator) grantableRanges(p *grants.Pool, own poolDeclaration) (ranges []netipx.IPRange, above []pools.Key) {
	if own.layout != nil {
		return own.layout.GrantableRanges(), nil
	}
	above, _ = a.overlaps.ancestors(p.Key)
	m := p.Lock()
	defer m.Unlock()
	if len(above) == 0 || m.Space.Layout == nil {
		return nil, nil
	}
	return m.Space.Layout.GrantableRanges(), above
}

// excludeLostRanges excludes from a pool what another pool, which blocks of it were carved for, has open of blocks that
// are gone. The caller holds the lock under which the end of such a block is recorded.
func excludeLostRanges(m *grants.PoolState, lost []netipx.IPRange, child pools.Key) {
	for _, r := range lost {
		m.Excluded.ExcludeRange(r, child)
	}
}

// enqueueOlderPools enqueues the older pools that a pool yields to when the yield is on record, or when the pool has
// less in use than before.
func (a *Allocator) enqueueOlderPools(p *grants.Pool) {
	m := p.Lock()
	var yields []v1alpha1.YieldedPool
	if m.Base.Pool != nil {
		yields = m.Base.Pool.PoolStatus().Yields
	}
	n := m.Space.Ledger.Counts()
	update := grants.OverlapUpdate{YieldsVersion: fmt.Sprint(yields), UsedAddresses: n.Allocated + n.OutOfRange}
	last := m.Overlap.LastUpdate
	m.Overlap.LastUpdate = update
	m.Unlock()
	if update.YieldsVersion == last.YieldsVersion && update.UsedAddresses >= last.UsedAddresses {
		return
	}
	for _, y := range yields {
		a.enqueuePool(yieldedPoolKey(y))
	}
}
