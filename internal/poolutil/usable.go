package poolutil

import (
	"net/netip"

	"go4.org/netipx"
)

// Usable returns the addresses of the subnet p that hosts may use: without network and broadcast address in IPv4,
// without the subnet-router anycast address (the first, RFC 4291 2.6.1) in IPv6. Subnets of one or two addresses have
// neither: /31 (RFC 3021), /127 (RFC 6164), /32 and /128 are usable in full. Host bits of p are ignored. It returns the
// zero range if p is not valid.
func Usable(p netip.Prefix) netipx.IPRange {
	r := netipx.RangeOfPrefix(p)
	switch {
	case !p.IsValid() || p.Bits() >= p.Addr().BitLen()-1:
		return r
	case p.Addr().Is4():
		return netipx.IPRangeFrom(r.From().Next(), r.To().Prev())
	default:
		return netipx.IPRangeFrom(r.From().Next(), r.To())
	}
}

// RoutedNetwork returns the network of a block that is a subnet of its own: its prefix length, and as its gateway the
// first address that hosts may use, or the last one. A block of one address has no gateway.
func RoutedNetwork(p netip.Prefix, last bool) (prefix int32, gateway string) {
	usable := Usable(p)
	switch {
	case p.IsSingleIP():
		return int32(p.Bits()), ""
	case last:
		return int32(p.Bits()), usable.To().String()
	}
	return int32(p.Bits()), usable.From().String()
}
