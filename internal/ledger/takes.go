package ledger

import (
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// TakeUnit takes an address (or prefix) that is in no zone: from the smallest free block that has room, lowest
// address first, or what was released longest ago, depending on the order. The caller states it with AddFact. It
// returns false if nothing is free.
func (fs *freeSpace) TakeUnit() (netipx.IPRange, bool) { return fs.TakeUnitInZones([]int{0}) }

// TakeUnitInZones is TakeUnit for certain zones: it uses the first of them that has room or, in the order of
// releases, the one with the oldest release.
func (fs *freeSpace) TakeUnitInZones(zones []int) (netipx.IPRange, bool) {
	if fs.addressBits == 0 {
		return netipx.IPRange{}, false
	}
	for _, z := range zones {
		if r, ok := fs.freeByZone[z].takeBestFit(min(fs.unitBits, fs.addressBits)); ok {
			fs.markTaken(r, true)
			return r, true
		}
	}
	if !fs.order.LeastRecentlyUsed {
		return netipx.IPRange{}, false
	}
	var oldest *releasedRange
	for _, z := range zones {
		if e, ok := fs.freeByZone[z].leastRecentlyUsed.freeReleases.Min(); ok && (oldest == nil || releasedBefore(e, oldest)) {
			oldest = e
		}
	}
	if oldest == nil {
		return netipx.IPRange{}, false
	}
	r := fs.widenToUnits(netipx.IPRangeFrom(oldest.first, oldest.first))
	fs.markTaken(r, true)
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
func (fs *freeSpace) HasFreeInZones(zones []int) bool {
	return slices.ContainsFunc(zones, func(z int) bool { return !fs.freeByZone[z].free.Empty() })
}

// IsInZones reports whether all of a range is in the given zones.
func (fs *freeSpace) IsInZones(r netipx.IPRange, zones []int) bool {
	for s := range fs.partsByZone(r) {
		if !slices.ContainsFunc(zones, func(z int) bool { return fs.freeByZone[z] == s }) {
			return false
		}
	}
	return true
}

// TakeBlock takes n contiguous addresses that are in no zone: at the start of the smallest free block that is large
// enough, the lowest of those. The caller states it with AddFact. It returns false if no block is large enough, or if
// the pool hands out prefixes.
func (fs *freeSpace) TakeBlock(n uint64) (netipx.IPRange, bool) {
	if fs.unitBits < fs.addressBits {
		return netipx.IPRange{}, false
	}
	r, ok := fs.freeByZone[0].free.BestFit(n)
	if ok {
		fs.markTaken(r, true)
	}
	return r, ok
}

// HasFreeBlock reports whether TakeBlock would find something.
func (fs *freeSpace) HasFreeBlock(n int64) bool {
	return fs.unitBits >= fs.addressBits && fs.freeByZone[0].free.Largest() >= n
}

// TakePrefix takes a prefix of the given length that is in no zone: at the start of the smallest free block that
// contains one, the lowest of those. The caller states it with AddFact. It returns false if there is none, or if it
// would be smaller than what the pool hands out. It costs O(log n).
func (fs *freeSpace) TakePrefix(bits int) (netipx.IPRange, bool) {
	r, ok := fs.takeFreePrefix(bits)
	if ok {
		fs.markTaken(r, true)
	}
	return r, ok
}

// HasFreePrefix reports whether TakePrefix would find something.
func (fs *freeSpace) HasFreePrefix(bits int) bool {
	r, ok := fs.takeFreePrefix(bits)
	if ok {
		fs.freeByZone[0].free.Put(r)
	}
	return ok
}

// takeFreePrefix takes a prefix out of the free space of zone 0, and marks nothing else as taken.
func (fs *freeSpace) takeFreePrefix(bits int) (netipx.IPRange, bool) {
	if fs.addressBits == 0 || bits > min(fs.unitBits, fs.addressBits) {
		return netipx.IPRange{}, false
	}
	p, ok := fs.freeByZone[0].free.BestFitPrefix(bits)
	return netipx.RangeOfPrefix(p), ok
}

// UndoTake returns what was taken and never stated: it counts as never used.
func (fs *freeSpace) UndoTake(r netipx.IPRange) { fs.markFree(r) }

// FreeCountInZone returns how many addresses, or prefixes, of a zone are free. It costs O(free ranges).
func (fs *freeSpace) FreeCountInZone(zone int) int64 {
	var n poolutil.Count
	for r := range fs.freeByZone[zone].free.All() {
		n = n.Plus(fs.countUnits(r))
	}
	return n.Int64()
}
