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

// Two pools of one network that share addresses (R11), each maybe served by another manager: the younger one commits
// that it yields to the older one, by UID and generation, and grants nothing from then on. The older one grants from
// what they share only after it has seen that and has listed, after it, what the younger one has: that cannot grow any
// more. The younger one grants again when it sees a later generation of the older one that leaves its addresses alone,
// and has listed what that has in use all the same; its word stays on record until that is nothing, for a manager that
// takes over and whose watches are behind.

// maxYields bounds status.yields: a pool that overlaps with more leaves the others waiting.
const maxYields = 64

// keepApart keeps a pool from granting what others of its network have or may give, and notes to which of them it
// yields. It reads from the API server only where a younger pool has just yielded, or an older one has gone.
func (a *Allocator) keepApart(ctx context.Context, p *grants.Pool) {
	for !a.tryKeepApart(ctx, p) {
		continue // a block has gone meanwhile, and what its pool has of it still is kept apart since
	}
}

// tryKeepApart reports whether nothing was kept apart while it looked.
func (a *Allocator) tryKeepApart(ctx context.Context, p *grants.Pool) bool {
	m := p.Lock()
	said, began := m.Base.PoolStatus().Yields, m.KeptApart
	m.Unlock()
	specs, neighbours := a.overlaps.look(p.Key)
	mine := specs[p.Key]
	apart := map[netipx.IPRange]pools.Key{}
	var yields []v1alpha1.YieldedPool
	waitsFor, outstanding := "", ""
	for _, n := range neighbours {
		if mine.allows || (n.is.allows && !n.elder) {
			continue
		}
		if n.elder {
			if to := yielded(n.key, n.is.uid, n.is.generation); len(yields) < maxYields {
				yields = append(yields, latest(to, said))
			}
			continue
		}
		ranges, final := a.given(ctx, a.pool(n.key), yielded(p.Key, mine.uid, mine.generation), n.shared)
		for _, r := range ranges {
			apart[r] = n.key
		}
		if !final && waitsFor == "" {
			waitsFor = fmt.Sprintf("; this pool grants none of the shared addresses until the younger pool, %s, has yielded them: make sure that a manager serves the younger pool", n.key)
		}
	}
	for _, was := range said {
		if slices.ContainsFunc(yields, func(y v1alpha1.YieldedPool) bool { return y.UID == was.UID }) {
			continue
		}
		left, why := a.stillHas(ctx, p, was, mine)
		for _, r := range left {
			apart[r] = keyOfYielded(was)
		}
		if outstanding = cmp.Or(outstanding, why); why != "" || len(left) > 0 {
			yields = append(yields, was)
		}
	}
	outstanding = cmp.Or(outstanding, a.usedBeyond(ctx, p, specs, apart))
	m = p.Lock()
	defer m.Unlock()
	if m.KeptApart != began {
		return false
	}
	m.WaitsFor, m.Yields, m.Outstanding = waitsFor, yields, outstanding
	m.SetApart(apart)
	return true
}

func yielded(key pools.Key, uid types.UID, generation int64) v1alpha1.YieldedPool {
	return v1alpha1.YieldedPool{Kind: key.Kind, Namespace: key.Namespace, Name: key.Name, UID: string(uid), Generation: generation}
}

// latest returns a word, in the later generation in which it was given before: what this manager has seen may be older.
func latest(to v1alpha1.YieldedPool, given []v1alpha1.YieldedPool) v1alpha1.YieldedPool {
	for _, was := range given {
		if was.UID == to.UID {
			to.Generation = max(to.Generation, was.Generation)
		}
	}
	return to
}

func keyOfYielded(y v1alpha1.YieldedPool) pools.Key {
	return pools.Key{Kind: y.Kind, Namespace: y.Namespace, Name: y.Name}
}

