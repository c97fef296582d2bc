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

// HasYieldedTo reports whether the status of the pool records that it yields to another pool.
func (m *PoolState) HasYieldedTo(to v1alpha1.YieldedPool) bool {
	return m.observed.status != nil && slices.Contains(m.observed.status.Yields, to)
}

// UsedRangesIn returns the parts of some ranges that the pool has in use or in flight. The ranges must be in
// ascending order. The cost is the smaller of the number of ranges and the number of taken ranges, times the cost of
// one lookup.
func (m *PoolState) UsedRangesIn(ranges []netipx.IPRange) (out []netipx.IPRange) {
	for rest := ranges; len(rest) > 0; {
		r, next := rest[0], netip.Addr{}
		m.Ledger.VisitTakenRanges(r.From(), func(taken netipx.IPRange, facts []*ledger.Fact) bool {
			if r.To().Less(taken.From()) {
				next = taken.From()
				return false
			}
			if slices.ContainsFunc(facts, m.provesUse) {
				out = append(out, intersectRanges(r, taken))
			}
			return true
		})
		if !next.IsValid() {
			break
		}
		rest = rangesFrom(rest[1:], next)
	}
	for _, flights := range [][]inFlightGrant{m.observed.inFlightGrants(), m.unresolvedGrants} {
		for _, f := range flights {
			for _, r := range rangesFrom(ranges, f.ipRange.From()) {
				if f.ipRange.To().Less(r.From()) {
					break
				}
				out = append(out, intersectRanges(r, f.ipRange))
			}
		}
	}
	return out
}

// rangesFrom returns the ranges that do not end before an address. The ranges must be in ascending order.
func rangesFrom(ranges []netipx.IPRange, a netip.Addr) []netipx.IPRange {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r netipx.IPRange, a netip.Addr) int { return r.To().Compare(a) })
	return ranges[i:]
}

// intersectRanges returns the intersection of two ranges. They must overlap.
func intersectRanges(a, b netipx.IPRange) netipx.IPRange {
	from, to := a.From(), a.To()
	if from.Less(b.From()) {
		from = b.From()
	}
	if b.To().Less(to) {
		to = b.To()
	}
	return netipx.IPRangeFrom(from, to)
}

// provesUse reports whether a fact proves that its addresses are in use. A record alone is a proof only for a pool
// that existed while this manager ran: any user can write a record that names a pool that never existed.
func (m *PoolState) provesUse(h *ledger.Fact) bool {
	if h.Source == ledger.SourceRecord && !m.everObserved {
		c := m.Claimants[h.UID]
		return c != nil && c.StatusHasAddress
	}
	return h.Source.IsInUse()
}

// SpecVersion identifies a version of the spec of a pool, as far as the spec determines the addresses of the pool.
// Generation is 0 for a carved pool: its status, not its spec, determines its addresses.
type SpecVersion struct {
	UID        types.UID
	Generation int64
}

// SpecVersionForPool returns the version of the spec that a pool has.
func SpecVersionForPool(pool v1alpha1.Pool) SpecVersion {
	if pool.PoolSpec().Carve != nil {
		return SpecVersion{UID: pool.GetUID()}
	}
	return SpecVersion{pool.GetUID(), pool.GetGeneration()}
}

// UsedOutsideSpec returns the parts of some ranges that the pool has in use, if it uses anything outside its own
// addresses. Other pools take the addresses of this pool from the newest spec that was observed: of is the version of
// that spec, and layout is its layout. The pool itself may not be reconciled with that spec yet, and then counts as
// out of range what the previous spec did not cover.
func (m *PoolState) UsedOutsideSpec(ranges []netipx.IPRange, of SpecVersion, layout *poolspec.Layout) []netipx.IPRange {
	lost := m.LostBlockRanges()
	switch {
	case len(lost) > 0 || m.hasUseOutsideSpec():
		return slices.Concat(m.UsedRangesIn(ranges), commonRanges(lost, ranges))
	case m.isLayoutOutdated(of):
		return slices.DeleteFunc(m.UsedRangesIn(ranges), func(r netipx.IPRange) bool { return m.isInOpenBlock(r) || (layout != nil && layout.MayGrant(r)) })
	}
	return nil
}

// hasUseOutsideSpec reports whether anything is in use, or in flight, outside the spec that the pool was last
// reconciled with.
func (m *PoolState) hasUseOutsideSpec() bool {
	return m.Ledger.Counts().OutOfRange > 0 || m.observed.hasInFlightOutside(m.Layout) || m.HasUnresolvedGrants()
}

// isLayoutOutdated reports whether the layout was compiled from another spec than the one that other pools go by, or
// from other blocks than the status records.
func (m *PoolState) isLayoutOutdated(of SpecVersion) bool {
	return m.layoutVersion != of || (m.observed.status != nil && !slices.EqualFunc(m.layoutBlocks, m.observed.status.Blocks, equalBlockAddresses))
}

// isInOpenBlock reports whether a range is in one block of a carved pool that is open on record.
func (m *PoolState) isInOpenBlock(r netipx.IPRange) bool {
	return slices.ContainsFunc(m.observed.openBlocks(), func(on openBlock) bool {
		return on.prefix.Contains(r.From()) && on.prefix.Contains(r.To())
	})
}

// commonRanges returns the intersections of ranges with other ranges.
func commonRanges(ranges, with []netipx.IPRange) (out []netipx.IPRange) {
	for _, r := range ranges {
		for _, w := range with {
			if r.Overlaps(w) {
				out = append(out, intersectRanges(r, w))
			}
		}
	}
	return out
}

// SetExcluded replaces the excluded ranges, and the facts about them in the ledger, with the given ones.
func (m *PoolState) SetExcluded(excluded map[netipx.IPRange]pools.Key) {
	for r, key := range m.excluded {
		if excluded[r] != key {
			m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())})
		}
	}
	for r, key := range excluded {
		m.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
	}
	m.excluded = excluded
}

// ExcludeRange adds one range that another pool has to the excluded ranges at once. A comparison with all other pools
// that is in progress starts over, because ExclusionCount changes.
func (m *PoolState) ExcludeRange(r netipx.IPRange, key pools.Key) {
	m.ExclusionCount++
	if m.excluded == nil {
		m.excluded = map[netipx.IPRange]pools.Key{}
	}
	m.excluded[r] = key
	m.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceExcluded, UID: types.UID(r.String())}, Owner: ledger.Owner{Name: key.String()}, Range: r})
}

// LostBlockRanges returns the ranges that are open on record in a carved pool and that no IPAllocation has any more,
// because it was removed by force. The claims of the pool keep their addresses in them.
func (m *PoolState) LostBlockRanges() (out []netipx.IPRange) {
	for _, on := range m.observed.openBlocks() {
		if !m.hasBlockPrefix(on.name, on.prefix) {
			out = append(out, netipx.RangeOfPrefix(on.prefix))
		}
	}
	return out
}

// UnwatchedUsage is the result of the last read of an older pool that no watch of this manager shows: the ranges of
// this pool that the older pool uses. Generation is the generation of this pool at the time of the read.
// BlockedReason is why this pool may not grant anything yet.
type UnwatchedUsage struct {
	ReadAt        time.Time
	Generation    int64
	UsedRanges    []netipx.IPRange
	BlockedReason string
}

// OverlapUpdate is the state of a younger pool that the older pools of its network wait for.
type OverlapUpdate struct {
	YieldsVersion string
	UsedAddresses int64
}
