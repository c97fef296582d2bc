package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// rangeExcluder excludes from a pool what other pools of its network have or may grant (R11). The excluded ranges are
// part of the state of the pool.
//
// Two pools of one network that share addresses (R11) may be served by two managers. The younger pool commits that it
// yields to the older one, by UID and generation, and grants nothing from then on. The older pool grants from the
// shared addresses only after it has seen that commit and has then listed what the younger one has: that cannot grow
// any more. The younger pool grants again when it sees a later generation of the older one that leaves its addresses
// alone, and has listed what the older one still has in use of them. Its yield stays on record until the older one has
// none of them, for a manager that takes over and whose watches are behind.
type rangeExcluder struct {
	*Options
	scope    *servedScope
	queue    *workQueue
	pools    *poolSet
	lister   *sharedPoolLister
	overlaps *overlapIndex
}

// excludeSharedRanges keeps a pool from granting what other pools of its network have or may grant, and records to
// which of them it yields. It reads from the API server only where a younger pool has just yielded, or an older one is
// gone.
func (re *rangeExcluder) excludeSharedRanges(ctx context.Context, p *grants.Pool) {
	for !re.tryExcludeSharedRanges(ctx, p) {
		continue // a block is gone meanwhile, and what its pool still has of it was excluded since
	}
}

// tryExcludeSharedRanges reports whether no range was excluded while it ran; otherwise it has set nothing.
func (re *rangeExcluder) tryExcludeSharedRanges(ctx context.Context, p *grants.Pool) bool {
	m := p.Lock()
	published, began := m.Base.Pool.PoolStatus().Yields, m.Excluded.Count
	m.Unlock()
	specs, neighbours := re.overlaps.snapshotFor(p.Key)
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
		ranges, final := re.rangesToExclude(ctx, re.pools.getOrCreatePool(n.key), newYieldedPool(p.Key, own.uid, own.generation), n.sharedRanges)
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
		left, why := re.rangesUsedByOlderPool(ctx, p, old, own)
		for _, r := range left {
			excluded[r] = yieldedPoolKey(old)
		}
		if outstanding = cmp.Or(outstanding, why); why != "" || len(left) > 0 {
			yields = append(yields, old)
		}
	}
	outstanding = cmp.Or(outstanding, re.excludeRangesUsedOutsideSpec(ctx, p, specs, excluded))
	m = p.Lock()
	defer m.Unlock()
	if m.Excluded.Count != began {
		return false
	}
	m.Overlap.SetYields(waitsFor, yields, outstanding)
	m.Excluded.SetExcluded(excluded)
	return true
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