// given returns which of the ranges that a younger pool shares with an older one the older one must not grant: all of
// them while the younger one has not yielded, then what that has. final: it has yielded.
func (a *Allocator) given(ctx context.Context, younger *grants.Pool, to v1alpha1.YieldedPool, shared []netipx.IPRange) (keep []netipx.IPRange, final bool) {
	m := younger.Lock()
	yields := m.YieldsTo(to)
	m.Unlock()
	if !yields {
		return shared, false
	}
	if err := a.survey(ctx, younger, to); err != nil {
		log.FromContext(ctx).Error(err, "What a younger pool of the network has could not be listed; what both have waits",
			"pool", keyOfYielded(to).String(), "younger", younger.Key.String())
		return shared, false
	}
	m = younger.Lock()
	defer m.Unlock()
	if !m.YieldsTo(to) {
		return shared, false // it has taken its word back meanwhile
	}
	return m.UsedIn(shared), true
}

// survey lists what a pool has, once for each reason: that it has yielded to another one, or that another one, which
// had yielded to it, has seen a later generation of it.
func (a *Allocator) survey(ctx context.Context, p *grants.Pool, reason v1alpha1.YieldedPool) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	for {
		m := p.Lock()
		surveyed, vanished := m.Surveyed[reason], m.Vanished
		m.Unlock()
		if surveyed {
			return nil
		}
		found, err := a.lists.list(ctx, p.Key)
		if err != nil {
			return err
		}
		m = p.Lock()
		m.ObserveAll(found)
		done := m.NoteSurvey(reason, vanished)
		m.Unlock()
		if done {
			return nil
		}
	}
}

// stillHas returns what an older pool, with which a pool does not overlap any more, has of its addresses all the same:
// the word that was given to it stays on record as long. why: the pool grants nothing yet, since what is known of the
// older one may be old, and it may grant what both have.
func (a *Allocator) stillHas(ctx context.Context, p *grants.Pool, to v1alpha1.YieldedPool, mine declared) (has []netipx.IPRange, why string) {
	key := keyOfYielded(to)
	if mine.allows || mine.layout == nil {
		return nil, ""
	}
	if a.isOutOfView(key) {
		return a.hasOutOfView(ctx, p, to, mine)
	}
	seen := a.overlaps.declared(key)
	if string(seen.uid) != to.UID {
		ctx, cancel := timed(ctx)
		defer cancel()
		if live, err := key.Get(ctx, a.Live); apierrors.IsNotFound(err) || (err == nil && string(live.GetUID()) != to.UID) {
			return nil, ""
		}
	}
	if string(seen.uid) != to.UID || seen.generation < to.Generation {
		return nil, fmt.Sprintf("%s had addresses of this pool; they are granted here again once the manager has read the current spec of that pool", key)
	}
	elder := a.pool(key)
	if err := a.survey(ctx, elder, yielded(p.Key, mine.uid, seen.generation)); err != nil {
		return nil, fmt.Sprintf("%s had addresses of this pool; they are granted here again once the manager can list what that pool has in use: %v", key, err)
	}
	m := elder.Lock()
	defer m.Unlock()
	return m.UsedIn(mine.layout.GrantableRanges()), ""
}

