package poolutil

import (
	"net/netip"

	"go4.org/netipx"
)

// block is a range of address numbers, inclusive at both ends; it always has at least one.
type block struct{ first, last uint128 }

func blockFromRange(r netipx.IPRange) block {
	return block{addressNumber(r.From()), addressNumber(r.To())}
}

func (b block) ipRange(v4 bool) netipx.IPRange {
	return netipx.IPRangeFrom(b.first.addr(v4), b.last.addr(v4))
}

// span returns the size less one: the size of all of IPv6 does not fit into 128 bits.
func (b block) span() uint128 { return b.last.sub(b.first) }

// size returns the size; it wraps to zero for all of IPv6.
func (b block) size() uint128 { return b.span().next() }

// isSmaller reports whether b has fewer addresses than c, or as many and begins before it.
func (b block) isSmaller(c block) bool {
	if x, y := b.span(), c.span(); x != y {
		return x.less(y)
	}
	return b.first.less(c.first)
}

func (b block) saturatedSize() int64 { return saturatedNext(b.span()) }

// saturatedNext returns x+1, at most math.MaxInt64.
func saturatedNext(x uint128) int64 {
	if x == maxUint128 {
		return x.saturatedInt64()
	}
	return x.next().saturatedInt64()
}

// firstAligned returns the lowest block of span mask that lies in b and starts at a multiple of its size.
func (b block) firstAligned(mask uint128) (block, bool) {
	first := b.first
	if !first.and(mask).isZero() {
		below := first.or(mask)
		if below == maxUint128 {
			return block{}, false
		}
		first = below.next()
	}
	last := first.or(mask)
	return block{first, last}, !b.last.less(last)
}

// wholePrefixes returns the part of b that consists of whole aligned blocks of span mask.
func (b block) wholePrefixes(mask uint128) (block, bool) {
	lowest, ok := b.firstAligned(mask)
	if !ok {
		return block{}, false
	}
	if b.last.and(mask) == mask {
		return block{lowest.first, b.last}, true
	}
	// The lowest prefix ends before b.last, so the incomplete prefix that is cut off here is another one.
	return block{lowest.first, b.last.andNot(mask).prev()}, true
}

func familyBits(v4 bool) int {
	if v4 {
		return 32
	}
	return 128
}

func familyName(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
