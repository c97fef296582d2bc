package poolutil

import (
	"net/netip"

	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// block is a range of address numbers, inclusive at both ends; it always has at least one.
type block struct{ first, last uint128.Uint128 }

func blockFromRange(r netipx.IPRange) block {
	return block{addressNumber(r.From()), addressNumber(r.To())}
}

func (b block) ipRange(v4 bool) netipx.IPRange {
	return netipx.IPRangeFrom(numberedAddress(b.first, v4), numberedAddress(b.last, v4))
}

// span returns the size less one: the size of all of IPv6 does not fit into 128 bits.
func (b block) span() uint128.Uint128 { return b.last.SubWrap(b.first) }

// size returns the size; it wraps to zero for all of IPv6.
func (b block) size() uint128.Uint128 { return b.span().AddWrap64(1) }

// isSmaller reports whether b has fewer addresses than c, or as many and begins before it.
func (b block) isSmaller(c block) bool {
	if x, y := b.span(), c.span(); x != y {
		return less(x, y)
	}
	return less(b.first, c.first)
}

func (b block) saturatedSize() int64 { return saturatedNext(b.span()) }

// saturatedNext returns x+1, at most math.MaxInt64.
func saturatedNext(x uint128.Uint128) int64 {
	if x == uint128.Max {
		return saturatedInt64(x)
	}
	return saturatedInt64(x.AddWrap64(1))
}

// firstAligned returns the lowest block of span mask that lies in b and starts at a multiple of its size.
func (b block) firstAligned(mask uint128.Uint128) (block, bool) {
	first := b.first
	if !first.And(mask).IsZero() {
		below := first.Or(mask)
		if below == uint128.Max {
			return block{}, false
		}
		first = below.AddWrap64(1)
	}
	last := first.Or(mask)
	return block{first, last}, !less(b.last, last)
}

// wholePrefixes returns the part of b that consists of whole aligned blocks of span mask.
func (b block) wholePrefixes(mask uint128.Uint128) (block, bool) {
	lowest, ok := b.firstAligned(mask)
	if !ok {
		return block{}, false
	}
	if b.last.And(mask) == mask {
		return block{lowest.first, b.last}, true
	}
	// The lowest prefix ends before b.last, so the incomplete prefix that is cut off here is another one.
	return block{lowest.first, b.last.And(mask.Xor(uint128.Max)).SubWrap64(1)}, true
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
