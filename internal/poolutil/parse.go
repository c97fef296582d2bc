package poolutil

import (
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"
)

// ParseRange parses one of the three forms of addresses in a pool:
//
//	10.40.0.0/21          all addresses of the prefix, including network and broadcast address
//	10.0.0.1-10.0.0.9     from the first to the last, both included
//	10.0.0.5              one address
//
// and the same in IPv6. It accepts no white space, no zone, and no IPv4 address in IPv6 form (::ffff:10.0.0.5), which
// would differ from the IPv4 address that is meant. Both ends are of one family and in order. A prefix has no host
// bits: 10.0.0.5/24 could mean the address or the network. Errors name the input and the correct form.
func ParseRange(s string) (netipx.IPRange, error) {
	if strings.Contains(s, "/") {
		return parsePrefix(s)
	}
	from, to, isRange := strings.Cut(s, "-")
	first, err := parseAddr(from)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: %w", s, err)
	}
	if !isRange {
		return netipx.IPRangeFrom(first, first), nil
	}
	last, err := parseAddr(to)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: %w", s, err)
	}
	if first.Is4() != last.Is4() {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: start is %s and end is %s, want one family",
			s, familyName(first), familyName(last))
	}
	if last.Less(first) {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: end %s is before start %s", s, last, first)
	}
	return netipx.IPRangeFrom(first, last), nil
}

func parsePrefix(s string) (netipx.IPRange, error) {
	host, length, _ := strings.Cut(s, "/")
	if _, err := parseAddr(host); err != nil {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: %w", s, err)
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: %q is not a prefix length", s, length)
	}
	if p != p.Masked() {
		return netipx.IPRange{}, fmt.Errorf("parsing %q: host bits are set: write %s for the prefix or %s for the address",
			s, p.Masked(), p.Addr())
	}
	return netipx.RangeOfPrefix(p), nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%s has a zone: write %s", a, a.WithZone(""))
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%s is an IPv4 address written as IPv6: write %s", a, a.Unmap())
	}
	return a, nil
}
