package metal3

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestToNetworkPoolSpec checks the translation of IPPools to specs of our pools (U62).
func TestToNetworkPoolSpec(t *testing.T) {
	const preAllocated = "preAllocations are for claims of the same names here; CAPM3 names the claims of another Metal3DataTemplate differently"
	for name, c := range map[string]struct {
		in              string
		want            v1alpha1.NetworkPoolSpec
		notes, problems []string
	}{
		"a range": {
			in: `{namePrefix: p, prefix: 24, gateway: 10.0.0.1, pools: [{start: 10.0.0.10, end: 10.0.0.20}]}`,
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24), Gateway: "10.0.0.1",
			},
		},
		"a subnet begins with its second address": {
			in:   `{prefix: 24, pools: [{subnet: 10.0.0.0/24}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.1-10.0.0.255"}, Prefix: ptr.To[int32](24)},
		},
		"a subnet with host bits begins after them": {
			in:   `{prefix: 24, pools: [{subnet: 10.0.0.64/24}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.65-10.0.0.255"}, Prefix: ptr.To[int32](24)},
		},
		"without start, end counts for nothing": {
			in:   `{prefix: 24, pools: [{subnet: 10.0.0.0/24, end: 10.0.0.9}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.1-10.0.0.255"}, Prefix: ptr.To[int32](24)},
		},
		"a subnet ends a range": {
			in:   `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.1.20, subnet: 10.0.0.0/25}, {start: 10.0.0.200, subnet: 10.0.0.128/25}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.127", "10.0.0.200-10.0.0.255"}, Prefix: ptr.To[int32](24)},
		},
		"the prefix is that of the subnet": {
			in:    `{pools: [{subnet: 10.0.0.0/24}]}`,
			want:  v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.1-10.0.0.255"}, Prefix: ptr.To[int32](24)},
			notes: []string{"spec.pools[0] has no prefix: its new addresses get that of its subnet, 24"},
		},
		"no prefix": {
			in:   `{pools: [{start: 10.0.0.10, end: 10.0.0.20}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}},
		},
		"networks of their own": {
			in: `{prefix: 24, gateway: 10.0.0.1, pools: [{start: 10.0.0.10, end: 10.0.0.20}, {start: 10.1.0.10, end: 10.1.3.20, prefix: 22, gateway: 10.1.0.1}, {start: 10.0.0.30, end: 10.0.0.30}]}`,
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"10.0.0.10-10.0.0.20", "10.1.0.10-10.1.3.20", "10.0.0.30"},
				Subnets:   []v1alpha1.Subnet{{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, {CIDR: "10.1.0.0/22", Gateway: "10.1.0.1"}},
			},
		},
		"two gateways in a network": {
			in:       `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.0.20, gateway: 10.0.0.1}, {start: 10.0.0.30, end: 10.0.0.40, gateway: 10.0.0.2}]}`,
			problems: []string{"spec.pools[0] and spec.pools[1] have different gateways in 10.0.0.0/24: a pool of this provider has one in each network"},
		},
		"a range over networks": {
			in:       `{pools: [{start: 10.0.0.10, end: 10.0.1.20, prefix: 24}, {start: 10.1.0.30, end: 10.1.0.40}]}`,
			problems: []string{"spec.pools[0] is in more than one network of the length 24, which other ranges do not have", "spec.pools[1] has no prefix, and others have: the network of its addresses is not known"},
		},
		"preAllocations, DNS servers, a Cluster": {
			in: `{clusterName: k, prefix: 64, dnsServers: ["fd00::53"], pools: [{start: "fd00::10", end: "fd00::20"}], preAllocations: {vip: "fd00::0011"}}`,
			want: v1alpha1.NetworkPoolSpec{
				Addresses: []string{"fd00::10-fd00::20"}, Prefix: ptr.To[int32](64), PreAllocations: v1alpha1.PreAllocations{"vip": "fd00::11"},
			},
			notes: []string{
				preAllocated, "dnsServers are not taken over: write them into networkData.services.dns of the new Metal3DataTemplates",
				"clusterName is not taken over: the new pool stays when Cluster k is deleted",
			},
		},
		"DNS servers of a range": {
			in:    `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.0.20, dnsServers: [10.0.0.53]}]}`,
			want:  v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24)},
			notes: []string{"dnsServers are not taken over: write them into networkData.services.dns of the new Metal3DataTemplates"},
		},
		"a preAllocation outside": {
			in:       `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.0.20}], preAllocations: {vip: 10.0.0.30}}`,
			notes:    []string{preAllocated},
			problems: []string{`this provider cannot serve this spec: spec.preAllocations[vip]: Invalid value: "10.0.0.30": is outside the pool; add it to addresses, or choose one that is inside`},
		},
		"a gateway elsewhere": {
			in:       `{prefix: 24, gateway: 10.9.0.1, pools: [{start: 10.0.0.10, end: 10.0.0.20}]}`,
			problems: []string{`this provider cannot serve this spec: spec.gateway: Invalid value: "10.9.0.1": is outside 10.0.0.0/24, the network of 10.0.0.10; correct prefix, or describe several networks with subnets`},
		},
		"two families": {
			in:       `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.0.20}, {start: "fd00::10", end: "fd00::20"}]}`,
			problems: []string{`this provider cannot serve this spec: spec.addresses[1]: Invalid value: "fd00::10-fd00::20": is of another address family than the rest of the pool; a pool has one family, use two pools`},
		},
		"no end": {
			in: `{pools: [{start: 10.0.0.10}, {end: 10.0.0.10}, {start: 10.0.0.20, end: 10.0.0.10}, {start: 10.0.0.20, subnet: 10.1.0.0/24, end: 10.0.0.30}]}`,
			problems: []string{
				"spec.pools[0] has neither end nor subnet, so it has no last address", "spec.pools[1] has neither start nor subnet",
				"spec.pools[2] has no address: it goes from 10.0.0.20 to 10.0.0.10", "spec.pools[3] has no address: 10.0.0.20, where it begins, is not in its subnet",
			},
		},
		"the order of a later version": {
			in:    `{prefix: 24, allocationStrategy: random, pools: [{start: 10.0.0.10, end: 10.0.0.20}]}`,
			want:  v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24)},
			notes: []string{"allocationStrategy random is not taken over: addresses are given in their order"},
		},
		"the default order of a later version": {
			in:   `{prefix: 24, allocationStrategy: sequential, pools: [{start: 10.0.0.10, end: 10.0.0.20}]}`,
			want: v1alpha1.NetworkPoolSpec{Addresses: []string{"10.0.0.10-10.0.0.20"}, Prefix: ptr.To[int32](24)},
		},
		"a field of a later version": {
			in:       `{prefix: 24, pools: [{start: 10.0.0.10, end: 10.0.0.20, without: [10.0.0.12]}]}`,
			problems: []string{`this import knows the fields of Metal3's IPAM v1.13, and not all of this spec: strict decoding error: unknown field "pools[0].without"`},
		},
		"no pools": {in: `{namePrefix: p}`, problems: []string{"it has no pools"}},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &unstructured.Unstructured{}
			text, err := yaml.YAMLToJSON([]byte(`{apiVersion: ipam.metal3.io/v1alpha1, kind: IPPool, spec: ` + c.in + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if err := pool.UnmarshalJSON(text); err != nil {
				t.Fatal(err)
			}
			got, notes, problems := ToNetworkPoolSpec(pool)
			if diff := cmp.Diff(c.problems, problems); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(c.notes, notes); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.want, got); diff != "" && len(problems) == 0 {
				t.Error(diff)
			}
		})
	}
}

