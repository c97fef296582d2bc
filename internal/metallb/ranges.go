package metallb

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// rangeOf reads an entry of spec.addresses as MetalLB does, with the parsers that it uses: first-last, with spaces around
// each, or a CIDR without spaces, of which MetalLB takes the whole network. Every form that MetalLB takes is read, and what
// it refuses is an error: differential_test.go compares the two. Two forms that MetalLB takes are errors, too: an entry from an
// IPv4 to an IPv6 address, which has no addresses there, and an IPv4 network that is written as IPv6, of which it gives
// addresses that are not in the network.
func rangeOf(text string) (netipx.IPRange, error) {
	first, last, is := strings.Cut(text, "-")
	if !is {
		return networkOf(text)
	}
	from, to := net.ParseIP(strings.TrimSpace(first)), net.ParseIP(strings.TrimSpace(last))
	if from == nil || to == nil || bytes.Compare(from, to) > 0 {
		return netipx.IPRange{}, fmt.Errorf("%q is not a range", text)
	}
	r := netipx.IPRangeFrom(addrOf(from), addrOf(to))
	if !r.IsValid() {
		return netipx.IPRange{}, fmt.Errorf("%q begins and ends in different IP families", text)
	}
	return r, nil
}

// networkOf reads a CIDR.
func networkOf(text string) (netipx.IPRange, error) {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("%q is not a range: %w", text, err)
	}
	ones, bits := n.Mask.Size()
	if ip.To4() != nil && bits == 8*net.IPv6len {
		return netipx.IPRange{}, fmt.Errorf("%q is an IPv4 network that is written as IPv6", text)
	}
	return netipx.RangeOfPrefix(netip.PrefixFrom(addrOf(n.IP), ones)), nil
}

// addrOf is an address as net reads it. IPv4 has one spelling.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
