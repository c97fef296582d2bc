package consumers

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// makeCluster returns a Cluster that claims can name.
func makeCluster(namespace, name string) *clusterv1.Cluster {
	c := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}}}
	c.Namespace, c.Name = namespace, name
	return c
}

var _ = Describe("An address", func() {
	for i := range consumers {
		c := &consumers[i]
		It("is given to "+c.name, func(ctx SpecContext) { // C32, C46
			ns := newNamespace(ctx)
			create(ctx, makeCluster(ns, "k"), makePool(ns, "p").CIDR("10.1.0.0/28").Gateway("10.1.0.1").Obj())
			// A machine of a Cluster; one whose owner has an empty label; one whose owner has no label (C30).
			for name, label := range map[string]map[string]string{"of-k": clusterLabel("k"), "empty": clusterLabel(""), "none": nil} {
				m := c.newMachineOf(ctx, label, ns, name, "p")
				got := m.waitUntilBound(ctx)[0]
				Expect(got.Bits).To(Equal(28))
				Expect(got.Gateway).To(Equal("10.1.0.1"))
				for key, value := range got.claim.GetLabels() {
					if key == clusterv1.ClusterNameLabel && value != "" {
						Expect(got.address.GetLabels()).To(HaveKeyWithValue(key, value))
					}
				}
			}
		})
	}

	for i := range consumers {
		c := &consumers[i]
		if c.onePool {
			continue
		}
		It("of each family is given to one machine of "+c.name, func(ctx SpecContext) { // C34
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "four").CIDR("10.2.0.0/24").Gateway("10.2.0.1").Obj(),
				makePool(ns, "six").CIDR("fd00:2::/64").Gateway("fe80::1").Obj())
			got := c.newMachine(ctx, ns, "m", "four", "six").waitUntilBound(ctx)
			Expect(got).To(HaveExactElements(
				And(HaveField("IP", "10.2.0.2"), HaveField("Bits", 24), HaveField("Gateway", "10.2.0.1")),
				And(HaveField("IP", "fd00:2::1"), HaveField("Bits", 64), HaveField("Gateway", "fe80::1")),
			))
		})
		if c.byPool {
			continue
		}
		It("and another of the same pool have one gateway on an interface of "+c.name, func(ctx SpecContext) { // C46: parse.go
			ns := newNamespace(ctx)
			create(ctx, makePool(ns, "p").CIDR("10.3.0.0/24").Gateway("10.3.0.1").Obj())
			Expect(c.newMachine(ctx, ns, "m", "p", "p").waitUntilBound(ctx)).To(HaveLen(2))
		})
	}

	It("of a pool without a gateway has no gateway field, not an empty one", func(ctx SpecContext) { // C46: a route would render it
		ns := newNamespace(ctx)
		create(ctx, makePool(ns, "p").CIDR("10.4.0.0/24").Obj())
		got := named("CAPV").newMachine(ctx, ns, "m", "p").waitUntilBound(ctx)[0]
		Expect(got.address.Object["spec"]).NotTo(HaveKey("gateway"))
	})

	It("is not given for a claim of v1beta1 that names no group", func(ctx SpecContext) { // C47: read as apiGroup ""
		ns := newNamespace(ctx)
		create(ctx, makePool(ns, "p").CIDR("10.5.0.0/24").Obj())
		claim := object(v1beta1.WithKind("IPAddressClaim"), ns, "no-group")
		claim.Object["spec"] = map[string]any{"poolRef": map[string]any{"kind": "NetworkPool", "name": "p"}}
		create(ctx, claim)
		// A pool is planned as a whole, the oldest claim first: a younger claim that is served shows that the older
		// one was skipped.
		named("CAPV").newMachine(ctx, ns, "m", "p").waitUntilBound(ctx)
		version := claim.GetResourceVersion()
		Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
		Expect(claim.GetResourceVersion()).To(Equal(version))
		Expect(claim.GetFinalizers()).To(BeEmpty())
		// And no finalizer delays its deletion.
		Expect(k8s.Delete(ctx, claim)).To(Succeed())
		expectGone(ctx, claim)
	})
})

var _ = Describe("While a Cluster is paused", func() {
	for i := range consumers {
		c := &consumers[i]
		probe := &machine{consumer: c, clusterLabel: clusterLabel("k")}
		if c.labels == nil || c.labels(probe)[clusterv1.ClusterNameLabel] != "k" {
			continue // its labels do not name the Cluster of a claim
		}
		It("the claims of "+c.name+" wait", func(ctx SpecContext) { // C31
			ns := newNamespace(ctx)
			spec, annotated := makeCluster(ns, "spec"), makeCluster(ns, "annotated")
			spec.Spec.Paused = ptr.To(true)
			annotated.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			create(ctx, makePool(ns, "p").CIDR("10.6.0.0/24").Gateway("10.6.0.1").Obj(), spec, annotated)
			waiting := []*machine{
				c.newMachineOf(ctx, clusterLabel("spec"), ns, "of-spec", "p"),
				c.newMachineOf(ctx, clusterLabel("annotated"), ns, "of-annotated", "p"),
			}
			for _, m := range waiting {
				_, err := m.reconcile(ctx)
				Expect(err).To(MatchError(errUnbound))
			}
			// The younger claim is served, the older ones were skipped.
			c.newMachine(ctx, ns, "free", "p").waitUntilBound(ctx)
			for _, m := range waiting {
				_, err := m.reconcile(ctx)
				Expect(err).To(MatchError(errUnbound))
				claim := m.claim(m.reads, 0)
				Expect(k8s.Get(ctx, keyOf(claim), claim)).To(Succeed())
				Expect(claim.GetFinalizers()).To(ConsistOf(m.claimFinalizers()))
				// It has no condition, except that it waits for its Cluster until the manager has seen that.
				Expect(readyOf(claim)).To(Or(BeZero(), HaveField("Message", ContainSubstring("waiting for Cluster"))))
			}
			update(ctx, spec, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
			update(ctx, annotated, func(c *clusterv1.Cluster) { c.Annotations = nil })
			for _, m := range waiting {
				m.waitUntilBound(ctx)
			}
		})
	}
})
