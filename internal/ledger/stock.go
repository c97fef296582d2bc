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
func (l *Ledger) SetOrder(order AllocationOrder) {
	l.order, l.zoneRanges, l.freeByZone = order, nil, []*zoneFreeSpace{{free: l.free}}
	if len(order.Zones) > 0 {
		l.freeByZone = []*zoneFreeSpace{{free: poolutil.NewFree(nil), ownsFree: true}}
	}
	for _, ranges := range order.Zones {
		s := &zoneFreeSpace{free: poolutil.NewFree(nil), ownsFree: true}
		l.freeByZone = append(l.freeByZone, s)
		for _, r := range ranges {
			l.zoneRanges = append(l.zoneRanges, zoneRange{r, s})
		}
	}
	slices.SortFunc(l.zoneRanges, func(a, b zoneRange) int { return a.ipRange.From().Compare(b.ipRange.From()) })
	for _, s := range l.freeByZone {
		if order.LeastRecentlyUsed {
			s.leastRecentlyUsed = newLRUFreeSpace(maxRememberedReleases / len(l.freeByZone))
		}
	}
	for r := range l.free.All() {
		for s, part := range l.partsByZone(r) {
			s.markFree(part)
		}
	}
}

// partsByZone yields the parts of a range, each with the free space of its zone.
func (l *Ledger) partsByZone(r netipx.IPRange) iter.Seq2[*zoneFreeSpace, netipx.IPRange] {
	return func(yield func(*zoneFreeSpace, netipx.IPRange) bool) {
		next := r.From()
		i, _ := slices.BinarySearchFunc(l.zoneRanges, next, func(z zoneRange, a netip.Addr) int { return z.ipRange.To().Compare(a) })
		for ; i < len(l.zoneRanges) && l.zoneRanges[i].ipRange.From().Compare(r.To()) <= 0; i++ {
			part := intersectRanges(l.zoneRanges[i].ipRange, r)
			if next.Less(part.From()) && !yield(l.freeByZone[0], netipx.IPRangeFrom(next, part.From().Prev())) {
				return
			}
			if !yield(l.zoneRanges[i].freeSpace, part) {
				return
			}
			next = part.To().Next()
		}
		// Next of the last address of a family is the zero Addr: nothing is left then.
		if next.IsValid() && next.Compare(r.To()) <= 0 {
			yield(l.freeByZone[0], netipx.IPRangeFrom(next, r.To()))
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

// markFree marks a range as free.
func (l *Ledger) markFree(r netipx.IPRange) {
	l.free.Put(r)
	for s, part := range l.partsByZone(r) {
		s.markFree(part)
	}
}

// markTaken marks a range as taken, even if some of it is taken already.
func (l *Ledger) markTaken(r netipx.IPRange, uses bool) {
	l.free.TakeAny(r)
	for s, part := range l.partsByZone(r) {
		if s.ownsFree {
			s.free.TakeAny(part)
		}
		if s.leastRecentlyUsed != nil {
			s.leastRecentlyUsed.markTaken(part, uses)
		}
	}
}

// recordRelease records that a range is no longer in use.
func (l *Ledger) recordRelease(r netipx.IPRange) {
	if !l.order.LeastRecentlyUsed {
		return
	}
	for in := range l.partsInSpace(r) {
		for s, part := range l.partsByZone(in) {
			s.leastRecentlyUsed.recordRelease(part, l.releaseCount)
		}
	}
	l.releaseCount++
}

// RestoreRelease records that a range was released, later than all releases that the ledger knows of. It ignores
// parts that are taken now.
func (l *Ledger) RestoreRelease(r netipx.IPRange) {
	if !l.order.LeastRecentlyUsed || !r.IsValid() {
		return
	}
	for in := range l.partsInSpace(l.widenToUnits(r)) {
		for s, part := range l.partsByZone(in) {
			if s.leastRecentlyUsed.neverUsed.Take(part) {
				s.leastRecentlyUsed.recordRelease(part, l.releaseCount)
				s.leastRecentlyUsed.markFree(part)
			}
		}
	}
	l.releaseCount++
}

// ReleasedRanges yields the free ranges that were in use, the latest release first. The ledger must not be changed
// meanwhile.
func (l *Ledger) ReleasedRanges() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		if !l.order.LeastRecentlyUsed {
			return
		}
		// The remaining releases of each zone, from its latest on.
		next := make([]btree.IterG[*releasedRange], len(l.freeByZone))
		more := make([]bool, len(l.freeByZone))
		for i, s := range l.freeByZone {
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
func (l *Ledger) releasesInOrder() (out []*releasedRange) {
	for _, s := range l.freeByZone {
		if s.leastRecentlyUsed != nil {
			out = append(out, s.leastRecentlyUsed.released.Items()...)
		}
	}
	slices.SortFunc(out, func(a, b *releasedRange) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), a.first.Compare(b.first))
	})
	return out
}
