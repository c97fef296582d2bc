package poolutil

import (
	"math/bits"

	"go4.org/netipx"
)

// Count is an exact number of addresses or prefixes. All of IPv6 counts as one address less, which is
// the most that fits.
type Count struct{ n uint128 }

// CountPrefixes is the number of aligned prefixes of a length in a range that consists of whole ones.
// A length of 32 in IPv4, or of 128, counts addresses; none are in a range that is not valid.
func CountPrefixes(r netipx.IPRange, length int) Count {
	if !r.IsValid() {
		return Count{}
	}
	span := blockOf(r).span()
	if host := r.From().BitLen() - length; host > 0 {
		span = numberOf(r.To()).shr(host).sub(numberOf(r.From()).shr(host))
	}
	return Count{span}.Plus(Count{uint128{lo: 1}})
}

// Plus is the sum, at most 2^128-1.
func (c Count) Plus(d Count) Count {
	lo, carry := bits.Add64(c.n.lo, d.n.lo, 0)
	hi, overflow := bits.Add64(c.n.hi, d.n.hi, carry)
	if overflow != 0 {
		return Count{maxUint128}
	}
	return Count{uint128{hi, lo}}
}

// Minus is the difference; d is at most c.
func (c Count) Minus(d Count) Count { return Count{c.n.sub(d.n)} }

// Int64 is the number, at most math.MaxInt64.
func (c Count) Int64() int64 { return c.n.saturated() }

// LargestBlock is the largest free block, the highest of several; false where nothing is free.
func (f *Free) LargestBlock() (netipx.IPRange, bool) {
	if f.Empty() {
		return netipx.IPRange{}, false
	}
	return blockOfSize(f.bySize.max()).ipRange(f.v4), true
}

// Prefixes is how many aligned prefixes of a length are free: as many as BestFitPrefix could give. It costs O(k).
func (f *Free) Prefixes(length int) (n Count) {
	host := familyBits(f.v4) - length
	if host < 0 || length < 0 {
		return Count{}
	}
	for r := range f.All() {
		if whole, ok := blockOf(r).wholePrefixes(lowBits(host)); ok {
			n = n.Plus(CountPrefixes(whole.ipRange(f.v4), length))
		}
	}
	return n
}
