package integration

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// makeBlock returns a block as the owner of a carved pool would create it by hand.
func makeBlock(parent *v1alpha1.PoolReference, child *v1alpha1.PoolReference, ns, name string, prefixLength int32) *v1alpha1.IPAllocation {
	return &v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.IPAllocationSpec{
			PoolRef: *parent, Type: v1alpha1.PoolAllocation, ChildPoolRef: child, PrefixLength: ptr.To(prefixLength),
		},
	}
}

var _ = Describe("Permission to carve a pool", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, map[string]string{"tier": "prod"}) })

	It("depends on its namespaceSelector and spec.carvable", func(ctx SpecContext) {
		parent := framework.MakeGlobalPool(ns).CIDR("10.62.0.0/24").AllocateReservedAddresses().Obj()
		parent.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "dev"}}
		parent.Spec.Carvable = &v1alpha1.Carvable{MaxBlocksPerNamespace: ptr.To[int32](2), PrefixLengths: []int32{28}}
		create(ctx, parent)
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, parent))).To(Succeed()) })
		platformNamespace := newNamespace(ctx, nil)
		startManager(ctx, "--block-namespace="+platformNamespace)
		carved := func(name string, prefixLength, least int32) *v1alpha1.NetworkPool {
			pool := framework.MakePool(name).Namespace(ns).Carve(v1alpha1.GlobalNetworkPoolKind, ns, prefixLength, least, 4).Obj()
			create(ctx, pool)
			return pool
		}
		refused := func(pool *v1alpha1.NetworkPool, why string) {
			GinkgoHelper()
			Eventually(func() string {
				return expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ParentNotReadyReason)
			}).Should(ContainSubstring(why))
		}
		first := carved("first", 28, 1)
		refused(first, "namespace")
		modify(ctx, parent, func(p *v1alpha1.GlobalNetworkPool) { p.Spec.NamespaceSelector = nil })
		expectCondition(ctx, first, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		refused(carved("large", 26, 1), "spec.carvable.prefixLengths allows /28")
		second := carved("second", 28, 2)
		Eventually(func() []string { return blocksOf(ctx, second) }).Should(HaveLen(1))
		Eventually(func() string {
			return expectCondition(ctx, second, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		}).Should(ContainSubstring("have as many blocks of GlobalNetworkPool " + ns + " as its spec.carvable.maxBlocksPerNamespace allows: 2"))

		By("carving as many blocks for another namespace, and any number for the platform's own pools")
		other := newNamespace(ctx, nil)
		third := framework.MakePool("third").Namespace(other).Carve(v1alpha1.GlobalNetworkPoolKind, ns, 28, 2, 4).Obj()
		platform := framework.MakeGlobalPool(ns+"-platform").Carve(v1alpha1.GlobalNetworkPoolKind, ns, 28, 3, 4).Obj()
		create(ctx, third, platform)
		Eventually(func() []string { return blocksOf(ctx, third) }).Should(HaveLen(2))
		Eventually(func() []string { return blocksOf(ctx, platform) }).Should(HaveLen(3))
		remove(ctx, platform, third)
		modify(ctx, parent, func(p *v1alpha1.GlobalNetworkPool) { p.Spec.Carvable.MaxBlocksPerNamespace = nil })
		Eventually(func() []string { return blocksOf(ctx, second) }).Should(HaveLen(2))

		By("deleting the parent: it stays while pools are carved from it, and names them")
		Expect(k8s.Delete(ctx, parent)).To(Succeed())
		Expect(expectCondition(ctx, parent, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason)).
			To(And(ContainSubstring(ns+"/first"), ContainSubstring(ns+"/second")))
		create(ctx, framework.MakeClaim(ns, "c").Pool("first").Obj())
		addressOf(ctx, ns, "c") // the carved pool stays in service
		deleteClaim(ctx, ns, "c")
		Expect(k8s.DeleteAllOf(ctx, &v1alpha1.NetworkPool{}, client.InNamespace(ns))).To(Succeed())
		expectGone(ctx, parent)
	})

	It("is denied to the pool itself, directly or through other pools, and to one more than four levels below", func(ctx SpecContext) {
		a := framework.MakePool("a").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "b", 28, 1, 4).Carvable().Obj()
		b := framework.MakePool("b").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "a", 28, 1, 4).Carvable().Obj()
		create(ctx, a, b, framework.MakePool("l0").Namespace(ns).CIDR("10.63.0.0/24").AllocateReservedAddresses().Carvable().Obj())
		m := namespaceManager(ctx, ns)
		for _, pool := range []*v1alpha1.NetworkPool{a, b} {
			Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ParentNotReadyReason)).To(ContainSubstring("itself"))
		}
		expectRestMeanwhile(ctx, 2, m)
		var last *v1alpha1.NetworkPool
		for level := range 5 {
			last = framework.MakePool(fmt.Sprintf("l%d", level+1)).Namespace(ns).AllocateReservedAddresses().Carvable().
				Carve(v1alpha1.NetworkPoolKind, fmt.Sprintf("l%d", level), int32(25+level), 0, 4).Obj()
			create(ctx, last)
		}
		create(ctx, framework.MakeClaim(ns, "c4").Pool("l4").Obj())
		addressOf(ctx, ns, "c4")
		create(ctx, framework.MakeClaim(ns, "c5").Pool("l5").Obj())
		Expect(refusalOf(ctx, ns, "c5", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("4"))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})
})

