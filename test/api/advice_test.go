package api_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func networkPoolOf(g *WithT, spec string) *unstructured.Unstructured {
	return poolOf(g, v1alpha1.NetworkPoolKind, spec)
}

// W29: the API server accepts each step that a refusal of the schema suggests, each by itself.
func TestRefusalsNameStepsThatHelp(t *testing.T) {
	const (
		carve  = `carve: {poolRef: {name: p}, prefixLength: 26}`
		tenant = `, type: loadbalancer, tenantClusterRef: {name: c, namespace: ns}}`
	)
	for name, c := range map[string]struct {
		of                func(*WithT, string) *unstructured.Unstructured // networkPoolOf if nil
		spec, wantMessage string
		do                []string
	}{
		"no addresses": {spec: `{}`, wantMessage: "set cidr, addresses, or both, or carve", do: []string{
			`{cidr: 10.0.0.0/24}`, `{addresses: [10.0.0.1]}`, `{cidr: 10.0.0.0/24, addresses: [10.0.1.1]}`, `{` + carve + `}`,
		}},
		"two families": {spec: `{addresses: [10.0.0.1, "fd00::1"]}`, wantMessage: "use one pool for each family", do: []string{
			`{addresses: [10.0.0.1]}`, `{addresses: ["fd00::1"]}`,
		}},
		"carved, with its own": {
			spec:        `{cidr: 10.0.0.0/24, addresses: [10.0.1.1], subnets: [{cidr: 10.0.0.0/25}], prefix: 24, gateway: 10.0.0.1, network: a, allowOverlap: true, ` + carve + `}`,
			wantMessage: "remove cidr, addresses, subnets, prefix, gateway, network and allowOverlap, or carve", do: []string{
				`{` + carve + `}`, `{cidr: 10.0.0.0/23, prefix: 23, gateway: 10.0.0.1, network: a, allowOverlap: true}`,
			},
		},
		"host bits":       {spec: `{cidr: 10.0.0.5/24}`, wantMessage: "write the first address of the network before the slash", do: []string{`{cidr: 10.0.0.0/24}`}},
		"a range":         {spec: `{addresses: [10.0.0.9-10.0.0.1]}`, wantMessage: "write the lower address first", do: []string{`{addresses: [10.0.0.1-10.0.0.9]}`}},
		"reserved":        {spec: `{cidr: 10.0.0.0/24, reserved: [{description: x}]}`, wantMessage: "set addresses", do: []string{`{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.0.1, description: x}]}`}},
		"reserved beside": {spec: `{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.1.1}]}`, wantMessage: "correct or remove the entry", do: []string{`{cidr: 10.0.0.0/24, reserved: [{addresses: 10.0.0.1}]}`, `{cidr: 10.0.0.0/24}`}},
		"a range of tenants": {
			spec: `{cidr: 10.0.0.0/24, tenantAllocation: {start: 10.0.0.9, end: 10.0.0.1}}`, wantMessage: "write the lower address as start",
			do: []string{`{cidr: 10.0.0.0/24, tenantAllocation: {start: 10.0.0.1, end: 10.0.0.9}}`},
		},
		"a pin beside":   {spec: `{cidr: 10.0.0.0/24, preAllocations: {a: 10.0.1.9}}`, wantMessage: "choose one that is inside", do: []string{`{cidr: 10.0.0.0/24, preAllocations: {a: 10.0.0.9}}`}},
		"the gateway":    {spec: `{cidr: 10.0.0.0/24, gateway: 10.0.0.1, preAllocations: {a: 10.0.0.1}}`, wantMessage: "choose another address", do: []string{`{cidr: 10.0.0.0/24, gateway: 10.0.0.1, preAllocations: {a: 10.0.0.2}}`}},
		"a subnet twice": {spec: `{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25}, {cidr: 10.0.0.0/25}]}`, wantMessage: "remove one of the two entries", do: []string{`{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/25}]}`}},
		"a gateway outside cidr": {
			spec:        `{cidr: 10.0.0.0/24, gateway: 10.0.1.1}`,
			wantMessage: "correct it, or, where the network is larger than cidr, set prefix to the length of the network, or describe several networks with subnets",
			do:          []string{`{cidr: 10.0.0.0/24, gateway: 10.0.0.1}`, `{cidr: 10.0.0.0/24, prefix: 23, gateway: 10.0.1.1}`, `{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/23, gateway: 10.0.1.1}]}`},
		},
		"a gateway of IPv6 outside cidr": {
			spec: `{cidr: "fd00::/64", gateway: "fd00:0:0:1::1"}`, wantMessage: "describe several networks with subnets, or use a link-local gateway (fe80::/10)",
			do: []string{`{cidr: "fd00::/64", subnets: [{cidr: "fd00::/63", gateway: "fd00:0:0:1::1"}]}`, `{cidr: "fd00::/64", gateway: "fe80::1"}`},
		},
		"a gateway outside prefix": {
			spec: `{cidr: 10.0.0.0/24, prefix: 23, gateway: 10.0.2.1}`, wantMessage: "correct prefix or gateway, or describe several networks with subnets",
			do: []string{`{cidr: 10.0.0.0/24, prefix: 22, gateway: 10.0.2.1}`, `{cidr: 10.0.0.0/24, prefix: 23, gateway: 10.0.1.1}`, `{cidr: 10.0.0.0/24, subnets: [{cidr: 10.0.0.0/22, gateway: 10.0.2.1}]}`},
		},
		"a gateway of IPv6 outside prefix": {
			spec: `{cidr: "fd00::/64", prefix: 64, gateway: "fd01::1"}`, wantMessage: "describe several networks with subnets, or use a link-local gateway (fe80::/10)",
			do: []string{`{cidr: "fd00::/64", subnets: [{cidr: "fd00::/8", gateway: "fd01::1"}]}`, `{cidr: "fd00::/64", prefix: 64, gateway: "fe80::1"}`},
		},

		"a pool twice": {of: configOf, spec: `{network: {poolRefs: [{name: p}, {name: p, priority: 9}]}}`, wantMessage: "remove one of the two entries", do: []string{
			`{network: {poolRefs: [{name: p}]}}`, `{network: {poolRefs: [{name: p, priority: 9}]}}`,
		}},
		"a pin that is reversed": {
			of: allocationOf, spec: `{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.3, endAddress: 10.0.0.2}` + tenant, wantMessage: "write the lower address as startAddress",
			do: []string{`{poolRef: {name: p}, pinnedRange: {startAddress: 10.0.0.2, endAddress: 10.0.0.3}` + tenant},
		},
		"a length for a Cluster": {of: allocationOf, spec: `{poolRef: {name: p}, prefixLength: 26` + tenant, wantMessage: "use count", do: []string{`{poolRef: {name: p}, count: 64` + tenant}},
		"a pool as a Cluster": {
			of: allocationOf, spec: `{poolRef: {name: p}, type: loadbalancer, childPoolRef: {name: c}, tenantClusterRef: {name: c, namespace: ns}}`, wantMessage: "use tenantClusterRef",
			do: []string{`{poolRef: {name: p}` + tenant},
		},

		"no range": {of: clusterCIDROf, spec: flow(bits8), wantMessage: "set ipv4, ipv6, or both; or, with clusterSelector, ipv4Pool, ipv6Pool", do: []string{
			flow(bits8, v4), flow(bits8, v6), flow(bits8, v4, v6), flow(bits8, all, pool4), flow(bits8, all, pool6),
		}},
		"blocks for its own":  {of: clusterCIDROf, spec: flow(bits8, pool4), wantMessage: "set clusterSelector, or name the range in ipv4 or ipv6", do: []string{flow(bits8, all, pool4), flow(bits8, v4), flow(bits8, v6)}},
		"blocks of all":       {of: clusterCIDROf, spec: flow(`perNodeHostBits: 28`, all, pool4), wantMessage: "use fewer, or fewer perNodeHostBits", do: []string{flow(`perNodeHostBits: 28`, all, `ipv4Pool: {name: pods, nodesPerBlock: 8}`), flow(bits8, all, pool4)}},
		"no room":             {of: clusterCIDROf, spec: flow(`perNodeHostBits: 17`, v4), wantMessage: "use fewer host bits, or a larger CIDR", do: []string{flow(`perNodeHostBits: 16`, v4), flow(`perNodeHostBits: 17`, `ipv4: 10.0.0.0/15`)}},
		"no room of IPv6":     {of: clusterCIDROf, spec: flow(`perNodeHostBits: 65`, v6), wantMessage: "use fewer host bits, or a larger CIDR", do: []string{flow(`perNodeHostBits: 64`, v6), flow(`perNodeHostBits: 65`, `ipv6: "fd00::/63"`)}},
		"host bits of a CIDR": {of: clusterCIDROf, spec: flow(bits8, `ipv4: 10.1.2.0/16`), wantMessage: "write the first address of the network before the slash", do: []string{flow(bits8, v4)}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			if c.of == nil {
				c.of = networkPoolOf
			}
			g.Expect(k8s.Create(t.Context(), c.of(g, c.spec), client.DryRunAll)).To(MatchError(ContainSubstring(c.wantMessage)))
			for _, done := range c.do {
				g.Expect(k8s.Create(t.Context(), c.of(g, done), client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed(), done)
			}
		})
	}
}

