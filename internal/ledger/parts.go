package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// part is a range of which it is counted how much is in use and how much is not free, at each change: a carved pool asks
// that of each of its blocks at each turn.
type part struct {
	rng                      netipx.IPRange
	total, used, unavailable poolutil.Count
}

// SetParts has ranges counted that do not overlap. It costs O(facts).
func (l *Ledger) SetParts(ranges []netipx.IPRange) {
	l.parts = nil
	for _, r := range ranges {
		p := l.counted(r)
		l.parts = append(l.parts, &p)
	}
	slices.SortFunc(l.parts, func(a, b *part) int { return a.rng.From().Compare(b.rng.From()) })
}

// InPart returns how many addresses, or prefixes, of a range are in use and how many are free. O(log n) for a part, else
// it costs as much as has been given of the range.
func (l *Ledger) InPart(r netipx.IPRange) (used, free int64) {
	i, is := slices.BinarySearchFunc(l.parts, r.From(), func(p *part, a netip.Addr) int { return p.rng.From().Compare(a) })
	if is && l.parts[i].rng == r {
		p := l.parts[i]
		return p.used.Int64(), p.total.Minus(p.unavailable).Int64()
	}
	p := l.counted(r)
	return p.used.Int64(), p.total.Minus(p.unavailable).Int64()
}

// Keeps reports whether some of a range rests, or is kept until an operator releases it. It costs as much as has been given
// of the range.
func (l *Ledger) Keeps(r netipx.IPRange) bool {
	return l.FindOverlapping(r, func(f *Fact) bool { return f.Source == Cooling || f.Source == Kept }) != nil
}

// counted counts a range.
func (l *Ledger) counted(r netipx.IPRange) part {
	p := part{rng: r}
	for in := range l.inSpace(r) {
		p.total = p.total.Plus(l.units(in))
	}
	l.taken.overlapping(r, func(s *span) bool {
		common := netipx.IPRangeFrom(later(s.first, r.From()), earlier(s.last, r.To()))
		if s.uses > 0 {
			p.used = p.used.Plus(l.units(common))
		}
		for in := range l.inSpace(common) {
			p.unavailable = p.unavailable.Plus(l.units(in))
		}
		return true
	})
	return p
}

// recountParts notes for the parts what recount notes for all of the space.
func (l *Ledger) recountParts(r netipx.IPRange, used bool, change func(poolutil.Count, poolutil.Count) poolutil.Count) {
	i, _ := slices.BinarySearchFunc(l.parts, r.From(), func(p *part, a netip.Addr) int { return p.rng.To().Compare(a) })
	for ; i < len(l.parts) && l.parts[i].rng.From().Compare(r.To()) <= 0; i++ {
		p := l.parts[i]
		common := netipx.IPRangeFrom(later(p.rng.From(), r.From()), earlier(p.rng.To(), r.To()))
		if used {
			p.used = change(p.used, l.units(common))
			continue
		}
		for in := range l.inSpace(common) {
			p.unavailable = change(p.unavailable, l.units(in))
		}
	}
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func earlier(a, b netip.Addr) netip.Addr {
	if b.Less(a) {
		return b
	}
	return a
}
