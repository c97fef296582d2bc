package poolspec

import (
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestWithheldReason(t *testing.T) {
	s := spec{
		CIDR: "10.0.0.0/24", Gateway: "10.0.0.1",
		Reserved:         []v1alpha1.ReservedRange{{Addresses: "10.0.0.8/30", Description: "printer"}, {Addresses: "10.0.0.20"}},
		TenantAllocation: &v1alpha1.TenantAllocation{Start: "10.0.0.0", End: "10.0.0.99"},
	}
	subnets := spec{Addresses: []string{"10.0.1.0/29"}, Subnets: []v1alpha1.Subnet{{CIDR: "10.0.1.0/29", Gateway: "10.0.1.6"}}}
	length := int32(28)
	prefixes := spec{CIDR: "10.0.2.0/26", AllocationPrefixLength: &length, Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.2.1"}}}
	for name, c := range map[string]struct {
		spec    spec
		address string
		want    string
	}{
		"outside":                       {s, "10.0.9.9", "outside the pool"},
		"of another family":             {s, "fd00::1", "of another address family than the pool"},
		"reserved":                      {s, "10.0.0.9", "reserved by spec.reserved[0] (10.0.0.8/30: printer)"},
		"reserved, without a reason":    {s, "10.0.0.20", "reserved by spec.reserved[1] (10.0.0.20)"},
		"the gateway":                   {s, "10.0.0.1", "the gateway (spec.gateway)"},
		"a subnet's gateway":            {subnets, "10.0.1.6", "the gateway of spec.subnets[0] (10.0.1.0/29)"},
		"not for tenants":               {s, "10.0.0.100", "outside spec.tenantAllocation (10.0.0.0-10.0.0.99)"},
		"the first of its network":      {s, "10.0.0.0", "the first address of the network 10.0.0.0/24, which hosts do not use"},
		"the last of a smaller network": {subnets, "10.0.1.7", "the last address of the network 10.0.1.0/29, which hosts do not use"},
		"a broken prefix":               {prefixes, "10.0.2.2", "not in a whole prefix of /28, as the pool hands out"},
	} {
		t.Run(name, func(t *testing.T) {
			layout, errs := Compile(&c.spec)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := WithheldReason(&c.spec, layout, netip.MustParseAddr(c.address)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestFirstWithheld(t *testing.T) {
	layout, errs := Compile(&spec{CIDR: "10.0.0.0/28", Gateway: "10.0.0.5"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for in, want := range map[string]string{
		"10.0.0.1-10.0.0.4": "", "10.0.0.4-10.0.0.9": "10.0.0.5", "10.0.0.0-10.0.0.4": "10.0.0.0", "10.0.0.9-10.0.0.20": "10.0.0.15",
	} {
		got, withheld := FirstWithheldAddress(layout, netipx.MustParseIPRange(in))
		if withheld != (want != "") || (withheld && got.String() != want) {
			t.Errorf("%s: %s", in, got)
		}
	}
}

func TestNothingAllocatableMessage(t *testing.T) {
	const all = "the spec leaves nothing to hand out: "
	for name, c := range map[string]struct {
		spec spec
		want string
	}{
		"something":         {spec{CIDR: "10.0.0.0/30"}, ""},
		"all reserved":      {spec{CIDR: "10.0.0.0/28", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}}}, all + "all of its 16 addresses are reserved, gateways, or the first or last of a subnet; add addresses, or reserve fewer"},
		"the gateway alone": {spec{Addresses: []string{"10.0.0.9"}, Gateway: "10.0.0.9"}, all + "its one address is reserved, a gateway, or the first or last of a subnet; add addresses, or reserve fewer"},
		"kept for a name":   {spec{CIDR: "10.0.0.0/28", Reserved: []v1alpha1.ReservedRange{{Addresses: "10.0.0.0/28"}}, PreAllocations: map[string]string{"vip": "10.0.0.3"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			layout, errs := Compile(&c.spec)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := NothingAllocatableMessage(layout, AdviceAddAddresses); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestUnknownNetworkMessage checks the message about addresses without a network, with which machines reach nothing.
func TestUnknownNetworkMessage(t *testing.T) {
	for name, tc := range map[string]struct {
		spec v1alpha1.NetworkPoolSpec
		want string
	}{
		"a range":        {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}}, want: "claims get 10.0.0.10 with the prefix length 32 and no gateway"},
		"one of two":     {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.0/24", "10.0.9.5"}}, want: "claims get 10.0.9.5 with the prefix length 32 and no gateway"},
		"IPv6":           {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"fd00::10-fd00::20"}}, want: "claims get fd00::10 with the prefix length 128 and no gateway"},
		"with a prefix":  {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24)}},
		"a CIDR":         {spec: v1alpha1.NetworkPoolSpec{CIDR: "10.0.0.0/24"}},
		"of one address": {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.7/32"}, AllocateReservedIPAddresses: true}},
		"in a subnet":    {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}}}},
		"whole prefixes": {spec: v1alpha1.NetworkPoolSpec{Addresses: []string{"fd00::/56"}, AllocationPrefixLength: ptr.To[int32](64)}},
	} {
		t.Run(name, func(t *testing.T) {
			layout, errs := Compile(&tc.spec)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if got := UnknownNetworkMessage(layout); !strings.HasPrefix(got, tc.want) || (tc.want == "") != (got == "") {
				t.Errorf("%q", got)
			}
		})
	}
}
