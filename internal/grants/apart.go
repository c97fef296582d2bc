package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// YieldsTo reports whether it is on record that a pool yields to another one.
func (m *Memory) YieldsTo(to v1alpha1.YieldedPool) bool {
	return m.last.status != nil && slices.Contains(m.last.status.Yields, to)
}

// UsedIn returns what a pool has in use or in flight of some ranges, which ascend. It costs no more than the fewer of the
// ranges and of what is taken, times what a look costs.
func (m *Memory) UsedIn(ranges []netipx.IPRange) (out []netipx.IPRange) {
	for rest := ranges; len(rest) > 0; {
		r, next := rest[0], netip.Addr{}
		m.Ledger.Taken(r.From(), func(taken netipx.IPRange, facts []*ledger.Fact) bool {
			if r.To().Less(taken.From()) {
				next = taken.From()
				return false
			}
			if slices.ContainsFunc(facts, m.proves) {
				out = append(out, intersection(r, taken))
			}
			return true
		})
		if !next.IsValid() {
			break
		}
		rest = endingFrom(rest[1:], next)
	}
	for _, flights := range [][]flight{m.last.inFlight(), m.unseen} {
		for _, f := range flights {
			for _, r := range endingFrom(ranges, f.r.From()) {
				if f.r.To().Less(r.From()) {
					break
				}
				out = append(out, intersection(r, f.r))
			}
		}
	}
	return out
}

// endingFrom are those of some ranges, which ascend, that do not end before an address.
func endingFrom(ranges []netipx.IPRange, a netip.Addr) []netipx.IPRange {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r netipx.IPRange, a netip.Addr) int { return r.To().Compare(a) })
	return ranges[i:]
}

// intersection is what two ranges that overlap have in common.
func intersection(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
}

// proves reports whether a fact says that addresses are in use. A record alone does so for a pool that was there while this
// manager ran: anybody can write one for a pool that never was.
func (m *Memory) proves(h *ledger.Fact) bool {
	if h.Source == ledger.Record && !m.seen {
		c := m.Claimants[h.UID]
		return c != nil && c.HadAddress
	}
	return h.Source.Uses()
}

// SpecVersion is a version of the spec of a pool, as far as it says what is the pool's. Of a carved pool no generation does:
// what is its own, its status says.
type SpecVersion struct {
	UID        types.UID
	Generation int64
}

// SpecVersionOf returns which version of a spec a pool has.
func SpecVersionOf(pool v1alpha1.Pool) SpecVersion {
	if pool.PoolSpec().Carve != nil {
		return SpecVersion{UID: pool.GetUID()}
	}
	return SpecVersion{pool.GetUID(), pool.GetGeneration()}
}

// UsedBeyond returns what a pool has of some ranges, if it has anything outside of what is its own. What that is, others take
// from the newest spec that was seen, which the layout is of, and the version: the pool itself may not be reconciled with it
// yet, and counts then as out of range what was so by the spec before.
func (m *Memory) UsedBeyond(ranges []netipx.IPRange, of SpecVersion, layout *poolspec.Layout) []netipx.IPRange {
	lost := m.LostBlocks()
	switch {
	case len(lost) > 0 || m.usesBeyond():
		return slices.Concat(m.UsedIn(ranges), common(lost, ranges))
	case m.isBehind(of):
		return slices.DeleteFunc(m.UsedIn(ranges), func(r netipx.IPRange) bool { return m.isOpen(r) || (layout != nil && layout.MayGrant(r)) })
	}
	return nil
}

// usesBeyond reports whether anything is in use, or in flight, outside of the spec that the pool was reconciled with.
func (m *Memory) usesBeyond() bool {
	return m.Ledger.Counts().OutOfRange > 0 || m.last.fliesBeyond(m.Layout) || m.HasUnseen()
}

// isBehind reports whether the layout is of another spec than one that others go by, or of other blocks than are on record.
func (m *Memory) isBehind(of SpecVersion) bool {
	return m.laidOut != of || (m.last.status != nil && !slices.EqualFunc(m.compiled, m.last.status.Blocks, sameAddresses))
}

// isOpen reports whether a carved pool has a range open on record.
func (m *Memory) isOpen(r netipx.IPRange) bool {
	return slices.ContainsFunc(m.last.openBlocks(), func(on openBlock) bool {
		return on.prefix.Contains(r.From()) && on.prefix.Contains(r.To())
	})
}

// common is what ranges have in common with others.
func common(ranges, with []netipx.IPRange) (out []netipx.IPRange) {
	for _, r := range ranges {
		for _, w := range with {
			if r.Overlaps(w) {
				out = append(out, intersection(r, w))
			}
		}
	}
	return out
}

// SetApart states what is kept apart, and nothing else.
func (m *Memory) SetApart(apart map[netipx.IPRange]pools.Key) {
	for r, key := range m.apart {
		if apart[r] != key {
			m.Ledger.Remove(ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())})
		}
	}
	for r, key := range apart {
		m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
	}
	m.apart = apart
}

// KeepApart states at once that another pool has a range. A look at all pools that is under way begins again.
func (m *Memory) KeepApart(r netipx.IPRange, key pools.Key) {
	m.KeptApart++
	if m.apart == nil {
		m.apart = map[netipx.IPRange]pools.Key{}
	}
	m.apart[r] = key
	m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Shared, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
}

// LostBlocks are what a carved pool has open on record, and no IPAllocation has: those were taken away by force. Its claims
// keep what they have of it.
func (m *Memory) LostBlocks() (out []netipx.IPRange) {
	for _, on := range m.last.openBlocks() {
		if !m.has(on.name, on.prefix) {
			out = append(out, netipx.RangeOfPrefix(on.prefix))
		}
	}
	return out
}

// OutOfView is what a pool that no watch shows had of another one, when it was read: for which generation of that one, and
// why that one may grant nothing yet.
type OutOfView struct {
	At         time.Time
	Generation int64
	Has        []netipx.IPRange
	Why        string
}

// News is what the older pools of a network wait to hear of a younger one.
type News struct {
	Version string
	Used    int64
}
