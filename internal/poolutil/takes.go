package poolutil

import (
	"net/netip"

	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// BestFit takes n addresses from the start of the smallest free block that has as many; of blocks of one size, from the
// lowest. It returns false and changes nothing if no block is large enough or n is 0.
func (f *Free) BestFit(n uint64) (netipx.IPRange, bool) {
	if n == 0 {
		return netipx.IPRange{}, false
	}
	span := uint128.From64(n - 1)
	var from block
	ok := false
	f.bySize.Ascend(block{last: span}, func(b block) bool {
		from, ok = b, true
		return false
	})
	if !ok {
		return netipx.IPRange{}, false
	}
	b := block{from.first, from.first.AddWrap(span)}
	f.carve(from, b)
	return b.ipRange(f.v4), true
}

// BestFitPrefix takes an aligned prefix of the length bits from the smallest free block that contains one, from the
// lowest block of that size, at the lowest place in it. It returns false and changes nothing if no block contains one,
// or the length is not valid.
//
// With n the size of the prefix, a free block of n to 2n-2 addresses contains an aligned prefix only at some places.
// The cost is O(log k + m), where m is the number of such blocks that contain none.
func (f *Free) BestFitPrefix(bits int) (netip.Prefix, bool) {
	if bits < 0 || bits > familyBits(f.v4) {
		return netip.Prefix{}, false
	}
	mask := lowBits(familyBits(f.v4) - bits)
	var from, b block
	ok := false
	f.bySize.Ascend(block{last: mask}, func(at block) bool {
		from = at
		b, ok = at.firstAligned(mask)
		return !ok
	})
	if !ok {
		return netip.Prefix{}, false
	}
	f.carve(from, b)
	return netip.PrefixFrom(numberedAddress(b.first, f.v4), bits), true
}

// Take takes r, wherever it lies, if all of it is free. Else it changes nothing and returns false.
func (f *Free) Take(r netipx.IPRange) bool {
	if !r.IsValid() || !f.sameFamily(r) {
		return false
	}
	b := blockFromRange(r)
	from, ok := f.blockContaining(b)
	if ok {
		f.carve(from, b)
	}
	return ok
}

// TakeAny takes those addresses of r that are free, which may be none. It costs O(log k) for each free block that
// overlaps r.
func (f *Free) TakeAny(r netipx.IPRange) {
	if !r.IsValid() || !f.sameFamily(r) {
		return
	}
	b := blockFromRange(r)
	for {
		from, ok := f.blockEndingFrom(b.first)
		if !ok || less(b.last, from.first) {
			return
		}
		part := from
		if less(part.first, b.first) {
			part.first = b.first
		}
		if less(b.last, part.last) {
			part.last = b.last
		}
		f.carve(from, part)
	}
}

// carve removes b from the free block that contains it. The removal comes last, so that no tree becomes empty meanwhile:
// it would allocate its root again.
func (f *Free) carve(from, b block) {
	f.total = f.total.SubWrap(b.size())
	if b.first != from.first {
		f.insert(block{from.first, b.first.SubWrap64(1)})
	}
	if b.last != from.last {
		f.insert(block{b.last.AddWrap64(1), from.last})
	} else {
		f.byPlace.Delete(from)
	}
	f.removeSize(from)
}
