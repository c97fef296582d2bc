package poolutil

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
)

// uint128 is the number of an address: an IPv4 address counts from 0 to 2^32-1, an IPv6 address from 0 to 2^128-1. Sums
// and differences wrap around.
type uint128 struct{ hi, lo uint64 }

var maxUint128 = uint128{math.MaxUint64, math.MaxUint64}

func addressNumber(a netip.Addr) uint128 {
	if a.Is4() {
		b := a.As4()
		return uint128{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return uint128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (x uint128) addr(v4 bool) netip.Addr {
	if v4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(x.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], x.hi)
	binary.BigEndian.PutUint64(b[8:], x.lo)
	return netip.AddrFrom16(b)
}

func (x uint128) isZero() bool { return x.hi|x.lo == 0 }

func (x uint128) less(y uint128) bool {
	if x.hi != y.hi {
		return x.hi < y.hi
	}
	return x.lo < y.lo
}

func (x uint128) add(y uint128) uint128 {
	lo, carry := bits.Add64(x.lo, y.lo, 0)
	hi, _ := bits.Add64(x.hi, y.hi, carry)
	return uint128{hi, lo}
}

func (x uint128) sub(y uint128) uint128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	hi, _ := bits.Sub64(x.hi, y.hi, borrow)
	return uint128{hi, lo}
}

func (x uint128) next() uint128 { return x.add(uint128{lo: 1}) }

func (x uint128) prev() uint128 { return x.sub(uint128{lo: 1}) }

func (x uint128) or(y uint128) uint128 { return uint128{x.hi | y.hi, x.lo | y.lo} }

func (x uint128) and(y uint128) uint128 { return uint128{x.hi & y.hi, x.lo & y.lo} }

func (x uint128) andNot(y uint128) uint128 { return uint128{x.hi &^ y.hi, x.lo &^ y.lo} }

func (x uint128) shr(n int) uint128 {
	if n < 64 {
		return uint128{x.hi >> n, x.lo>>n | x.hi<<(64-n)}
	}
	return uint128{0, x.hi >> (n - 64)}
}

// bitLen returns the number of bits needed to represent x.
func (x uint128) bitLen() int {
	if x.hi != 0 {
		return 64 + bits.Len64(x.hi)
	}
	return bits.Len64(x.lo)
}

// saturatedInt64 returns x, at most math.MaxInt64.
func (x uint128) saturatedInt64() int64 {
	if x.hi != 0 || x.lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(x.lo)
}

// lowBits returns a mask of the n lowest bits, 0 <= n <= 128.
func lowBits(n int) uint128 {
	if n <= 64 {
		return uint128{lo: 1<<n - 1}
	}
	return uint128{hi: 1<<(n-64) - 1, lo: math.MaxUint64}
}
