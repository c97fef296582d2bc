package poolutil

import (
	"fmt"
	"iter"

	"github.com/tidwall/btree"
	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// Free is the free space of a pool, as maximal blocks of free addresses: no two are adjacent or overlap. With k blocks
// every operation costs O(log k), whatever their sizes, except where its comment names another cost. Ties go to the
// lowest address, so that the same history gives the same result.
//
// A Free has addresses of one family; those of the other one are never free. It is not safe for concurrent use. Use
// NewFree to create one.
type Free struct {
	// Every block is in both trees. byPlace is ordered by the last address, because ranges are taken from the start of
	// blocks: what is left replaces the block. bySize is ordered by the size, then the first address.
	byPlace, bySize *btree.BTreeG[block]

	// total is the number of free addresses; it wraps to zero when all of IPv6 is free.
	total uint128.Uint128
	v4    bool
}

// NewFree returns a Free in which the addresses of s are free; a nil s is empty. It costs O(k log k) and panics if s
// has addresses of both families.
func NewFree(s *netipx.IPSet) *Free {
	f := &Free{
		byPlace: btree.NewBTreeGOptions(func(a, b block) bool { return less(a.last, b.last) }, btree.Options{NoLocks: true}),
		bySize:  btree.NewBTreeGOptions(block.isSmaller, btree.Options{NoLocks: true}),
	}
	if s != nil {
		for _, r := range s.Ranges() {
			f.Put(r)
		}
	}
	return f
}

// Put frees r and merges it with adjacent free blocks. It panics if r is not valid, is of another family than the other
// free addresses, or is partly free already: if an address is freed twice, two claimants hold it, and it would be
// granted to a third.
func (f *Free) Put(r netipx.IPRange) {
	if !r.IsValid() || !f.Empty() && !f.sameFamily(r) {
		panic(fmt.Sprintf("poolutil: %s cannot be freed here", r))
	}
	b := blockFromRange(r)
	// One search finds both neighbours: only the block before r can end at r.first-1.
	var start uint128.Uint128
	if !b.first.IsZero() {
		start = b.first.SubWrap64(1)
	}
	joined := b
	var before, after block
	var hasBefore, hasAfter bool
	f.byPlace.Ascend(block{last: start}, func(at block) bool {
		if less(at.last, b.first) {
			before, hasBefore = at, true
			joined.first = at.first
			return true
		}
		if !less(b.last, at.first) {
			panic(fmt.Sprintf("poolutil: %s is freed twice: %s is free", r, at.ipRange(f.v4)))
		}
		after, hasAfter = at, b.last.AddWrap64(1) == at.first
		return false
	})

	f.v4 = r.From().Is4()
	f.total = f.total.AddWrap(b.size())
	if hasAfter {
		joined.last = after.last
	}
	f.insert(joined)
	if hasAfter {
		f.removeSize(after)
	}
	if hasBefore {
		f.byPlace.Delete(before)
		f.removeSize(before)
	}
}

// insert adds a block, in place of the one that ends where it ends.
func (f *Free) insert(b block) {
	f.byPlace.Set(b)
	f.bySize.Set(b)
}

// All yields the free blocks in ascending order. The free space must not be changed during the iteration.
func (f *Free) All() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		f.byPlace.Scan(func(b block) bool { return yield(b.ipRange(f.v4)) })
	}
}

func (f *Free) sameFamily(r netipx.IPRange) bool { return r.From().Is4() == f.v4 }

// blockContaining returns the free block that contains b.
func (f *Free) blockContaining(b block) (block, bool) {
	at, ok := f.blockEndingFrom(b.last)
	return at, ok && !less(b.first, at.first)
}

// blockEndingFrom returns the first free block that does not end before n.
func (f *Free) blockEndingFrom(n uint128.Uint128) (found block, ok bool) {
	f.byPlace.Ascend(block{last: n}, func(b block) bool {
		found, ok = b, true
		return false
	})
	return found, ok
}

// removeSize removes b from the order by size. It panics where the two orders disagree, because an address would be
// granted twice.
func (f *Free) removeSize(b block) {
	if _, ok := f.bySize.Delete(b); !ok {
		panic("poolutil: the orders of the free space disagree")
	}
}
