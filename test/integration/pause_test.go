package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A pause", Ordered, func() {
	var ns string

	BeforeAll(func(ctx SpecContext) {
		startManager(ctx)
	})
	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("of a claim holds that claim only, until it ends", func(ctx SpecContext) { // contract B.10, W9
		claim := framework.MakeClaim(ns, "held").Pool("p").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.0.0/24").Obj(), claim, framework.MakeClaim(ns, "free").Pool("p").Obj())
		// A pool is planned as a whole, the oldest first: the younger one is served, the older one was passed by.
		Expect(addressOf(ctx, ns, "free").Spec.Address).To(Equal("10.10.0.1"))
		expectUntouched(ctx, ns, "held")
		setPaused(ctx, claim, false)
		Expect(addressOf(ctx, ns, "held").Spec.Address).To(Equal("10.10.0.2"))
	})

	It("of a claim holds it after a restart too", func(ctx SpecContext) { // W9: every restart maps pools to claims
		claim := framework.MakeClaim(ns, "held").Pool("p").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.1.0/24").Obj(), claim)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		expectUntouched(ctx, ns, "held")
		Expect(m.Stop()).To(Succeed())
	})

	It("of a pool holds all of its claims, until it ends", func(ctx SpecContext) { // contract B.10
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.2.0/24").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj(),
			framework.MakePool("q").Namespace(ns).CIDR("10.10.3.0/24").Obj(), framework.MakeClaim(ns, "other").Pool("q").Obj())
		addressOf(ctx, ns, "other")
		Consistently(func() []string { return getClaim(ctx, ns, "c").Finalizers }).WithTimeout(1e9).Should(BeEmpty())
		expectUntouched(ctx, ns, "c")
		setPaused(ctx, pool, false)
		addressOf(ctx, ns, "c")
	})

	It("of a claim holds its release", func(ctx SpecContext) { // contract C.17
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.4.0/24").Obj(),
			framework.MakeClaim(ns, "held").Pool("p").Obj(), framework.MakeClaim(ns, "free").Pool("p").Obj())
		address := addressOf(ctx, ns, "held")
		addressOf(ctx, ns, "free")
		claim := getClaim(ctx, ns, "held")
		setPaused(ctx, claim, true)
		deleteClaim(ctx, ns, "held")
		deleteClaim(ctx, ns, "free")
		expectGone(ctx, framework.MakeClaim(ns, "free").Obj())
		Expect(getClaim(ctx, ns, "held").Finalizers).To(ConsistOf("ipam.cluster.x-k8s.io/ReleaseAddress"))
		still := address.DeepCopy()
		Expect(k8s.Get(ctx, keyOf(address), still)).To(Succeed())
		Expect(still.DeletionTimestamp).To(BeNil())
		setPaused(ctx, claim, false)
		expectGone(ctx, claim)
		expectGone(ctx, address)
	})

	It("of a Cluster holds the release of its claims, and its absence does not", func(ctx SpecContext) { // contract C.17, peers 21
		cluster := makeCluster(ns, "k", false)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.5.0/24").Obj(), cluster,
			framework.MakeClaim(ns, "a").Pool("p").Cluster("k").Obj(), framework.MakeClaim(ns, "b").Pool("p").Cluster("k").Obj(),
			framework.MakeClaim(ns, "free").Pool("p").Obj())
		for _, name := range []string{"a", "b", "free"} {
			addressOf(ctx, ns, name)
		}
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		m := namespaceManager(ctx, ns) // it has the paused Cluster from the start: nothing to race with
		for _, name := range []string{"a", "free"} {
			deleteClaim(ctx, ns, name)
		}
		expectGone(ctx, framework.MakeClaim(ns, "free").Obj())
		Expect(getClaim(ctx, ns, "a").Finalizers).NotTo(BeEmpty())
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
		expectGone(ctx, framework.MakeClaim(ns, "a").Obj())
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		deleteClaim(ctx, ns, "b")
		expectGone(ctx, framework.MakeClaim(ns, "b").Obj())
		Expect(m.Stop()).To(Succeed())
	})

	It("of a pool holds the release of its claims", func(ctx SpecContext) { // contract B.10, C.17: the in-cluster provider does
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.6.0/24").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		setPaused(ctx, pool, true)
		m := namespaceManager(ctx, ns) // it has the paused pool from the start: nothing to race with
		deleteClaim(ctx, ns, "c")
		Consistently(func() []string { return getClaim(ctx, ns, "c").Finalizers }).WithTimeout(2e9).ShouldNot(BeEmpty())
		setPaused(ctx, pool, false)
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		Expect(m.Stop()).To(Succeed())
	})

	It("of a claim keeps what others change on it", func(ctx SpecContext) { // contract B.10
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.7.0/24").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		claim := getClaim(ctx, ns, "c")
		setPaused(ctx, claim, true)
		modifyStatus(ctx, claim, func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "changed" })
		create(ctx, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		Consistently(func() string { return getClaim(ctx, ns, "c").Status.AddressRef.Name }).WithTimeout(1e9).Should(Equal("changed"))
		setPaused(ctx, claim, false)
		Eventually(func() string { return getClaim(ctx, ns, "c").Status.AddressRef.Name }).Should(Equal("c"))
	})
})
