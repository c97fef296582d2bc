package poolutil

import (
	"fmt"
	"iter"
	"net/netip"

	"go4.org/netipx"
)

// Free is the free space of a pool, as maximal blocks of free addresses: no two are adjacent or overlap. With k blocks
// every operation costs O(log k), whatever their sizes, except where its comment names another cost. Ties go to the
// lowest address, so that the same history gives the same result.
//
// A Free has addresses of one family; those of the other one are never free. It is not safe for concurrent use. Use
// NewFree to create one.
type Free struct {
	// Every block is in both trees, as (last, first) in byPlace and as (span, first) in bySize. byPlace is keyed by the
	// last address because ranges are taken from the start of blocks: the key does not change.
	byPlace, bySize tree

	// total is the number of free addresses; it wraps to zero when all of IPv6 is free.
	total uint128
	v4    bool
}

func placeKey(b block) pair { return pair{b.last, b.first} }

func sizeKey(b block) pair { return pair{b.span(), b.first} }

func blockFromPlaceKey(p pair) block { return block{first: p.b, last: p.a} }

func blockFromSizeKey(p pair) block { return block{first: p.b, last: p.b.add(p.a)} }

// NewFree returns a Free in which the addresses of s are free; a nil s is empty. It costs O(k log k) and panics if s
// has addresses of both families.
func NewFree(s *netipx.IPSet) *Free {
	f := &Free{byPlace: newTree(true), bySize: newTree(false)}
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
	var start uint128
	if !b.first.isZero() {
		start = b.first.prev()
	}
	c := f.byPlace.seek(pair{a: start})
	joined := b
	var before, after block
	var hasBefore, hasAfter bool
	if c.ok() && c.entry().a.less(b.first) {
		before, hasBefore = blockFromPlaceKey(*c.entry()), true
		joined.first = before.first
		c = c.next()
	}
	if c.ok() {
		after = blockFromPlaceKey(*c.entry())
		if !b.last.less(after.first) {
			panic(fmt.Sprintf("poolutil: %s is freed twice: %s is free", r, after.ipRange(f.v4)))
		}
		hasAfter = b.last.next() == after.first
	}

	f.v4 = r.From().Is4()
	f.total = f.total.add(b.size())
	if hasAfter {
		joined.last = after.last
		c.entry().b = joined.first
		f.bySize.remove(sizeKey(after))
	}
	if hasBefore {
		f.byPlace.remove(placeKey(before))
		f.bySize.remove(sizeKey(before))
	}
	if !hasAfter {
		f.byPlace.insert(placeKey(joined))
	}
	f.bySize.insert(sizeKey(joined))
}

// Contains reports whether a is free.
func (f *Free) Contains(a netip.Addr) bool {
	return a.Zone() == "" && f.ContainsRange(netipx.IPRangeFrom(a, a))
}

// ContainsRange reports whether all of r is free; false if r is not valid.
func (f *Free) ContainsRange(r netipx.IPRange) bool {
	if !r.IsValid() || !f.sameFamily(r) {
		return false
	}
	_, ok := f.blockContaining(blockFromRange(r))
	return ok
}

// All yields the free blocks in ascending order. The free space must not be changed during the iteration.
func (f *Free) All() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		for c := f.byPlace.first(); c.ok(); c = c.next() {
			if !yield(blockFromPlaceKey(*c.entry()).ipRange(f.v4)) {
				return
			}
		}
	}
}

func (f *Free) sameFamily(r netipx.IPRange) bool { return r.From().Is4() == f.v4 }

// blockContaining returns the free block that contains b.
func (f *Free) blockContaining(b block) (cursor, bool) {
	c := f.byPlace.seek(pair{a: b.last})
	return c, c.ok() && !b.first.less(c.entry().b)
}
