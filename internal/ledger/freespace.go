package ledger

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/tidwall/btree"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// AllocationOrder is the order in which free space is handed out.
type AllocationOrder struct {
	// LeastRecentlyUsed reports whether what is not known to have been used comes first, and then what was released
	// longest ago. If it is false, the smallest free block is used, lowest address first.
	LeastRecentlyUsed bool
	// Zones are ranges that are handed out only to callers that ask for the zone. They do not overlap. They are
	// numbered from 1; zone 0 is what is in none of them.
	Zones [][]netipx.IPRange
}

// freeSpace is what a ledger can hand out, by zone, and in the order of releases if that is the order of the pool.
type freeSpace struct {
	*addressSpace
	free *poolutil.Free
	// freeByZone is the free space of each zone; element 0 is that of no zone. zoneRanges are the ranges of the
	// zones.
	freeByZone []*zoneFreeSpace
	zoneRanges []zoneRange
	order      AllocationOrder
	// releaseCount is the number of releases so far.
	releaseCount uint64
}

func newFreeSpace(in *addressSpace, set *netipx.IPSet) *freeSpace {
	out := &freeSpace{addressSpace: in, free: poolutil.NewFree(set)}
	out.freeByZone = []*zoneFreeSpace{{free: out.free}}
	return out
}

// zoneFreeSpace is the free space of one zone.
type zoneFreeSpace struct {
	// free is the free space of the ledger if there are no zones, else a separate one (ownsFree).
	free     *poolutil.Free
	ownsFree bool
	// leastRecentlyUsed is nil if the zone is handed out by best fit.
	leastRecentlyUsed *lruFreeSpace
}

// zoneRange is a range with the free space of its zone.
type zoneRange struct {
	ipRange   netipx.IPRange
	freeSpace *zoneFreeSpace
}

// SetOrder sets the order of a ledger in which nothing is in use. It costs O(free ranges + zones).
func (fs *freeSpace) SetOrder(order AllocationOrder) {
	fs.order, fs.zoneRanges, fs.freeByZone = order, nil, []*zoneFreeSpace{{free: fs.free}}
	if len(order.Zones) > 0 {
		fs.freeByZone = []*zoneFreeSpace{{free: poolutil.NewFree(nil), ownsFree: true}}
	}
	for _, ranges := range order.Zones {
		s := &zoneFreeSpace{free: poolutil.NewFree(nil), ownsFree: true}
		fs.freeByZone = append(fs.freeByZone, s)
		for _, r := range ranges {
			fs.zoneRanges = append(fs.zoneRanges, zoneRange{r, s})
		}
	}
	slices.SortFunc(fs.zoneRanges, func(a, b zoneRange) int { return a.ipRange.From().Compare(b.ipRange.From()) })
	for _, s := range fs.freeByZone {
		if order.LeastRecentlyUsed {
			s.leastRecentlyUsed = newLRUFreeSpace(maxRememberedReleases / len(fs.freeByZone))
		}
	}
	for r := range fs.free.All() {
		for s, part := range fs.partsByZone(r) {
			s.markFree(part)
		}
	}
}

// partsByZone yields the parts of a range, each with the free space of its zone.
func (fs *freeSpace) partsByZone(r netipx.IPRange) iter.Seq2[*zoneFreeSpace, netipx.IPRange] {
	return func(yield func(*zoneFreeSpace, netipx.IPRange) bool) {
		next := r.From()
		i, _ := slices.BinarySearchFunc(fs.zoneRanges, next, func(z zoneRange, a netip.Addr) int { return z.ipRange.To().Compare(a) })
		for ; i < len(fs.zoneRanges) && fs.zoneRanges[i].ipRange.From().Compare(r.To()) <= 0; i++ {
			part := intersectRanges(fs.zoneRanges[i].ipRange, r)
			if next.Less(part.From()) && !yield(fs.freeByZone[0], netipx.IPRangeFrom(next, part.From().Prev())) {
				return
			}
			if !yield(fs.zoneRanges[i].freeSpace, part) {
				return
			}
			next = part.To().Next()
		}
		// Next of the last address of a family is the zero Addr: nothing is left then.
		if next.IsValid() && next.Compare(r.To()) <= 0 {
			yield(fs.freeByZone[0], netipx.IPRangeFrom(next, r.To()))
		}
	}
}

