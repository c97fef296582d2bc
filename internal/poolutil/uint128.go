package poolutil

import (
	"encoding/binary"
	"math"
	"net/netip"

	"lukechampine.com/uint128"
)

// addressNumber returns the number of an address: an IPv4 address counts from 0 to 2^32-1, an IPv6 address from 0 to
// 2^128-1.
func addressNumber(a netip.Addr) uint128.Uint128 {
	if a.Is4() {
		b := a.As4()
		return uint128.From64(uint64(binary.BigEndian.Uint32(b[:])))
	}
	b := a.As16()
	return uint128.FromBytesBE(b[:])
}

func numberedAddress(x uint128.Uint128, v4 bool) netip.Addr {
	if v4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(x.Lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	x.PutBytesBE(b[:])
	return netip.AddrFrom16(b)
}

// saturatedInt64 returns x, at most math.MaxInt64.
func saturatedInt64(x uint128.Uint128) int64 {
	if x.Cmp64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	return int64(x.Lo)
}

// lowBits returns a mask of the n lowest bits, 0 <= n <= 128.
func lowBits(n int) uint128.Uint128 { return uint128.Max.Rsh(uint(128 - n)) }

// less is a Cmp that can be inlined.
func less(x, y uint128.Uint128) bool {
	if x.Hi != y.Hi {
		return x.Hi < y.Hi
	}
	return x.Lo < y.Lo
}
