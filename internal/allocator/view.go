package allocator

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// PoolViews returns all pools that exist, by namespace, name and kind.
func (a *Allocator) PoolViews() []grants.PoolView {
	all := a.pools.allPools()
	out := make([]grants.PoolView, 0, len(all))
	for _, p := range all {
		m := p.Lock()
		if v, exists := m.BuildView(); exists {
			out = append(out, v)
		}
		m.Unlock()
	}
	slices.SortFunc(out, func(v, w grants.PoolView) int { return comparePoolKeys(v.Key, w.Key) })
	return out
}

func comparePoolKeys(a, b pools.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
}

// LeaseUsage returns the pools that give leases, by namespace, name and kind, with what a namespace has of each.
func (a *Allocator) LeaseUsage(namespace string) []grants.LeaseUsage {
	var out []grants.LeaseUsage
	for _, p := range a.pools.allPools() {
		m := p.Lock()
		if u, ok := m.LeaseUsageFor(namespace); ok {
			out = append(out, u)
		}
		m.Unlock()
	}
	slices.SortFunc(out, func(u, v grants.LeaseUsage) int { return comparePoolKeys(u.Key, v.Key) })
	return out
}

// WalkEntries calls visit for every range of a pool that is not free, ascending, starting at an address, until visit
// returns false. It holds the lock of the pool for some ranges at a time, never while visit runs: each range is shown
// as of a moment of its own.
func (a *Allocator) WalkEntries(key pools.Key, from netip.Addr, visit func(grants.TakenRange) bool) {
	p := a.pools.findPool(key)
	if p == nil {
		return
	}
	buffer := make([]grants.TakenRange, 0, grants.ViewChunkSize)
	for from.IsValid() {
		m := p.Lock()
		buffer = m.AppendTakenRanges(from, buffer[:0])
		m.Unlock()
		for _, h := range buffer {
			if !visit(h) {
				return
			}
		}
		if len(buffer) < grants.ViewChunkSize {
			return
		}
		from = buffer[len(buffer)-1].Range.To().Next() // invalid after the last address of a family
	}
}

// WalkWaiters calls visit for every waiting claim and allocation of a pool, oldest first, until visit returns false. It
// holds the lock of the pool as WalkEntries does.
func (a *Allocator) WalkWaiters(key pools.Key, visit func(grants.WaitingClaimant) bool) {
	p := a.pools.findPool(key)
	if p == nil {
		return
	}
	var last *grants.Claimant
	buffer := make([]grants.WaitingClaimant, 0, grants.ViewChunkSize)
	for {
		m := p.Lock()
		buffer, last = m.AppendWaiting(last, buffer[:0])
		m.Unlock()
		for _, w := range buffer {
			if !visit(w) {
				return
			}
		}
		if len(buffer) < grants.ViewChunkSize {
			return
		}
	}
}
