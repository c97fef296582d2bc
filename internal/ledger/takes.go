package ledger

import (
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// TakeOne takes an address (or prefix) for somebody, of what is in no zone: the smallest free block that has room, lowest
// address first, or what was released longest ago, as the order says. The caller states it with Add. False: nothing is free.
func (l *Ledger) TakeOne() (netipx.IPRange, bool) { return l.TakeOneOf([]int{0}) }

// TakeOneOf is TakeOne of some zones: of the first of them that has room, or, by release, of the one that has what comes
// first.
func (l *Ledger) TakeOneOf(zones []int) (netipx.IPRange, bool) {
	if l.bits == 0 {
		return netipx.IPRange{}, false
	}
	for _, z := range zones {
		if r, ok := l.stocks[z].unit(min(l.unit, l.bits)); ok {
			l.take(r, true)
			return r, true
		}
	}
	if !l.order.ByRelease {
		return netipx.IPRange{}, false
	}
	var oldest *release
	for _, z := range zones {
		if e, ok := l.stocks[z].recent.ready.Min(); ok && (oldest == nil || before(e, oldest)) {
			oldest = e
		}
	}
	if oldest == nil {
		return netipx.IPRange{}, false
	}
	r := l.whole(netipx.IPRangeFrom(oldest.first, oldest.first))
	l.take(r, true)
	return r, true
}

// unit takes a unit by best fit, of what nobody is known to have used where it is handed out by release.
func (s *stock) unit(bits int) (netipx.IPRange, bool) {
	from := s.free
	if s.recent != nil {
		from = s.recent.fresh
	}
	p, ok := from.BestFitPrefix(bits)
	return netipx.RangeOfPrefix(p), ok
}

// HasFreeIn reports whether TakeOneOf would find something.
func (l *Ledger) HasFreeIn(zones []int) bool {
	return slices.ContainsFunc(zones, func(z int) bool { return !l.stocks[z].free.Empty() })
}

// InZones reports whether all of a range is in some zones.
func (l *Ledger) InZones(r netipx.IPRange, zones []int) bool {
	for s := range l.inStocks(r) {
		if !slices.ContainsFunc(zones, func(z int) bool { return l.stocks[z] == s }) {
			return false
		}
	}
	return true
}

// HasFree reports whether TakeOne would find something.
func (l *Ledger) HasFree() bool { return l.HasFreeIn([]int{0}) }

// TakeBlock takes n contiguous addresses for somebody, of what is in no zone: at the start of the smallest free block that has
// as many, the lowest of those. The caller states it with Add. False: there is no such block, or the pool hands out prefixes.
func (l *Ledger) TakeBlock(n uint64) (netipx.IPRange, bool) {
	if l.unit < l.bits {
		return netipx.IPRange{}, false
	}
	r, ok := l.stocks[0].free.BestFit(n)
	if ok {
		l.take(r, true)
	}
	return r, ok
}

// HasBlock reports whether TakeBlock would find something.
func (l *Ledger) HasBlock(n int64) bool {
	return l.unit >= l.bits && l.stocks[0].free.Largest() >= n
}

// TakePrefix takes a prefix of a length for somebody, of what is in no zone: at the start of the smallest free block that
// holds one, the lowest of those. The caller states it with Add. False: there is none, or it is smaller than what the pool
// hands out. O(log n).
func (l *Ledger) TakePrefix(bits int) (netipx.IPRange, bool) {
	r, ok := l.prefix(bits)
	if ok {
		l.take(r, true)
	}
	return r, ok
}

// HasPrefix reports whether TakePrefix would find something.
func (l *Ledger) HasPrefix(bits int) bool {
	r, ok := l.prefix(bits)
	if ok {
		l.stocks[0].free.Put(r)
	}
	return ok
}

// prefix takes a prefix out of the free space of no zone, and nothing else.
func (l *Ledger) prefix(bits int) (netipx.IPRange, bool) {
	if l.bits == 0 || bits > min(l.unit, l.bits) {
		return netipx.IPRange{}, false
	}
	p, ok := l.stocks[0].free.BestFitPrefix(bits)
	return netipx.RangeOfPrefix(p), ok
}

// Untake gives back what was taken and nobody stated: it counts as never used.
func (l *Ledger) Untake(r netipx.IPRange) { l.put(r) }

// FreeInZone is how many addresses, or prefixes, of a zone are free. It costs O(free ranges).
func (l *Ledger) FreeInZone(zone int) int64 {
	var n poolutil.Count
	for r := range l.stocks[zone].free.All() {
		n = n.Plus(l.units(r))
	}
	return n.Int64()
}