// usedBeyond adds what other pools of the network have in use outside of what is theirs: they were narrowed, or lost a
// block by force, and their claims keep what they have. What the pools above a carved one have is not kept from that: its
// blocks are theirs. Where the pool at the top allows overlaps, what is carved from the same one counts alone. why: the
// pool grants nothing yet.
//
// All that is decided here is by the specs that the neighbours are of: what a pool is no neighbour by must be beyond the same
// spec.
func (a *Allocator) usedBeyond(ctx context.Context, p *grants.Pool, specs map[pools.Key]declared, apart map[netipx.IPRange]pools.Key) (why string) {
	mine := specs[p.Key]
	ranges, above := a.ranges(p, mine)
	if len(ranges) == 0 {
		return ""
	}
	root := a.overlaps.root(p.Key)
	top := specs[root]
	besideIt := func(other *grants.Pool) bool {
		if other.Key == p.Key || slices.Contains(above, other.Key) {
			return false
		}
		at := a.overlaps.root(other.Key)
		return at == root || (!top.allows && specs[at].mayBeIn(top.network))
	}
	others := a.all()
	if unlisted := slices.DeleteFunc(slices.Clone(others), func(o *grants.Pool) bool { return !isUnlisted(o) || !besideIt(o) }); len(unlisted) > 0 {
		why = a.listOnce(ctx, unlisted)
	}
	for _, other := range others {
		used, unseen := usedBeyondBy(other, specs[other.Key], ranges)
		if len(used) == 0 || !besideIt(other) {
			continue
		}
		if unseen && a.survey(ctx, other, yielded(p.Key, mine.uid, mine.generation)) == nil {
			used, _ = usedBeyondBy(other, specs[other.Key], ranges)
		}
		for _, r := range used {
			apart[r] = a.overlaps.childToward(p.Key, other.Key)
		}
	}
	return why
}

func isUnlisted(p *grants.Pool) bool {
	m := p.Lock()
	defer m.Unlock()
	return m.IsUnlisted()
}

// listOnce lists what pools have, each once in the life of this manager: from then on what becomes of a grant in flight is
// looked after (HasUnseen). Pools of one namespace share a list. why: it could not.
func (a *Allocator) listOnce(ctx context.Context, unlisted []*grants.Pool) (why string) {
	whys := make([]string, len(unlisted))
	var all sync.WaitGroup
	for i, other := range unlisted {
		all.Go(func() {
			if err := a.survey(ctx, other, v1alpha1.YieldedPool{}); err != nil {
				whys[i] = fmt.Sprintf("%s may have addresses of this pool; addresses are granted here once the manager can list what that pool has in use: %v", other.Key, err)
			}
		})
	}
	all.Wait()
	return cmp.Or(whys...)
}

// usedBeyondBy returns what a pool has of some ranges, if it has anything outside of what it declares. unseen: it counts
// grants whose end no manager has seen; a list shows that.
func usedBeyondBy(p *grants.Pool, its declared, ranges []netipx.IPRange) (used []netipx.IPRange, unseen bool) {
	m := p.Lock()
	defer m.Unlock()
	used = m.UsedBeyond(ranges, its.laidOut, its.layout)
	return used, len(used) > 0 && m.HasUnseen()
}

// ranges are the addresses that a pool may grant: those of its spec, or of the blocks that it has open. above are the
// pools that those come from.
func (a *Allocator) ranges(p *grants.Pool, mine declared) (ranges []netipx.IPRange, above []pools.Key) {
	if mine.layout != nil {
		return mine.layout.GrantableRanges(), nil
	}
	above, _ = a.overlaps.lineage(p.Key)
	m := p.Lock()
	defer m.Unlock()
	if len(above) == 0 || m.Layout == nil {
		return nil, nil
	}
	return m.Layout.GrantableRanges(), above
}

// keepLost has a pool keep apart what another one, which it was carved for, has open of blocks that are gone. It is called
// under the lock under which the end of such a block is noted.
func (a *Allocator) keepLost(m *grants.Memory, lost []netipx.IPRange, child pools.Key) {
	for _, r := range lost {
		m.KeepApart(r, child)
	}
}

// tellElders wakes the older pools that a pool yields to when that is on record, or when it has less than before.
func (a *Allocator) tellElders(p *grants.Pool) {
	m := p.Lock()
	var yields []v1alpha1.YieldedPool
	if m.Base != nil {
		yields = m.Base.PoolStatus().Yields
	}
	n := m.Ledger.Counts()
	is := grants.News{Version: fmt.Sprint(yields), Used: n.Allocated + n.OutOfRange}
	was := m.ToldElders
	m.ToldElders = is
	m.Unlock()
	if is.Version == was.Version && is.Used >= was.Used {
		return
	}
	for _, y := range yields {
		a.wake(keyOfYielded(y))
	}
}
