package poolspec

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// within reports in the simplest way whether an address is in a range of the spec.
func within(text string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Contains(a)
	}
	first, last, _ := strings.Cut(text, "-")
	return !a.Less(netip.MustParseAddr(first)) && !netip.MustParseAddr(last).Less(a)
}

// handedOut decides on one address, by the documentation of the API and without sets.
func handedOut(s *spec, a netip.Addr) bool {
	in := s.CIDR != "" && within(s.CIDR, a)
	for _, text := range s.Addresses {
		in = in || within(text, a)
	}
	if t := s.TenantAllocation; t != nil {
		in = in && within(t.Start+"-"+t.End, a)
	}
	for _, r := range s.Reserved {
		in = in && !within(r.Addresses, a)
	}
	network := netip.MustParsePrefix(s.CIDR)
	for _, n := range s.Subnets {
		in = in && n.Gateway != a.String()
	}
	if s.Prefix != nil {
		network = netip.PrefixFrom(a, int(*s.Prefix)).Masked()
	}
	for _, n := range s.Subnets {
		if p := netip.MustParsePrefix(n.CIDR); p.Contains(a) && (!slices.ContainsFunc(s.Subnets, func(o v1alpha1.Subnet) bool {
			q := netip.MustParsePrefix(o.CIDR)
			return q.Contains(a) && q.Bits() > p.Bits()
		})) {
			network = p
		}
	}
	if network.Bits() < 31 && !s.AllocateReservedIPAddresses {
		first, last := a.Prev(), a.Next()
		in = in && network.Contains(first) && network.Contains(last)
	}
	return in
}

// TestAllocatableOracle compares every address of a small pool with the decision of handedOut.
func TestAllocatableOracle(t *testing.T) {
	inPool := func(lo, hi int) *rapid.Generator[netip.Addr] {
		return rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(lo, hi).Draw(t, "last byte"))})
		})
	}
	span := rapid.Custom(func(t *rapid.T) string {
		a, b := inPool(64, 127).Draw(t, "a"), inPool(64, 127).Draw(t, "b")
		if b.Less(a) {
			a, b = b, a
		}
		return a.String() + "-" + b.String()
	})
	prefix := rapid.Custom(func(t *rapid.T) string {
		p, _ := inPool(64, 127).Draw(t, "in").Prefix(rapid.IntRange(26, 32).Draw(t, "bits"))
		return p.String()
	})
	rapid.Check(t, func(t *rapid.T) {
		s := &spec{CIDR: "10.0.0.64/26", AllocateReservedIPAddresses: rapid.Bool().Draw(t, "all")}
		for _, text := range rapid.SliceOfN(rapid.OneOf(span, prefix), 0, 4).Draw(t, "reserved") {
			s.Reserved = append(s.Reserved, v1alpha1.ReservedRange{Addresses: text})
		}
		for _, text := range rapid.SliceOfNDistinct(prefix, 0, 4, rapid.ID).Draw(t, "subnets") {
			n := v1alpha1.Subnet{CIDR: text}
			if rapid.Bool().Draw(t, "with gateway") {
				n.Gateway = netip.MustParsePrefix(text).Addr().String()
			}
			s.Subnets = append(s.Subnets, n)
		}
		if rapid.Bool().Draw(t, "with prefix") {
			bits := int32(rapid.IntRange(20, 32).Draw(t, "prefix"))
			s.Prefix = &bits
		}
		if rapid.Bool().Draw(t, "with tenant") {
			a, b := inPool(64, 127).Draw(t, "start"), inPool(64, 127).Draw(t, "end")
			if b.Less(a) {
				a, b = b, a
			}
			s.TenantAllocation = &v1alpha1.TenantAllocation{Start: a.String(), End: b.String()}
		}
		l, errs := Compile(s)
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		for i := range 256 {
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if got, want := l.Allocatable().Contains(a), handedOut(s, a); got != want {
				t.Fatalf("%s: handed out: %v, want %v", a, got, want)
			}
		}
	})
}
