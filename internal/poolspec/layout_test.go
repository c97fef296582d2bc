package poolspec

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestNetworkForAddress(t *testing.T) {
	type network struct {
		Prefix  int32
		Gateway string
	}
	tests := map[string]struct {
		reason string
		spec   spec
		want   map[string]network // by address
	}{
		"CIDR": {
			reason: "without subnets and prefix, the network is the CIDR",
			spec:   spec{CIDR: "10.0.0.0/22", Gateway: "10.0.0.1"},
			want:   map[string]network{"10.0.3.7": {22, "10.0.0.1"}},
		},
		"CIDRBeforeAddresses": {
			reason: "what cidr contains is in the network of cidr, and there is no gateway if none is named",
			spec:   spec{CIDR: "10.0.0.0/22", Addresses: []string{"10.0.1.0/24", "10.9.0.0/25", "10.9.0.0/28", "10.8.0.1-10.8.0.2"}},
			want:   map[string]network{"10.0.1.7": {22, ""}, "10.9.0.7": {28, ""}, "10.9.0.99": {25, ""}, "10.8.0.1": {32, ""}},
		},
		"Prefix": {
			reason: "prefix is the short form of one subnet",
			spec:   spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24), Gateway: "10.0.0.1"},
			want:   map[string]network{"10.0.0.12": {24, "10.0.0.1"}},
		},
		"OnLinkGateway": {
			reason: "an address that is a network of its own may have any gateway, if that is said",
			spec:   spec{Addresses: []string{"10.0.0.10"}, Prefix: ptr.To[int32](32), Gateway: "172.31.1.1"},
			want:   map[string]network{"10.0.0.10": {32, "172.31.1.1"}},
		},
		"Subnets": { // U13
			reason: "the smallest subnet that contains the address; outside of subnets, the short form",
			spec: spec{CIDR: "10.0.0.0/8", Gateway: "10.0.0.1", Subnets: []v1alpha1.Subnet{
				{CIDR: "10.1.0.0/16", Gateway: "10.1.0.1"}, {CIDR: "10.1.2.0/24"}, {CIDR: "10.1.2.128/25", Gateway: "10.1.2.129"}}},
			want: map[string]network{"10.1.9.9": {16, "10.1.0.1"}, "10.1.2.9": {24, ""}, "10.1.2.200": {25, "10.1.2.129"}, "10.2.0.1": {8, "10.0.0.1"}},
		},
		"Prefixes": { // U14
			reason: "a claim that gets a prefix gets its length",
			spec:   spec{CIDR: "fd00::/48", AllocationPrefixLength: ptr.To[int32](64), Gateway: "fd00::1"},
			want:   map[string]network{"fd00:0:0:7::": {64, ""}},
		},
		"LinkLocalGateway": {
			reason: "routers of IPv6 announce themselves by it",
			spec:   spec{CIDR: "fd00:50::/64", Gateway: "fe80::1"},
			want:   map[string]network{"fd00:50::9": {64, "fe80::1"}},
		},
		"LinkLocalGatewayOfAddresses": {
			reason: "it is on the link of every network that prefix cuts the addresses into",
			spec:   spec{Addresses: []string{"fd00::10-fd00::20", "fd00:0:0:1::10"}, Prefix: ptr.To[int32](64), Gateway: "fe80::1"},
			want:   map[string]network{"fd00::12": {64, "fe80::1"}, "fd00:0:0:1::10": {64, "fe80::1"}},
		},
		"LinkLocalGatewayOfSubnets": { // U13
			reason: "subnets may have the same one, each on its link",
			spec: spec{CIDR: "fd00::/48", Gateway: "febf::1", Subnets: []v1alpha1.Subnet{
				{CIDR: "fd00:0:0:1::/64", Gateway: "fe80::1"}, {CIDR: "fd00:0:0:2::/64", Gateway: "fe80::1"}}},
			want: map[string]network{"fd00:0:0:1::9": {64, "fe80::1"}, "fd00:0:0:2::9": {64, "fe80::1"}, "fd00::9": {48, "febf::1"}},
		},
		"CanonicalGateway": {
			reason: "the gateway is written in canonical form",
			spec:   spec{CIDR: "fd00::/64", Gateway: "fd00:0:0::1"},
			want:   map[string]network{"fd00::9": {64, "fd00::1"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, got := mustCompile(t, tc.spec), map[string]network{}
			for text := range tc.want {
				prefix, gateway := l.NetworkForAddress(netip.MustParseAddr(text))
				got[text] = network{prefix, gateway}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestPinsMayBeReserved checks that a pin may be a reserved address, or one outside tenantAllocation (U10).
func TestPinsMayBeReserved(t *testing.T) {
	pins := map[string]string{"vip": "10.0.0.10", "db": "10.0.0.200", "a": "10.0.0.2"}
	l := mustCompile(t, spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.0/28"), TenantAllocation: tenant("10.0.0.0", "10.0.0.99"),
		PreAllocations: pins})

	got, names := map[string]string{}, []string{}
	for name, a := range l.Pins() {
		got[name] = a.String()
		names = append(names, name)
		if owner, ok := l.PinOwner(a); !ok || owner != name {
			t.Errorf("PinOwner(%s) = %q, %v, want %q", a, owner, ok, name)
		}
		if pin, ok := l.PinForClaim(name); !ok || pin != a {
			t.Errorf("PinForClaim(%q) = %s, %v, want %s", name, pin, ok, a)
		}
	}
	if diff := cmp.Diff(pins, got); diff != "" {
		t.Errorf("Pins() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(pins)), names); diff != "" {
		t.Errorf("Pins() is ordered by name (-want +got):\n%s", diff)
	}
	for range l.Pins() {
		break // a caller may stop early
	}
	if _, ok := l.PinForClaim("other"); ok {
		t.Error("a name without a pin has none")
	}
	if _, ok := l.PinOwner(netip.MustParseAddr("10.0.0.11")); ok {
		t.Error("an address without a pin has no owner")
	}
}

// TestOverlappingRanges checks which declared ranges two pools share (W13).
func TestOverlappingRanges(t *testing.T) {
	tests := map[string]struct {
		reason string
		a, b   spec
		want   []string
	}{
		"Apart": {reason: "neighbours do not overlap", a: spec{CIDR: "10.0.0.0/24"}, b: spec{CIDR: "10.0.1.0/24"}},
		"Gateway": {
			reason: "two networks may have a router of one link-local address",
			a:      spec{CIDR: "fd00:0:0:1::/64", Gateway: "fe80::1"}, b: spec{CIDR: "fd00:0:0:2::/64", Gateway: "fe80::1"},
		},
		"Family": {reason: "families do not meet", a: spec{CIDR: "0.0.0.0/0"}, b: spec{CIDR: "::/0"}},
		"Several": {
			reason: "what both declare counts, even if one reserves it",
			a:      spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.0/25")},
			b:      spec{Addresses: []string{"10.0.0.4-10.0.0.5", "10.0.0.250-10.0.1.9"}},
			want:   []string{"10.0.0.4-10.0.0.5", "10.0.0.250-10.0.0.255"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := mustCompile(t, tc.a), mustCompile(t, tc.b)
			var ab, ba []string
			for _, r := range OverlappingRanges(a, b) {
				ab = append(ab, r.String())
			}
			for _, r := range OverlappingRanges(b, a) {
				ba = append(ba, r.String())
			}
			if diff := cmp.Diff(tc.want, ab); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(ab, ba); diff != "" {
				t.Errorf("overlap is mutual (-ab +ba):\n%s", diff)
			}
		})
	}
}

// TestGrantableRanges checks that a pool may grant the units that it hands out to any claim, and those that it reserves
// for names.
func TestGrantableRanges(t *testing.T) {
	for name, tc := range map[string]struct {
		spec spec
		want []string
	}{
		"Reserved": {
			spec: spec{Addresses: []string{"10.0.0.1-10.0.0.9"}, Reserved: reserved("10.0.0.1-10.0.0.5"), PreAllocations: map[string]string{"vip": "10.0.0.2"}},
			want: []string{"10.0.0.2-10.0.0.2", "10.0.0.6-10.0.0.9"},
		},
		"OutsideTenantAllocation": {
			spec: spec{Addresses: []string{"10.0.0.1-10.0.0.9"}, TenantAllocation: tenant("10.0.0.8", "10.0.0.9"), PreAllocations: map[string]string{"vip": "10.0.0.7"}},
			want: []string{"10.0.0.7-10.0.0.9"},
		},
		"Prefixes": {
			spec: spec{CIDR: "10.0.0.0/28", AllocationPrefixLength: ptr.To[int32](30), Reserved: reserved("10.0.0.0-10.0.0.7"), PreAllocations: map[string]string{"vip": "10.0.0.4"}},
			want: []string{"10.0.0.4-10.0.0.15"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := mustCompile(t, tc.spec)
			if diff := cmp.Diff(tc.want, textOf(l.Grantable())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			for _, text := range tc.want {
				if r := netipx.MustParseIPRange(text); !l.MayGrant(r) || l.MayGrant(netipx.IPRangeFrom(r.From().Prev(), r.To())) {
					t.Errorf("MayGrant does not agree about %s", text)
				}
			}
		})
	}
}