// markFree marks a range as free.
func (s *zoneFreeSpace) markFree(r netipx.IPRange) {
	if s.ownsFree {
		s.free.Put(r)
	}
	if s.leastRecentlyUsed != nil {
		s.leastRecentlyUsed.markFree(r)
	}
}

// FreeRanges yields the free ranges, ascending. The ledger must not be changed meanwhile.
func (fs *freeSpace) FreeRanges() iter.Seq[netipx.IPRange] { return fs.free.All() }

// markFree marks a range as free.
func (fs *freeSpace) markFree(r netipx.IPRange) {
	fs.free.Put(r)
	for s, part := range fs.partsByZone(r) {
		s.markFree(part)
	}
}

// markTaken marks a range as taken, even if some of it is taken already.
func (fs *freeSpace) markTaken(r netipx.IPRange, uses bool) {
	fs.free.TakeAny(r)
	for s, part := range fs.partsByZone(r) {
		if s.ownsFree {
			s.free.TakeAny(part)
		}
		if s.leastRecentlyUsed != nil {
			s.leastRecentlyUsed.markTaken(part, uses)
		}
	}
}

// recordRelease records that a range is no longer in use.
func (fs *freeSpace) recordRelease(r netipx.IPRange) {
	if !fs.order.LeastRecentlyUsed {
		return
	}
	for in := range fs.partsInSpace(r) {
		for s, part := range fs.partsByZone(in) {
			s.leastRecentlyUsed.recordRelease(part, fs.releaseCount)
		}
	}
	fs.releaseCount++
}

// RestoreRelease records that a range was released, later than all releases that the ledger knows of. It ignores
// parts that are taken now.
func (fs *freeSpace) RestoreRelease(r netipx.IPRange) {
	if !fs.order.LeastRecentlyUsed || !r.IsValid() {
		return
	}
	for in := range fs.partsInSpace(fs.widenToUnits(r)) {
		for s, part := range fs.partsByZone(in) {
			if s.leastRecentlyUsed.neverUsed.Take(part) {
				s.leastRecentlyUsed.recordRelease(part, fs.releaseCount)
				s.leastRecentlyUsed.markFree(part)
			}
		}
	}
	fs.releaseCount++
}

// ReleasedRanges yields the free ranges that were in use, the latest release first. The ledger must not be changed
// meanwhile.
func (fs *freeSpace) ReleasedRanges() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		if !fs.order.LeastRecentlyUsed {
			return
		}
		// The remaining releases of each zone, from its latest on.
		next := make([]btree.IterG[*releasedRange], len(fs.freeByZone))
		more := make([]bool, len(fs.freeByZone))
		for i, s := range fs.freeByZone {
			next[i] = s.leastRecentlyUsed.freeReleases.Iter()
			more[i] = next[i].Last()
		}
		for {
			latest := -1
			for i := range next {
				if more[i] && (latest < 0 || releasedBefore(next[latest].Item(), next[i].Item())) {
					latest = i
				}
			}
			if latest < 0 || !yield(next[latest].Item().ipRange()) {
				return
			}
			more[latest] = next[latest].Prev()
		}
	}
}

// releasesInOrder returns all remembered releases, the oldest first.
func (fs *freeSpace) releasesInOrder() (out []*releasedRange) {
	for _, s := range fs.freeByZone {
		if s.leastRecentlyUsed != nil {
			out = append(out, s.leastRecentlyUsed.released.Items()...)
		}
	}
	slices.SortFunc(out, func(a, b *releasedRange) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), a.first.Compare(b.first))
	})
	return out
}
