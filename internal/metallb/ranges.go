package metallb

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// parseRange parses an entry of spec.addresses as MetalLB does, with the parsers that MetalLB uses: first-last, with
// optional spaces around each, or a CIDR without spaces, which MetalLB reads as the whole network. It parses every
// form that MetalLB accepts, and returns an error for what MetalLB refuses; differential_test.go compares the two.
// Two forms that MetalLB accepts are errors here: an entry from an IPv4 to an IPv6 address, which has no addresses in
// MetalLB, and an IPv4 network that is written as IPv6, for which MetalLB returns addresses outside of the network.
func parseRange(text string) (netipx.IPRange, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		return parseNetwork(text)
	}
	from, to := net.ParseIP(strings.TrimSpace(first)), net.ParseIP(strings.TrimSpace(last))
	if from == nil || to == nil || bytes.Compare(from, to) > 0 {
		return netipx.IPRange{}, fmt.Errorf("%q is not a range", text)
	}
	r := netipx.IPRangeFrom(toAddr(from), toAddr(to))
	if !r.IsValid() {
		return netipx.IPRange{}, fmt.Errorf("%q begins and ends in different IP families", text)
	}
	return r, nil
}

// parseNetwork parses a CIDR.
func parseNetwork(text string) (netipx.IPRange, error) {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("%q is not a range: %w", text, err)
	}
	ones, bits := n.Mask.Size()
	if ip.To4() != nil && bits == 8*net.IPv6len {
		return netipx.IPRange{}, fmt.Errorf("%q is an IPv4 network that is written as IPv6", text)
	}
	return netipx.RangeOfPrefix(netip.PrefixFrom(toAddr(n.IP), ones)), nil
}

// toAddr converts an address that package net has parsed, and unmaps IPv4.
func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