// rangesToExclude returns which of the ranges that a younger pool shares with an older one the older one must not
// grant: all of them while the younger one has not yielded, then what the younger one has. final reports whether it has
// yielded.
func (re *rangeExcluder) rangesToExclude(ctx context.Context, younger *grants.Pool, to v1alpha1.YieldedPool, shared []netipx.IPRange) (keep []netipx.IPRange, final bool) {
	m := younger.Lock()
	yields := m.Observed.HasYieldedTo(to)
	m.Unlock()
	if !yields {
		return shared, false
	}
	if err := re.surveyPool(ctx, younger, to); err != nil {
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
func (re *rangeExcluder) surveyPool(ctx context.Context, p *grants.Pool, reason v1alpha1.YieldedPool) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	for {
		m := p.Lock()
		surveyed, vanished := m.Observed.ListedFor[reason], m.Observed.VanishedCount
		m.Unlock()
		if surveyed {
			return nil
		}
		found, err := re.lister.listPool(ctx, p.Key)
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
func (re *rangeExcluder) rangesUsedByOlderPool(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	key := yieldedPoolKey(to)
	if own.allowsOverlap || own.layout == nil {
		return nil, ""
	}
	if re.scope.isOutOfView(key) {
		return re.rangesUsedOutOfView(ctx, p, to, own)
	}
	seen := re.overlaps.declarationFor(key)
	if string(seen.uid) != to.UID {
		ctx, cancel := withRequestTimeout(ctx)
		defer cancel()
		if live, err := key.GetPool(ctx, re.Live); apierrors.IsNotFound(err) || (err == nil && string(live.GetUID()) != to.UID) {
			return nil, ""
		}
	}
	if string(seen.uid) != to.UID || seen.generation < to.Generation {
		return nil, fmt.Sprintf("%s had addresses of this pool; they are granted here again once the manager has read the current spec of that pool", key)
	}
	older := re.pools.getOrCreatePool(key)
	if err := re.surveyPool(ctx, older, newYieldedPool(p.Key, own.uid, seen.generation)); err != nil {
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
func (re *rangeExcluder) excludeRangesUsedOutsideSpec(ctx context.Context, p *grants.Pool, specs map[pools.Key]poolDeclaration, excluded map[netipx.IPRange]pools.Key) (why string) {
	own := specs[p.Key]
	ranges, above := re.grantableRanges(p, own)
	if len(ranges) == 0 {
		return ""
	}
	root := re.overlaps.rootPool(p.Key)
	top := specs[root]
	mayOverlap := func(other *grants.Pool) bool {
		if other.Key == p.Key || slices.Contains(above, other.Key) {
			return false
		}
		at := re.overlaps.rootPool(other.Key)
		return at == root || (!top.allowsOverlap && specs[at].mayBeInNetwork(top.network))
	}
	others := re.pools.allPools()
	if unlisted := slices.DeleteFunc(slices.Clone(others), func(o *grants.Pool) bool { return !isUnlisted(o) || !mayOverlap(o) }); len(unlisted) > 0 {
		why = re.listUnlistedPools(ctx, unlisted)
	}
	for _, other := range others {
		used, unseen := rangesUsedOutsideSpec(other, specs[other.Key], ranges)
		if len(used) == 0 || !mayOverlap(other) {
			continue
		}
		if unseen && re.surveyPool(ctx, other, newYieldedPool(p.Key, own.uid, own.generation)) == nil {
			used, _ = rangesUsedOutsideSpec(other, specs[other.Key], ranges)
		}
		for _, r := range used {
			excluded[r] = re.overlaps.childOnPathTo(p.Key, other.Key)
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
func (re *rangeExcluder) listUnlistedPools(ctx context.Context, unlisted []*grants.Pool) (why string) {
	reasons := make([]string, len(unlisted))
	var all sync.WaitGroup
	for i, other := range unlisted {
		all.Go(func() {
			if err := re.surveyPool(ctx, other, v1alpha1.YieldedPool{}); err != nil {
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
func (re *rangeExcluder) grantableRanges(p *grants.Pool, own poolDeclaration) (ranges []netipx.IPRange, above []pools.Key) {
	if own.layout != nil {
		return own.layout.GrantableRanges(), nil
	}
	above, _ = re.overlaps.ancestors(p.Key)
	m := p.Lock()
	defer m.Unlock()
	if len(above) == 0 || m.Space.Layout == nil {
		return nil, nil
	}
	return m.Space.Layout.GrantableRanges(), above
}

// enqueueOlderPools enqueues the older pools that a pool yields to when the yield is on record, or when the pool has
// less in use than before.
func (re *rangeExcluder) enqueueOlderPools(p *grants.Pool) {
	m := p.Lock()
	var yields []v1alpha1.YieldedPool
	if m.Base.Pool != nil {
		yields = m.Base.Pool.PoolStatus().Yields
	}
	n := m.Space.Ledger.Counts()
	changed := m.Overlap.TakeUpdate(grants.OverlapUpdate{YieldsVersion: fmt.Sprint(yields), UsedAddresses: n.Allocated + n.OutOfRange})
	m.Unlock()
	if !changed {
		return
	}
	for _, y := range yields {
		re.queue.enqueuePool(yieldedPoolKey(y))
	}
}

// outOfViewReadInterval is how long the result of reading a pool that no watch shows is valid. A manager with
// --namespace may serve a pool that yielded to a pool of another namespace while a manager without --namespace ran. No
// watch will ever show that other pool: its addresses are read, as often as the periodic reconcile of pools runs.
const outOfViewReadInterval = time.Minute

// rangesUsedOutOfView is rangesUsedByOlderPool for a pool that no watch shows.
func (re *rangeExcluder) rangesUsedOutOfView(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	m := p.Lock()
	last, known := m.Overlap.UnwatchedUsage[to]
	m.Unlock()
	if known && last.Generation == own.generation && re.now().Sub(last.ReadAt) < outOfViewReadInterval {
		return last.UsedRanges, last.BlockedReason
	}
	last = grants.UnwatchedUsage{ReadAt: re.now(), Generation: own.generation}
	last.UsedRanges, last.BlockedReason = re.readPoolOutOfView(ctx, to, own)
	m = p.Lock()
	defer m.Unlock()
	m.Overlap.RecordUnwatchedUsage(to, last)
	return last.UsedRanges, last.BlockedReason
}

func (re *rangeExcluder) readPoolOutOfView(ctx context.Context, to v1alpha1.YieldedPool, own poolDeclaration) (used []netipx.IPRange, why string) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	key := yieldedPoolKey(to)
	unknown := func(err error) string {
		return fmt.Sprintf("%s had addresses of this pool. This manager watches only namespace %s and cannot read which ones are still in use: %v; "+
			"give the manager the right to read it, or run a manager without --namespace until this pool is Ready", key, re.Namespace, err)
	}
	live, err := key.GetPool(ctx, re.Live)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(live.GetUID()) != to.UID:
		return nil, ""
	case err != nil:
		return nil, unknown(err)
	}
	if spec := live.PoolSpec(); spec.Network == own.network && live.GetGeneration() >= to.Generation {
		if layout, errs := poolspec.Compile(spec); len(errs) == 0 {
			if shared := poolspec.OverlappingRanges(layout, own.layout); len(shared) > 0 {
				return nil, fmt.Sprintf("%s has %s too, and is older; use different addresses, or different values of spec.network if these are different networks", key, poolutil.ShowRange(shared[0]))
			}
		}
	}
	found, err := re.lister.listPool(ctx, key) // it began after the read: it shows what was in flight then and is not now
	if err != nil {
		return nil, unknown(err)
	}
	// For this read alone: nothing would keep the state up to date.
	seen := grants.NewPoolState(key, claimantKinds, grants.NewQuota(func(pools.Key) {}))
	seen.SetBasePool(live)
	seen.ObserveListed(found)
	return seen.Overlap.UsedRangesIn(own.layout.GrantableRanges()), ""
}
