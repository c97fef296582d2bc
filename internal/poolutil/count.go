package poolutil

import (
	"math/bits"

	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// Count is an exact number of addresses or prefixes. All of IPv6 counts as one address less, which is the largest
// number that fits.
type Count struct{ n uint128.Uint128 }

// CountPrefixes returns the number of aligned prefixes of a length in a range that consists of whole ones. With length
// 32 in IPv4, or 128 in IPv6, it counts addresses. It returns 0 if the range is not valid.
func CountPrefixes(r netipx.IPRange, length int) Count {
	if !r.IsValid() {
		return Count{}
	}
	span := blockFromRange(r).span()
	if host := r.From().BitLen() - length; host > 0 {
		span = addressNumber(r.To()).Rsh(uint(host)).SubWrap(addressNumber(r.From()).Rsh(uint(host)))
	}
	return Count{span}.Plus(Count{uint128.From64(1)})
}

// Plus returns the sum, at most 2^128-1.
func (c Count) Plus(d Count) Count {
	lo, carry := bits.Add64(c.n.Lo, d.n.Lo, 0)
	hi, overflow := bits.Add64(c.n.Hi, d.n.Hi, carry)
	if overflow != 0 {
		return Count{uint128.Max}
	}
	return Count{uint128.New(lo, hi)}
}

// Minus returns the difference; d must be at most c.
func (c Count) Minus(d Count) Count { return Count{c.n.SubWrap(d.n)} }

// Int64 returns the number, at most math.MaxInt64.
func (c Count) Int64() int64 { return saturatedInt64(c.n) }

// LargestBlock returns the largest free block, the highest one of several; false where nothing is free.
func (f *Free) LargestBlock() (netipx.IPRange, bool) {
	b, ok := f.bySize.Max()
	if !ok {
		return netipx.IPRange{}, false
	}
	return b.ipRange(f.v4), true
}

// Prefixes returns the number of free aligned prefixes of a length, which is how many BestFitPrefix could take. It
// costs O(k).
func (f *Free) Prefixes(length int) (n Count) {
	host := familyBits(f.v4) - length
	if host < 0 || length < 0 {
		return Count{}
	}
	for r := range f.All() {
		if whole, ok := blockFromRange(r).wholePrefixes(lowBits(host)); ok {
			n = n.Plus(CountPrefixes(whole.ipRange(f.v4), length))
		}
	}
	return n
}
