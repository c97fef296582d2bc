package poolutil

import "go4.org/netipx"

// CountPrefixes is the number of aligned prefixes of a length in a range that consists of whole ones,
// at most math.MaxInt64. A length of 32 in IPv4, or of 128, counts addresses.
func CountPrefixes(r netipx.IPRange, length int) int64 {
	host := r.From().BitLen() - length
	if !r.IsValid() || host <= 0 {
		return Size(r)
	}
	return saturatedNext(numberOf(r.To()).shr(host).sub(numberOf(r.From()).shr(host)))
}

// LargestBlock is the largest free block; false where nothing is free.
func (f *Free) LargestBlock() (netipx.IPRange, bool) {
	if f.Empty() {
		return netipx.IPRange{}, false
	}
	return blockOfSize(f.bySize.max()).ipRange(f.v4), true
}