var _ = Describe("A carved pool", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("grants IPv6 prefixes from blocks of IPv6 prefixes", func(ctx SpecContext) {
		create(ctx, framework.MakePool("site").Namespace(ns).CIDR("fd00:60::/48").PrefixPerClaim(64).AllocateReservedAddresses().Carvable().Obj(),
			framework.MakePool("team").Namespace(ns).PrefixPerClaim(64).Carve(v1alpha1.NetworkPoolKind, "site", 56, 1, 2).Obj())
		m := namespaceManager(ctx, ns)
		for i := range 3 {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("team").Obj())
		}
		for i := range 3 {
			a := addressOf(ctx, ns, fmt.Sprintf("c%d", i))
			Expect(*a.Spec.Prefix).To(BeEquivalentTo(64))
			Expect(a.Spec.Address).To(HavePrefix("fd00:60:"))
		}
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("has each block as a subnet when its network is Routed", func(ctx SpecContext) {
		team := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 29, 2, 2).Obj()
		team.Spec.Carve.Network, team.Spec.Carve.Gateway = v1alpha1.RoutedNetwork, v1alpha1.LastGateway
		create(ctx, framework.MakePool("site").Namespace(ns).CIDR("10.64.0.0/24").Gateway("10.64.0.1").AllocateReservedAddresses().Carvable().Obj(), team)
		m := namespaceManager(ctx, ns)
		Eventually(func() []v1alpha1.CarvedBlock { return statusOf(ctx, team).Blocks }).Should(HaveLen(2))
		for _, b := range statusOf(ctx, team).Blocks {
			Expect(b.Prefix).To(BeEquivalentTo(29))
			Expect(b.Gateway).To(HavePrefix("10.64.0."))
		}
		for i := range 10 { // each block has a network, a broadcast and a gateway address
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("team").Obj())
		}
		seen := map[string]int{}
		for i := range 10 {
			a := addressOf(ctx, ns, fmt.Sprintf("c%d", i))
			Expect(*a.Spec.Prefix).To(BeEquivalentTo(29))
			seen[a.Spec.Gateway]++
		}
		Expect(seen).To(HaveLen(2))
		create(ctx, framework.MakeClaim(ns, "late").Pool("team").Obj())
		Expect(refusalOf(ctx, ns, "late", ipamv1.IPAddressClaimReadyPoolExhaustedReason)).To(ContainSubstring("spec.carve.blocks.max"))
		Expect(m.Stop()).To(Succeed())
	})

	It("and a foreign pool that overlaps its blocks both report that, and only the carved pool grants", func(ctx SpecContext) { // R11, C26
		site := framework.MakePool("site").Namespace(ns).CIDR("10.65.0.0/24").AllocateReservedAddresses().Carvable().Obj()
		team := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 28, 1, 2).Obj()
		sibling := framework.MakePool("sibling").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 28, 1, 2).Obj()
		foreign := framework.MakePool("foreign").Namespace(ns).CIDR("10.65.0.0/28").Obj()
		createPair(ctx, site, foreign)
		m := namespaceManager(ctx, ns)
		// Until the foreign pool has yielded, the site excludes the addresses of both when it carves.
		Eventually(func() []v1alpha1.YieldedPool { return statusOf(ctx, foreign).Yields }).Should(HaveLen(1))
		expectCondition(ctx, site, v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.OverlapReason)
		expectNumbers(ctx, site, map[string]int64{"availableIPs": 256})
		create(ctx, team, sibling)
		Eventually(func() []string { return append(blocksOf(ctx, team), blocksOf(ctx, sibling)...) }).Should(ConsistOf("10.65.0.0/28", "10.65.0.16/28"))
		over, beside := team, sibling
		if blocksOf(ctx, team)[0] != "10.65.0.0/28" {
			over, beside = sibling, team
		}
		for _, pool := range []*v1alpha1.NetworkPool{site, foreign, over} {
			expectCondition(ctx, pool, v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.OverlapReason)
		}
		expectCondition(ctx, beside, v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason)
		create(ctx, framework.MakeClaim(ns, "f").Pool("foreign").Obj(), framework.MakeClaim(ns, "c").Pool(over.Name).Obj())
		addressOf(ctx, ns, "c")
		refusalOf(ctx, ns, "f", ipamv1.IPAddressClaimReadyPoolNotReadyReason)
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("may have a block of a certain range that a user creates, and drains it when the user deletes it", func(ctx SpecContext) {
		team := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 29, 0, 4).AllocateReservedAddresses().Obj()
		create(ctx, framework.MakePool("site").Namespace(ns).CIDR("10.66.0.0/24").AllocateReservedAddresses().Carvable().Obj(), team)
		m := namespaceManager(ctx, ns)
		block := makeBlock(&v1alpha1.PoolReference{Name: "site"}, &v1alpha1.PoolReference{Name: "team"}, ns, "vips", 28)
		block.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: "10.66.0.96", EndAddress: "10.66.0.111"}
		stray := makeBlock(&v1alpha1.PoolReference{Name: "site"}, &v1alpha1.PoolReference{Name: "missing"}, ns, "stray", 28)
		create(ctx, block, stray)
		Eventually(func(g Gomega) {
			o := &v1alpha1.IPAllocation{}
			g.Expect(k8s.Get(ctx, keyOf(block), o)).To(Succeed())
			g.Expect(blocksOf(ctx, team)).To(HaveLen(1), "%+v %+v", o.ObjectMeta.Finalizers, o.Status)
		}).Should(Succeed())
		create(ctx, framework.MakeClaim(ns, "c").Pool("team").Obj())
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.66.0.96"))
		Expect(blocksOf(ctx, team)).To(ConsistOf("10.66.0.96/28"))
		Expect(refusedBlock(ctx, stray, v1alpha1.AllocationPending, ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("does not exist"))

		Expect(k8s.Delete(ctx, block)).To(Succeed())
		Eventually(func() bool { return statusOf(ctx, team).Blocks[0].Draining }).Should(BeTrue())
		create(ctx, framework.MakeClaim(ns, "next").Pool("team").Obj())
		Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal("10.66.0.0")) // from a block that was requested for it
		Expect(k8s.Get(ctx, keyOf(block), block)).To(Succeed())
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, block)
		Eventually(func() []string { return blocksOf(ctx, team) }).Should(ConsistOf("10.66.0.0/29"))
		Expect(m.Stop()).To(Succeed())
	})

	It("that is deleted by force leaves orphaned blocks, which are deleted after the grace period", func(ctx SpecContext) {
		team := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "site", 29, 2, 4).AllocateReservedAddresses().Obj()
		site := framework.MakePool("site").Namespace(ns).CIDR("10.67.0.0/28").AllocateReservedAddresses().Carvable().Obj()
		create(ctx, site, team)
		m := namespaceManager(ctx, ns, "--orphan-grace=1s")
		Eventually(func() []string { return blocksOf(ctx, team) }).Should(HaveLen(2))
		Eventually(func(g Gomega) {
			list := &v1alpha1.IPAllocationList{}
			g.Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			for _, a := range list.Items {
				g.Expect(a.Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.PoolSeenCondition), HaveField("Status", metav1.ConditionTrue))))
			}
		}).Should(Succeed())
		Expect(m.Stop()).To(Succeed()) // a manager that sees the pool in deletion would release the blocks
		force(ctx, team)
		m = namespaceManager(ctx, ns, "--orphan-grace=1s")
		list := &v1alpha1.IPAllocationList{}
		Eventually(func(g Gomega) { // the pool is gone: grants from it may be in flight, for 75 s
			g.Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			for _, a := range list.Items {
				g.Expect(a.DeletionTimestamp).NotTo(BeNil())
			}
		}).Should(Succeed())
		Expect(list.Items).To(HaveLen(2))
		Eventually(func() []string { return eventsOf(ctx, site) }).Should(ContainElement("OrphanedAllocationGC"))
		Expect(m.Stop()).To(Succeed())
	})
})
