package ledger

import (
	"net/netip"

	"github.com/tidwall/btree"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// maxRememberedReleases is the maximum number of ranges to remember that are free and were in use: all of a /16, for
// some 10 MB. Each zone has its share. The ones that were released longest ago are forgotten first, which keeps their
// place in the order: ahead of all that are remembered.
const maxRememberedReleases = 1 << 16

// lruFreeSpace is free space in the order of its last use: first what is not known to have been used, then what was
// released longest ago.
type lruFreeSpace struct {
	// neverUsed is what is free and not remembered.
	neverUsed *poolutil.Free
	// released are the remembered ranges, by address; they do not overlap. freeReleases are those of them that are
	// free, in the order of their release.
	released, freeReleases *btree.BTreeG[*releasedRange]
	// maxReleases is the maximum number of free releases to remember.
	maxReleases int
}

// releasedRange is a range that was in use and no longer is. It is not free as long as another fact keeps it.
type releasedRange struct {
	first, last netip.Addr
	sequence    uint64
	isFree      bool
}

func (r *releasedRange) ipRange() netipx.IPRange { return netipx.IPRangeFrom(r.first, r.last) }

func releasedBefore(a, b *releasedRange) bool {
	if a.sequence != b.sequence {
		return a.sequence < b.sequence
	}
	return a.first.Less(b.first)
}

func newLRUFreeSpace(most int) *lruFreeSpace {
	return &lruFreeSpace{
		neverUsed:    poolutil.NewFree(nil),
		released:     btree.NewBTreeGOptions(func(a, b *releasedRange) bool { return a.last.Less(b.last) }, btree.Options{NoLocks: true}),
		freeReleases: btree.NewBTreeGOptions(releasedBefore, btree.Options{NoLocks: true}),
		maxReleases:  most,
	}
}

// markTaken marks a range as not free. If it is in use, its last release is forgotten.
func (fs *lruFreeSpace) markTaken(r netipx.IPRange, uses bool) {
	fs.neverUsed.TakeAny(r)
	for _, e := range fs.splitAtEnds(r) {
		fs.freeReleases.Delete(e)
		e.isFree = false
		if uses {
			fs.released.Delete(e)
		}
	}
}

// recordRelease records that a range is no longer in use, with the sequence number of the release.
func (fs *lruFreeSpace) recordRelease(r netipx.IPRange, order uint64) {
	fs.released.Set(&releasedRange{first: r.From(), last: r.To(), sequence: order})
}

// markFree marks a range as free.
func (fs *lruFreeSpace) markFree(r netipx.IPRange) {
	next := r.From()
	for _, e := range fs.splitAtEnds(r) {
		if next.Less(e.first) {
			fs.neverUsed.Put(netipx.IPRangeFrom(next, e.first.Prev()))
		}
		e.isFree = true
		fs.freeReleases.Set(e)
		next = e.last.Next()
	}
	// Next of the last address of a family is the zero Addr: nothing is left then.
	if next.IsValid() && next.Compare(r.To()) <= 0 {
		fs.neverUsed.Put(netipx.IPRangeFrom(next, r.To()))
	}
	for fs.freeReleases.Len() > fs.maxReleases {
		oldest, _ := fs.freeReleases.PopMin()
		fs.released.Delete(oldest)
		fs.neverUsed.Put(oldest.ipRange())
	}
}

// splitAtEnds splits the releases that cross an end of r, and returns those that lie inside it.
func (fs *lruFreeSpace) splitAtEnds(r netipx.IPRange) (inside []*releasedRange) {
	fs.released.Ascend(&releasedRange{last: r.From()}, func(e *releasedRange) bool {
		if r.To().Less(e.first) {
			return false
		}
		inside = append(inside, e)
		return true
	})
	for i, e := range inside {
		inside[i] = fs.splitRelease(e, r)
	}
	return inside
}

// splitRelease returns the part of a release that lies in r, and stores the rest as separate releases.
func (fs *lruFreeSpace) splitRelease(e *releasedRange, r netipx.IPRange) *releasedRange {
	in := intersectRanges(e.ipRange(), r)
	if in == e.ipRange() {
		return e
	}
	fs.removeRelease(e)
	part := func(first, last netip.Addr) *releasedRange {
		out := &releasedRange{first: first, last: last, sequence: e.sequence, isFree: e.isFree}
		fs.released.Set(out)
		if out.isFree {
			fs.freeReleases.Set(out)
		}
		return out
	}
	if e.first.Less(in.From()) {
		part(e.first, in.From().Prev())
	}
	if in.To().Less(e.last) {
		part(in.To().Next(), e.last)
	}
	return part(in.From(), in.To())
}

func (fs *lruFreeSpace) removeRelease(e *releasedRange) {
	fs.released.Delete(e)
	fs.freeReleases.Delete(e)
}
