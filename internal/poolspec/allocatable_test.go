package poolspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

type spec = v1alpha1.NetworkPoolSpec

func reserved(texts ...string) []v1alpha1.ReservedRange {
	out := make([]v1alpha1.ReservedRange, 0, len(texts))
	for _, s := range texts {
		out = append(out, v1alpha1.ReservedRange{Addresses: s})
	}
	return out
}

func tenant(start, end string) *v1alpha1.TenantAllocation {
	return &v1alpha1.TenantAllocation{Start: start, End: end}
}

func mustCompile(t *testing.T, s spec) *Layout {
	t.Helper()
	l, errs := Compile(&s)
	if len(errs) > 0 {
		t.Fatalf("Compile: %v", errs.ToAggregate())
	}
	return l
}

func textOf(set *netipx.IPSet) []string {
	var out []string
	for _, r := range set.Ranges() {
		out = append(out, r.String())
	}
	return out
}

func TestAllocatableRanges(t *testing.T) {
	tests := map[string]struct {
		reason string
		spec   spec
		want   []string
	}{
		"CIDR": { // F12
			reason: "network and broadcast address are never handed out",
			spec:   spec{CIDR: "10.0.0.0/24"},
			want:   []string{"10.0.0.1-10.0.0.254"},
		},
		"Gateway": { // F12
			reason: "nor is the gateway",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"},
			want:   []string{"10.0.0.2-10.0.0.254"},
		},
		"All": {
			reason: "allocateReservedIPAddresses makes network and broadcast allocatable, the gateway stays excluded",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.9", AllocateReservedIPAddresses: true},
			want:   []string{"10.0.0.0-10.0.0.8", "10.0.0.10-10.0.0.255"},
		},
		"Reserved": { // B3
			reason: "reserved ranges are excluded, in all three forms",
			spec:   spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.0/28", "10.0.0.100-10.0.0.110", "10.0.0.200")},
			want:   []string{"10.0.0.16-10.0.0.99", "10.0.0.111-10.0.0.199", "10.0.0.201-10.0.0.254"},
		},
		"TenantAllocation": { // B4
			reason: "tenantAllocation confines what is handed out; the network is still the CIDR's",
			spec:   spec{CIDR: "10.40.0.0/22", TenantAllocation: tenant("10.40.1.0", "10.40.3.254")},
			want:   []string{"10.40.1.0-10.40.3.254"},
		},
		"SeedPool": { // B3 B4 B6, F21
			reason: "the example pool of Butler has 767 addresses, not 766",
			spec: spec{CIDR: "10.40.0.0/22", Reserved: reserved("10.40.0.0/28", "10.40.0.16/28"),
				TenantAllocation: tenant("10.40.1.0", "10.40.3.254")},
			want: []string{"10.40.1.0-10.40.3.254"},
		},
		"Slash31":  {reason: "RFC 3021", spec: spec{CIDR: "10.0.0.4/31"}, want: []string{"10.0.0.4-10.0.0.5"}},                   // W19
		"Slash32":  {reason: "one address is one address", spec: spec{CIDR: "10.0.0.4/32"}, want: []string{"10.0.0.4-10.0.0.4"}}, // W19
		"Slash127": {reason: "RFC 6164", spec: spec{CIDR: "fd00::4/127"}, want: []string{"fd00::4-fd00::5"}},                     // W19
		"Slash128": {reason: "one address is one address", spec: spec{CIDR: "fd00::4/128"}, want: []string{"fd00::4-fd00::4"}},   // W19
		"IPv6": { // B67
			reason: "of an IPv6 subnet the subnet-router anycast address alone is excluded",
			spec:   spec{CIDR: "fd00::/64", Gateway: "fd00::1"},
			want:   []string{"fd00::2-fd00::ffff:ffff:ffff:ffff"},
		},
		"RangeIsNoNetwork": {
			reason: "a range that happens to be a whole prefix names addresses: all of them are used",
			spec:   spec{Addresses: []string{"10.0.0.4-10.0.0.7"}},
			want:   []string{"10.0.0.4-10.0.0.7"},
		},
		"CIDRInAddresses": {
			reason: "a CIDR among addresses is its own network",
			spec:   spec{Addresses: []string{"10.0.0.0/29", "10.0.1.9"}},
			want:   []string{"10.0.0.1-10.0.0.6", "10.0.1.9-10.0.1.9"},
		},
		"PrefixOfAddresses": { // U13
			reason: "prefix cuts addresses into networks; the first and last of each are excluded, of two adjacent ones too",
			spec:   spec{Addresses: []string{"10.0.0.250-10.0.1.5", "10.0.7.255", "10.0.9.0/24"}, Prefix: ptr.To[int32](24)},
			want:   []string{"10.0.0.250-10.0.0.254", "10.0.1.1-10.0.1.5", "10.0.9.1-10.0.9.254"},
		},
		"PrefixWiderThanCIDR": {
			reason: "a part of a network has no network address of its own",
			spec:   spec{CIDR: "10.0.0.64/26", Prefix: ptr.To[int32](24), Gateway: "10.0.0.1"},
			want:   []string{"10.0.0.64-10.0.0.127"},
		},
		"PrefixZero": {
			reason: "a prefix length of zero is one, not none",
			spec:   spec{CIDR: "10.0.0.0/24", Prefix: ptr.To[int32](0)},
			want:   []string{"10.0.0.0-10.0.0.255"},
		},
		"Subnets": { // U13
			reason: "each subnet excludes its own network, broadcast and gateway",
			spec: spec{Addresses: []string{"10.0.0.0-10.0.1.20"}, Subnets: []v1alpha1.Subnet{
				{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, {CIDR: "10.0.1.0/24", Gateway: "10.0.1.10"}}},
			want: []string{"10.0.0.2-10.0.0.254", "10.0.1.1-10.0.1.9", "10.0.1.11-10.0.1.20"},
		},
		"SubnetInSubnet": {
			reason: "the smallest subnet decides: the first address of a /31 is usable inside a /24 too",
			spec:   spec{CIDR: "10.0.0.0/24", Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}, {CIDR: "10.0.0.0/31"}}},
			want:   []string{"10.0.0.0-10.0.0.254"},
		},
		"PartlyInSubnets": {
			reason: "outside of subnets the short form rules",
			spec:   spec{CIDR: "10.0.0.0/23", Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}}},
			want:   []string{"10.0.0.1-10.0.0.254", "10.0.1.0-10.0.1.254"},
		},
		"WholePrefixes": { // U14
			reason: "a pool of prefixes hands out whole ones: what a reservation or a gateway touches is not",
			spec: spec{CIDR: "fd00::/60", AllocationPrefixLength: ptr.To[int32](64), Gateway: "fd00::1",
				Reserved: reserved("fd00:0:0:4::/64")},
			want: []string{"fd00:0:0:1::-fd00::3:ffff:ffff:ffff:ffff", "fd00:0:0:5::-fd00::f:ffff:ffff:ffff:ffff"},
		},
		"WholePrefixesIPv4": { // U14
			reason: "of IPv4 as well, and a range is trimmed to aligned prefixes",
			spec:   spec{Addresses: []string{"10.0.0.1-10.0.0.40"}, AllocationPrefixLength: ptr.To[int32](28)},
			want:   []string{"10.0.0.16-10.0.0.31"},
		},
		"Pinned": {
			reason: "a pin does not take its address out of what the spec describes; the ledger keeps it for its name",
			spec:   spec{CIDR: "10.0.0.0/30", PreAllocations: map[string]string{"vip": "10.0.0.1"}},
			want:   []string{"10.0.0.1-10.0.0.2"},
		},
		"NoLimit": { // B64
			reason: "any size will do, as long as it is described",
			spec:   spec{CIDR: "::/0", Prefix: ptr.To[int32](0)},
			want:   []string{"::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		},
		"LastAddresses": { // F11
			reason: "ranges that end with the family end",
			spec:   spec{Addresses: []string{"255.255.255.250-255.255.255.255"}, Prefix: ptr.To[int32](24)},
			want:   []string{"255.255.255.250-255.255.255.254"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, textOf(mustCompile(t, tc.spec).Allocatable())); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestDeclaredRanges(t *testing.T) {
	l := mustCompile(t, spec{CIDR: "10.0.0.0/30", Addresses: []string{"10.0.0.4/31", "10.0.1.1"}, Reserved: reserved("10.0.0.1"),
		TenantAllocation: tenant("10.0.0.2", "10.0.1.1")})
	if diff := cmp.Diff([]string{"10.0.0.0-10.0.0.5", "10.0.1.1-10.0.1.1"}, textOf(l.Declared())); diff != "" {
		t.Errorf("cidr and addresses are declared, whatever is taken out of them (-want +got):\n%s", diff)
	}
	if l.Is6() || l.UnitBits() != 32 {
		t.Errorf("Is6() = %v, UnitBits() = %d, want an IPv4 pool of single addresses", l.Is6(), l.UnitBits())
	}
	if !l.Contains(netipx.MustParseIPRange("10.0.0.4-10.0.0.5")) || l.Contains(netipx.MustParseIPRange("10.0.0.1-10.0.0.2")) {
		t.Error("Contains: want 10.0.0.4-10.0.0.5, and not a range of which a part is reserved")
	}
}