// An immutable field can be changed nevertheless by a new object: beside the existing one, or instead of it.
func TestImmutableFieldsChangeByRecreation(t *testing.T) { // W29
	for name, c := range map[string]struct {
		of            func(*WithT, string) *unstructured.Unstructured
		before, after string
		wantMessage   string
		// first reports whether the existing object must be deleted first, because the new one has the same name.
		first bool
	}{
		"a pool":                {of: networkPoolOf, before: `{cidr: "fd00::/48", allocationPrefixLength: 64}`, after: `{cidr: "fd00::/48", allocationPrefixLength: 60}`, wantMessage: "make a new pool"},
		"the parent of a pool":  {of: networkPoolOf, before: `{carve: {poolRef: {name: p}, prefixLength: 26}}`, after: `{carve: {poolRef: {name: q}, prefixLength: 26}}`, wantMessage: "make a new pool"},
		"a pool with addresses": {of: networkPoolOf, before: `{carve: {poolRef: {name: p}, prefixLength: 26}}`, after: `{cidr: 10.0.0.0/24}`, wantMessage: "make a new pool"},
		"a block": {
			of: allocationOf, before: `{poolRef: {name: p}, count: 4, type: nodes, tenantClusterRef: {name: c, namespace: ns}}`, after: `{poolRef: {name: p}, count: 8, type: nodes, tenantClusterRef: {name: c, namespace: ns}}`,
			wantMessage: "create another IPAllocation under another name, and delete this one if it is not needed any more",
		},
		"a range of Pods":    {of: clusterCIDROf, before: flow(bits8, v4), after: flow(`perNodeHostBits: 7`, v4), wantMessage: "create another ClusterCIDR, and delete this one"},
		"a lease":            {of: leaseOf, before: `{poolRef: {name: p}}`, after: `{poolRef: {name: q}}`, wantMessage: "delete this IPLease and create another one", first: true},
		"an address, leased": {of: leaseOf, before: `{poolRef: {name: p}}`, after: `{poolRef: {name: p}, address: 10.0.0.1}`, wantMessage: "delete this IPLease and create another one", first: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			created, another := c.of(g, c.before), c.of(g, c.after)
			g.Expect(k8s.Create(t.Context(), created)).To(Succeed())
			changed := created.DeepCopy()
			changed.Object["spec"] = another.Object["spec"]
			g.Expect(k8s.Update(t.Context(), changed)).To(MatchError(ContainSubstring(c.wantMessage)))
			if c.first {
				g.Expect(k8s.Delete(t.Context(), created)).To(Succeed())
				another.SetName(created.GetName())
			}
			g.Expect(k8s.Create(t.Context(), another)).To(Succeed())
			t.Cleanup(func() { g.Expect(k8s.Delete(context.WithoutCancel(t.Context()), another)).To(Succeed()) })
			if c.first {
				return
			}
			g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(created), created)).To(Succeed(), "the other one stays")
			g.Expect(k8s.Delete(t.Context(), created)).To(Succeed())
			g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(created), created)).To(Satisfy(apierrors.IsNotFound))
		})
	}
}