// TestRangesMatchMetal3 compares the ranges with those that Metal3's own function counts through.
func TestRangesMatchMetal3(t *testing.T) {
	for _, in := range []string{
		`{start: 10.0.0.10, end: 10.0.0.13}`, `{subnet: 10.0.0.0/29}`, `{subnet: 10.0.0.3/29}`, `{subnet: 10.0.0.0/29, end: 10.0.0.3}`,
		`{start: 10.0.0.3, subnet: 10.0.0.0/29}`, `{start: 10.0.0.3, end: 10.0.0.5, subnet: 10.0.0.0/29}`, `{start: 10.0.0.3, end: 10.0.0.15, subnet: 10.0.0.0/29}`,
		`{start: "fd00::fe", end: "fd00::102"}`, `{subnet: "fd00::/126"}`, `{start: "fd00::1", subnet: "fd00::/126"}`, `{subnet: 10.0.0.1/32}`,
		`{start: 10.0.1.3, subnet: 10.0.0.0/29}`, `{start: 10.0.0.3, subnet: 10.0.1.0/29}`,
	} {
		pool := m3ipamv1.Pool{}
		if err := yaml.UnmarshalStrict([]byte(in), &pool); err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := 0; ; i++ {
			a, err := m3ipamv1.GetIPAddress(pool, i)
			if err != nil {
				break
			}
			want = append(want, string(a))
		}
		p, _ := (&translation{}).parseRange(&m3ipamv1.IPPoolSpec{Pools: []m3ipamv1.Pool{pool}}, 0)
		var got []string
		for a := p.From(); a.IsValid() && a.Compare(p.To()) <= 0; a = a.Next() {
			got = append(got, a.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", in, diff)
		}
	}
}
