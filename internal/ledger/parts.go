package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// countedRange is a range whose counts are updated at each change, because a carved pool reads them for each of its
// blocks in each reconcile.
type countedRange struct {
	ipRange                  netipx.IPRange
	total, used, unavailable poolutil.Count
}

// SetCountedRanges sets the ranges to count. They must not overlap. It costs O(facts).
func (l *Ledger) SetCountedRanges(ranges []netipx.IPRange) {
	l.countedRanges = nil
	for _, r := range ranges {
		p := l.countRange(r)
		l.countedRanges = append(l.countedRanges, &p)
	}
	slices.SortFunc(l.countedRanges, func(a, b *countedRange) int { return a.ipRange.From().Compare(b.ipRange.From()) })
}

// UsageInRange returns how many addresses, or prefixes, of a range are in use and how many are free. It costs
// O(log n) for a counted range; for others it costs as much as is taken of the range.
func (l *Ledger) UsageInRange(r netipx.IPRange) (used, free int64) {
	i, ok := slices.BinarySearchFunc(l.countedRanges, r.From(), func(p *countedRange, a netip.Addr) int { return p.ipRange.From().Compare(a) })
	if ok && l.countedRanges[i].ipRange == r {
		p := l.countedRanges[i]
		return p.used.Int64(), p.total.Minus(p.unavailable).Int64()
	}
	p := l.countRange(r)
	return p.used.Int64(), p.total.Minus(p.unavailable).Int64()
}

// HasCoolingOrHeld reports whether some of a range is cooling, or held until an operator releases it. It costs as
// much as is taken of the range.
func (l *Ledger) HasCoolingOrHeld(r netipx.IPRange) bool {
	return l.FindOverlappingFact(r, func(f *Fact) bool { return f.Source == SourceCooling || f.Source == SourceHeld }) != nil
}

// countRange counts a range.
func (l *Ledger) countRange(r netipx.IPRange) countedRange {
	p := countedRange{ipRange: r}
	for in := range l.partsInSpace(r) {
		p.total = p.total.Plus(l.countUnits(in))
	}
	l.takenSpans.visitOverlapping(r, func(s *span) bool {
		common := netipx.IPRangeFrom(maxAddr(s.first, r.From()), minAddr(s.last, r.To()))
		if s.useCount > 0 {
			p.used = p.used.Plus(l.countUnits(common))
		}
		for in := range l.partsInSpace(common) {
			p.unavailable = p.unavailable.Plus(l.countUnits(in))
		}
		return true
	})
	return p
}

// updateRangeCounts updates the counted ranges, as updateCounts does for the whole space.
func (l *Ledger) updateRangeCounts(r netipx.IPRange, used bool, change func(poolutil.Count, poolutil.Count) poolutil.Count) {
	i, _ := slices.BinarySearchFunc(l.countedRanges, r.From(), func(p *countedRange, a netip.Addr) int { return p.ipRange.To().Compare(a) })
	for ; i < len(l.countedRanges) && l.countedRanges[i].ipRange.From().Compare(r.To()) <= 0; i++ {
		p := l.countedRanges[i]
		common := netipx.IPRangeFrom(maxAddr(p.ipRange.From(), r.From()), minAddr(p.ipRange.To(), r.To()))
		if used {
			p.used = change(p.used, l.countUnits(common))
			continue
		}
		for in := range l.partsInSpace(common) {
			p.unavailable = change(p.unavailable, l.countUnits(in))
		}
	}
}

func maxAddr(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func minAddr(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}
