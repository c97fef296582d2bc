package ledger

import (
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// TakeUnit takes an address (or prefix) that is in no zone: from the smallest free block that has room, lowest
// address first, or what was released longest ago, depending on the order. The caller states it with AddFact. It
// returns false if nothing is free.
func (l *Ledger) TakeUnit() (netipx.IPRange, bool) { return l.TakeUnitInZones([]int{0}) }

// TakeUnitInZones is TakeUnit for certain zones: it uses the first of them that has room or, in the order of
// releases, the one with the oldest release.
func (l *Ledger) TakeUnitInZones(zones []int) (netipx.IPRange, bool) {
	if l.addressBits == 0 {
		return netipx.IPRange{}, false
	}
	for _, z := range zones {
		if r, ok := l.freeByZone[z].takeBestFit(min(l.unitBits, l.addressBits)); ok {
			l.markTaken(r, true)
			return r, true
		}
	}
	if !l.order.LeastRecentlyUsed {
		return netipx.IPRange{}, false
	}
	var oldest *releasedRange
	for _, z := range zones {
		if e, ok := l.freeByZone[z].leastRecentlyUsed.freeReleases.Min(); ok && (oldest == nil || releasedBefore(e, oldest)) {
			oldest = e
		}
	}
	if oldest == nil {
		return netipx.IPRange{}, false
	}
	r := l.widenToUnits(netipx.IPRangeFrom(oldest.first, oldest.first))
	l.markTaken(r, true)
	return r, true
}

// takeBestFit takes a unit by best fit. With leastRecentlyUsed set, it considers only what is not known to have been
// used.
func (s *zoneFreeSpace) takeBestFit(bits int) (netipx.IPRange, bool) {
	from := s.free
	if s.leastRecentlyUsed != nil {
		from = s.leastRecentlyUsed.neverUsed
	}
	p, ok := from.BestFitPrefix(bits)
	return netipx.RangeOfPrefix(p), ok
}

// HasFreeInZones reports whether TakeUnitInZones would find something.
func (l *Ledger) HasFreeInZones(zones []int) bool {
	return slices.ContainsFunc(zones, func(z int) bool { return !l.freeByZone[z].free.Empty() })
}

// IsInZones reports whether all of a range is in the given zones.
func (l *Ledger) IsInZones(r netipx.IPRange, zones []int) bool {
	for s := range l.partsByZone(r) {
		if !slices.ContainsFunc(zones, func(z int) bool { return l.freeByZone[z] == s }) {
			return false
		}
	}
	return true
}

// HasFree reports whether TakeUnit would find something.
func (l *Ledger) HasFree() bool { return l.HasFreeInZones([]int{0}) }

// TakeBlock takes n contiguous addresses that are in no zone: at the start of the smallest free block that is large
// enough, the lowest of those. The caller states it with AddFact. It returns false if no block is large enough, or if
// the pool hands out prefixes.
func (l *Ledger) TakeBlock(n uint64) (netipx.IPRange, bool) {
	if l.unitBits < l.addressBits {
		return netipx.IPRange{}, false
	}
	r, ok := l.freeByZone[0].free.BestFit(n)
	if ok {
		l.markTaken(r, true)
	}
	return r, ok
}

// HasFreeBlock reports whether TakeBlock would find something.
func (l *Ledger) HasFreeBlock(n int64) bool {
	return l.unitBits >= l.addressBits && l.freeByZone[0].free.Largest() >= n
}

// TakePrefix takes a prefix of the given length that is in no zone: at the start of the smallest free block that
// contains one, the lowest of those. The caller states it with AddFact. It returns false if there is none, or if it
// would be smaller than what the pool hands out. It costs O(log n).
func (l *Ledger) TakePrefix(bits int) (netipx.IPRange, bool) {
	r, ok := l.takeFreePrefix(bits)
	if ok {
		l.markTaken(r, true)
	}
	return r, ok
}

// HasFreePrefix reports whether TakePrefix would find something.
func (l *Ledger) HasFreePrefix(bits int) bool {
	r, ok := l.takeFreePrefix(bits)
	if ok {
		l.freeByZone[0].free.Put(r)
	}
	return ok
}

// takeFreePrefix takes a prefix out of the free space of zone 0, and marks nothing else as taken.
func (l *Ledger) takeFreePrefix(bits int) (netipx.IPRange, bool) {
	if l.addressBits == 0 || bits > min(l.unitBits, l.addressBits) {
		return netipx.IPRange{}, false
	}
	p, ok := l.freeByZone[0].free.BestFitPrefix(bits)
	return netipx.RangeOfPrefix(p), ok
}

// UndoTake returns what was taken and never stated: it counts as never used.
func (l *Ledger) UndoTake(r netipx.IPRange) { l.markFree(r) }

// FreeCountInZone returns how many addresses, or prefixes, of a zone are free. It costs O(free ranges).
func (l *Ledger) FreeCountInZone(zone int) int64 {
	var n poolutil.Count
	for r := range l.freeByZone[zone].free.All() {
		n = n.Plus(l.countUnits(r))
	}
	return n.Int64()
}
