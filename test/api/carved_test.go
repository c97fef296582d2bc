package api_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestBadCarvedPoolsAreRefusedWhenApplied(t *testing.T) { // C26
	const from = `poolRef: {kind: GlobalNetworkPool, name: p}`
	for name, c := range map[string]struct{ spec, want string }{
		"no parent":            {`{carve: {prefixLength: 26}}`, "spec.carve.poolRef"},
		"no size":              {`{carve: {` + from + `}}`, "spec.carve.prefixLength"},
		"own addresses":        {`{cidr: 10.0.0.0/24, carve: {` + from + `, prefixLength: 26}}`, "remove cidr, addresses, subnets"},
		"own gateway":          {`{gateway: 10.0.0.1, carve: {` + from + `, prefixLength: 26}}`, "remove cidr, addresses, subnets"},
		"own network":          {`{network: vrf-a, carve: {` + from + `, prefixLength: 26}}`, "remove cidr, addresses, subnets"},
		"more min than max":    {`{carve: {` + from + `, prefixLength: 26, blocks: {min: 3, max: 2}}}`, "min is larger than max"},
		"min beyond max alone": {`{carve: {` + from + `, prefixLength: 26, blocks: {min: 17}}}`, "min is larger than max"},
		"too many":             {`{carve: {` + from + `, prefixLength: 26, blocks: {max: 129}}}`, "spec.carve.blocks.max"},
		"none at all":          {`{carve: {` + from + `, prefixLength: 26, blocks: {min: 0, max: 0}}}`, "spec.carve.blocks.max"},
		"another network":      {`{carve: {` + from + `, prefixLength: 26, network: Bridged}}`, "spec.carve.network"},
		"blocks below a claim": {`{allocationPrefixLength: 56, carve: {` + from + `, prefixLength: 60}}`, "has to hold at least one prefix"},
		"a size of no family":  {`{cidr: 10.0.0.0/24, carvable: {prefixLengths: [129]}}`, "spec.carvable.prefixLengths"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range kinds {
				g := NewWithT(t)
				err := k8s.Create(t.Context(), poolOf(g, kind, c.spec), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(err).To(MatchError(ContainSubstring(c.want)), kind)
			}
		})
	}
	t.Run("a global pool of a local one", func(t *testing.T) {
		g := NewWithT(t)
		pool := poolOf(g, v1alpha1.GlobalNetworkPoolKind, `{carve: {poolRef: {kind: NetworkPool, name: p}, prefixLength: 26}}`)
		g.Expect(k8s.Create(t.Context(), pool, client.DryRunAll)).To(MatchError(ContainSubstring("must name a GlobalNetworkPool")))
	})
}

func TestGoodCarvedPoolsApply(t *testing.T) {
	const from = `poolRef: {kind: GlobalNetworkPool, name: p}`
	for name, spec := range map[string]string{
		"the least":    `{carve: {` + from + `, prefixLength: 26}}`,
		"empty texts":  `{cidr: "", gateway: "", network: "", carve: {` + from + `, prefixLength: 26}}`,
		"the most":     `{carve: {` + from + `, prefixLength: 26, blocks: {min: 0, max: 128}, minAvailable: 8, network: Routed, gateway: Last}, carvable: {}}`,
		"prefixes":     `{allocationPrefixLength: 64, carve: {` + from + `, prefixLength: 56}}`,
		"with its own": `{carve: {` + from + `, prefixLength: 26}, reserved: [{cidr: 10.0.0.0/28}], preAllocations: {vip: 10.0.0.20}, addressReuseGracePeriodSeconds: 60}`,
		"a parent":     `{cidr: 10.0.0.0/12, carvable: {maxBlocksPerNamespace: 0, prefixLengths: [24, 26]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range kinds {
				g := NewWithT(t)
				g.Expect(k8s.Create(t.Context(), poolOf(g, kind, spec), client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed(), kind)
			}
		})
	}
}

// Addresses of the parent are in use, so the parent of a pool cannot be changed.
func TestCarvedPoolParentIsImmutable(t *testing.T) {
	const before = `{carve: {poolRef: {name: p}, prefixLength: 26}}`
	for name, c := range map[string]struct{ after, want string }{
		"another parent": {`{carve: {poolRef: {name: q}, prefixLength: 26}}`, "is immutable"},
		"own addresses":  {`{cidr: 10.0.0.0/24}`, "cannot be added or removed later"},
		"another size":   {after: `{carve: {poolRef: {name: p}, prefixLength: 27, blocks: {min: 2, max: 9}, minAvailable: 3, network: Routed}}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pool := poolOf(g, v1alpha1.NetworkPoolKind, before)
			g.Expect(k8s.Create(t.Context(), pool)).To(Succeed())
			pool.Object["spec"] = poolOf(g, v1alpha1.NetworkPoolKind, c.after).Object["spec"]
			if err := k8s.Update(t.Context(), pool); c.want != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}
