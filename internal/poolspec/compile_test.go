package poolspec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestCompileErrors(t *testing.T) {
	subnet := func(cidr, gateway string) v1alpha1.Subnet { return v1alpha1.Subnet{CIDR: cidr, Gateway: gateway} }
	tests := map[string]struct {
		reason string
		spec   spec
		want   map[string]string // field: part of the message
	}{
		"Nothing": {
			reason: "a pool has addresses",
			want:   map[string]string{"spec": "set cidr, addresses, or both"},
		},
		"NoCIDR": { // Butler's pattern permits it
			reason: "999.1.1.1/99 is no CIDR",
			spec:   spec{CIDR: "999.1.1.1/99"},
			want:   map[string]string{"spec.cidr": `"999.1.1.1" is not an IP address`},
		},
		"Order": {
			reason: "an order that there is not is none of those that there are",
			spec:   spec{CIDR: "10.0.0.0/24", AllocationOrder: "Random"},
			want:   map[string]string{"spec.allocationOrder": "write BestFit or LeastRecentlyUsed"},
		},
		"SingleAsCIDR": {
			reason: "an address is no network",
			spec:   spec{CIDR: "10.0.0.0"},
			want:   map[string]string{"spec.cidr": "must be a CIDR"},
		},
		"HostBits": {
			reason: "it may mean the address or the network",
			spec:   spec{CIDR: "10.0.0.5/24"},
			want:   map[string]string{"spec.cidr": "write 10.0.0.0/24 for the prefix"},
		},
		"EndBeforeStart": { // U28
			reason: "a range is in order, in IPv6 as well, which CEL cannot compare",
			spec:   spec{Addresses: []string{"fd00::9-fd00::1"}},
			want:   map[string]string{"spec.addresses[0]": "end fd00::1 is before start fd00::9"},
		},
		"TwoFamilies": {
			reason: "every field is held to the one family",
			spec: spec{CIDR: "10.0.0.0/24", Reserved: reserved("fd00::/64"), Gateway: "fd00::1",
				PreAllocations: map[string]string{"a": "fd00::2"}, TenantAllocation: tenant("fd00::1", "fd00::2")},
			want: map[string]string{"spec.reserved[0].addresses": "another address family", "spec.gateway": "another address family",
				"spec.preAllocations[a]": "another address family", "spec.tenantAllocation.start": "another address family",
				"spec.tenantAllocation.end": "another address family"},
		},
		"TwoFamiliesOfAddresses": {
			reason: "the first range decides",
			spec:   spec{Addresses: []string{"10.0.0.1", "fd00::1"}, Subnets: []v1alpha1.Subnet{subnet("fd00::/64", "")}},
			want:   map[string]string{"spec.addresses[1]": "use two pools"},
		},
		"ReservedOutside": { // W13
			reason: "a reservation outside the pool is a mistake, not a no-op",
			spec:   spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.0.0/28", "10.0.1.0/28", "10.0.0.250-10.0.1.5")},
			want:   map[string]string{"spec.reserved[1].addresses": "not inside the pool", "spec.reserved[2].addresses": "not inside the pool"},
		},
		"ReservedOutsideByItsFormerName": { // W13
			reason: "manifests of before name it cidr",
			spec:   spec{CIDR: "10.0.0.0/24", Reserved: []v1alpha1.ReservedRange{{CIDR: "10.0.0.0/28"}, {CIDR: "10.0.1.0/28"}}},
			want:   map[string]string{"spec.reserved[1].cidr": "not inside the pool"},
		},
		"ReservedOutsideAddresses": { // W13
			reason: "set arithmetic finds it in a pool of several ranges too, where CEL cannot",
			spec:   spec{CIDR: "10.0.0.0/25", Addresses: []string{"10.0.0.128/25"}, Reserved: reserved("10.0.0.120-10.0.0.130", "10.0.1.1")},
			want:   map[string]string{"spec.reserved[1].addresses": "not inside the pool"},
		},
		"TenantReversed": { // U28
			reason: "start comes first",
			spec:   spec{CIDR: "10.0.0.0/24", TenantAllocation: tenant("10.0.0.9", "10.0.0.1")},
			want:   map[string]string{"spec.tenantAllocation.end": "before start"},
		},
		"TenantOutside": { // W13
			reason: "both ends are in the pool",
			spec:   spec{CIDR: "10.0.0.0/24", TenantAllocation: tenant("10.0.0.9", "10.0.1.1")},
			want:   map[string]string{"spec.tenantAllocation.end": "outside the pool"},
		},
		"GatewayOutsideCIDR": { // W13
			reason: "a machine could not reach it",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.0.1.1"},
			want:   map[string]string{"spec.gateway": "outside 10.0.0.0/24"},
		},
		"GatewayOutsidePrefix": { // W13
			reason: "prefix may be shorter than the CIDR, and still not reach",
			spec:   spec{CIDR: "10.0.2.0/24", Prefix: ptr.To[int32](23), Gateway: "10.0.1.1"},
			want:   map[string]string{"spec.gateway": "outside 10.0.2.0/23"},
		},
		"GatewayOfPart": { // W13
			reason: "prefix cuts the CIDR into networks, and the gateway is in one of them",
			spec:   spec{CIDR: "10.0.0.0/23", Prefix: ptr.To[int32](24), Gateway: "10.0.0.1"},
			want:   map[string]string{"spec.gateway": "outside 10.0.1.0/24"},
		},
		"GatewayAroundANetwork": { // W13
			reason: "the gateway is in the larger network; what the smaller one takes out of its middle does not reach it",
			spec:   spec{Addresses: []string{"10.0.0.0/16", "10.0.2.0/23"}, Gateway: "10.0.0.1"},
			want:   map[string]string{"spec.gateway": "outside 10.0.2.0/23"},
		},
		"GatewayWithoutPrefix": { // W13
			reason: "of bare addresses the network is not known; /32 with a gateway beside it would not work",
			spec:   spec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Gateway: "10.0.0.1"},
			want:   map[string]string{"spec.gateway": "needs prefix"},
		},
		"GatewayOutsideIPv6": { // W13
			reason: "of a router of IPv6 the link-local address helps, which the message says",
			spec:   spec{CIDR: "fd00:0:0:1::/64", Gateway: "fd00::1"},
			want:   map[string]string{"spec.gateway": "outside fd00:0:0:1::/64, the network of fd00:0:0:1::; correct prefix, describe several networks with subnets, or use a link-local gateway (fe80::/10)"},
		},
		"GatewayOutsideSubnetIPv6": { // W13
			reason: "the same in a subnet",
			spec:   spec{CIDR: "fd00::/48", Subnets: []v1alpha1.Subnet{subnet("fd00:0:0:1::/64", "fd00::1")}},
			want:   map[string]string{"spec.subnets[0].gateway": "a gateway is an address of its own subnet, or link-local (fe80::/10)"},
		},
		"GatewayNextToLinkLocal": { // W13
			reason: "fe80::/10 ends before fec0::",
			spec:   spec{CIDR: "fd00::/64", Gateway: "fec0::1"},
			want:   map[string]string{"spec.gateway": "outside fd00::/64"},
		},
		"GatewayLinkLocalMulticast": { // W13
			reason: "all routers are no router",
			spec:   spec{CIDR: "fd00::/64", Gateway: "ff02::2"},
			want:   map[string]string{"spec.gateway": "outside fd00::/64"},
		},
		"GatewayLinkLocalIPv4": { // W13
			reason: "an IPv4 host of a network has no route to 169.254.0.0/16; IPv6 would be no help",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "169.254.1.1"},
			want:   map[string]string{"spec.gateway": "outside 10.0.0.0/24, the network of 10.0.0.0; correct prefix, or describe several networks with subnets"},
		},
		"GatewayLinkLocalIPv4OfSubnet": { // W13
			reason: "nor of a subnet",
			spec:   spec{CIDR: "10.0.0.0/24", Subnets: []v1alpha1.Subnet{subnet("10.0.0.0/24", "169.254.1.1")}},
			want:   map[string]string{"spec.subnets[0].gateway": "is outside the subnet 10.0.0.0/24; a gateway is an address of its own subnet"},
		},
		"GatewayLinkLocalWithZone": { // W13
			reason: "the name of an interface is true of one host alone",
			spec:   spec{CIDR: "fd00::/64", Gateway: "fe80::1%eth0"},
			want:   map[string]string{"spec.gateway": "zone"},
		},
		"GatewayLinkLocalWithoutPrefix": { // W13
			reason: "it does not show how long the network of bare addresses is",
			spec:   spec{Addresses: []string{"fd00::10-fd00::20"}, Gateway: "fe80::1"},
			want:   map[string]string{"spec.gateway": "needs prefix"},
		},
		"PinLinkLocalGateway": {
			reason: "a gateway in the pool is in use already, link-local or not",
			spec:   spec{CIDR: "fe80::/64", Gateway: "fe80::1", PreAllocations: map[string]string{"a": "fe80::1"}},
			want:   map[string]string{"spec.preAllocations[a]": "the gateway fe80::1"},
		},
		"GatewayUnused": {
			reason: "gateway is for addresses outside of subnets",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1", Subnets: []v1alpha1.Subnet{subnet("10.0.0.0/24", "")}},
			want:   map[string]string{"spec.gateway": "set the gateway there"},
		},
		"GatewayOutsideSubnet": { // W13
			reason: "a gateway is in its own subnet",
			spec:   spec{CIDR: "10.0.0.0/16", Subnets: []v1alpha1.Subnet{subnet("10.0.0.0/24", "10.0.0.1"), subnet("10.0.1.0/24", "10.0.0.1")}},
			want:   map[string]string{"spec.subnets[1].gateway": "outside the subnet 10.0.1.0/24"},
		},
		"SubnetTwice": {
			reason: "which gateway would it be",
			spec:   spec{CIDR: "10.0.0.0/24", Subnets: []v1alpha1.Subnet{subnet("10.0.0.0/24", "10.0.0.1"), subnet("10.0.0.0/24", "10.0.0.2")}},
			want:   map[string]string{"spec.subnets[1].cidr": "is a duplicate of subnets[0]"},
		},
		"PrefixTooLong": {
			reason: "IPv4 has 32 bits",
			spec:   spec{CIDR: "10.0.0.0/24", Prefix: ptr.To[int32](64)},
			want:   map[string]string{"spec.prefix": "between 0 and 32"},
		},
		"TooManyNetworks": {
			reason: "their first addresses are excluded one by one",
			spec:   spec{CIDR: "fd00::/32", Prefix: ptr.To[int32](64)},
			want:   map[string]string{"spec.prefix": "more than 65536 networks"},
		},
		"UnitTooLong": { // U14
			reason: "IPv4 has 32 bits",
			spec:   spec{CIDR: "10.0.0.0/24", AllocationPrefixLength: ptr.To[int32](64)},
			want:   map[string]string{"spec.allocationPrefixLength": "between 1 and 32"},
		},
		"UnitTooShort": { // U14
			reason: "no claim could ever be served",
			spec:   spec{CIDR: "10.0.0.0/24", AllocationPrefixLength: ptr.To[int32](23)},
			want:   map[string]string{"spec.allocationPrefixLength": "does not hold one whole prefix"},
		},
		"PinTwice": { // U12
			reason: "two pins of one address; canonical form does not matter here",
			spec:   spec{CIDR: "fd00::/64", PreAllocations: map[string]string{"a": "fd00::9", "b": "fd00::0:9"}},
			want:   map[string]string{"spec.preAllocations[b]": `kept for "a" too`},
		},
		"PinOutside": { // W13
			reason: "a pin is inside the pool",
			spec:   spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.1.9"}},
			want:   map[string]string{"spec.preAllocations[a]": "outside the pool"},
		},
		"PinGateway": {
			reason: "the gateways are in use already",
			spec: spec{CIDR: "10.0.0.0/23", Gateway: "10.0.1.1", PreAllocations: map[string]string{"a": "10.0.0.1", "b": "10.0.1.1"},
				Subnets: []v1alpha1.Subnet{subnet("10.0.0.0/24", "10.0.0.1")}},
			want: map[string]string{"spec.preAllocations[a]": "the gateway 10.0.0.1", "spec.preAllocations[b]": "the gateway 10.0.1.1"},
		},
		"PinNetworkAddress": { // F12
			reason: "a host does not work with it",
			spec:   spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.0.255"}},
			want:   map[string]string{"spec.preAllocations[a]": "first or last address of 10.0.0.0/24"},
		},
		"PinOfPrefixUnaligned": { // U14
			reason: "the pin names a prefix by its first address",
			spec: spec{CIDR: "fd00::/60", AllocationPrefixLength: ptr.To[int32](64),
				PreAllocations: map[string]string{"a": "fd00:0:0:1::5", "b": "fd00:0:0:2::"}},
			want: map[string]string{"spec.preAllocations[a]": "write fd00:0:0:1::"},
		},
		"NotOneAddress": {
			reason: "where one address is meant, a range is refused",
			spec:   spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1/32", PreAllocations: map[string]string{"a": "10.0.0.1-10.0.0.1"}},
			want:   map[string]string{"spec.gateway": "one address", "spec.preAllocations[a]": "one address"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, errs := Compile(&tc.spec)
			if l != nil {
				t.Error("a spec with errors has no layout")
			}
			got := map[string]string{}
			for _, err := range errs {
				got[err.Field] = err.ErrorBody()
				if part := tc.want[err.Field]; part != "" && strings.Contains(err.ErrorBody(), part) {
					got[err.Field] = part
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
