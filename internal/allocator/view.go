package allocator

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Views returns all pools that exist, by namespace, name and kind.
func (a *Allocator) Views() []grants.View {
	all := a.all()
	out := make([]grants.View, 0, len(all))
	for _, p := range all {
		m := p.Lock()
		if v, exists := m.View(); exists {
			out = append(out, v)
		}
		m.Unlock()
	}
	slices.SortFunc(out, func(v, w grants.View) int { return compareKeys(v.Key, w.Key) })
	return out
}

func compareKeys(a, b pools.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
}

// LeaseUsage returns the pools that give leases, by namespace, name and kind, with what a namespace has of each.
func (a *Allocator) LeaseUsage(namespace string) []grants.LeaseUsage {
	var out []grants.LeaseUsage
	for _, p := range a.all() {
		m := p.Lock()
		if u, gives := m.LeaseUsage(namespace); gives {
			out = append(out, u)
		}
		m.Unlock()
	}
	slices.SortFunc(out, func(u, v grants.LeaseUsage) int { return compareKeys(u.Key, v.Key) })
	return out
}

// Walk calls visit for every range of a pool that is not free, ascending, from an address on, until visit
// returns false. The lock of the pool is held for some ranges at a time, never while visit runs: what is
// seen is each range at a moment of its own.
func (a *Allocator) Walk(key pools.Key, from netip.Addr, visit func(grants.Entry) bool) {
	p := a.find(key)
	if p == nil {
		return
	}
	buffer := make([]grants.Entry, 0, grants.ViewChunk)
	for from.IsValid() {
		m := p.Lock()
		buffer = m.EntriesFrom(from, buffer[:0])
		m.Unlock()
		for _, h := range buffer {
			if !visit(h) {
				return
			}
		}
		if len(buffer) < grants.ViewChunk {
			return
		}
		from = buffer[len(buffer)-1].Range.To().Next() // invalid after the last address of a family
	}
}

// find returns a pool that is remembered; nil: there is none.
func (a *Allocator) find(key pools.Key) *grants.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pools[key]
}

// Waiting calls visit for every claim and allocation of a pool that waits, oldest first, until visit returns
// false. The lock of the pool is held as by Walk.
func (a *Allocator) Waiting(key pools.Key, visit func(grants.Waiter) bool) {
	p := a.find(key)
	if p == nil {
		return
	}
	var last *grants.Claimant
	buffer := make([]grants.Waiter, 0, grants.ViewChunk)
	for {
		m := p.Lock()
		buffer, last = m.WaitingAfter(last, buffer[:0])
		m.Unlock()
		for _, w := range buffer {
			if !visit(w) {
				return
			}
		}
		if len(buffer) < grants.ViewChunk {
			return
		}
	}
}
