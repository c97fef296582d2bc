package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("An IPAddress", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("that is deleted while its claim lives stays", func(ctx SpecContext) { // C15, I4
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.16.0.0/31").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		Expect(k8s.Delete(ctx, address.DeepCopy())).To(Succeed())
		// Claims that are created later show that the manager has observed the deletion.
		create(ctx, framework.MakeClaim(ns, "d").Pool("p").Obj())
		addressOf(ctx, ns, "d")
		create(ctx, framework.MakeClaim(ns, "e").Pool("p").Obj())
		refusalOf(ctx, ns, "e", "PoolExhausted")
		after := addressOf(ctx, ns, "c")
		Expect(after.UID).To(Equal(address.UID))
		Expect(after.DeletionTimestamp).NotTo(BeNil())
		Expect(after.Finalizers).To(Equal(address.Finalizers))
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		Expect(addressOf(ctx, ns, "e").Spec.Address).To(Equal(address.Spec.Address))
		expectAtRest(ctx, ns, 2)
		Expect(m.Stop()).To(Succeed())
	})

	It("whose finalizer and owner reference are removed gets them again", func(ctx SpecContext) { // C15
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.16.1.0/28").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		modify(ctx, address.DeepCopy(), func(a *ipamv1.IPAddress) { a.Finalizers, a.OwnerReferences = nil, a.OwnerReferences[:1] })
		Eventually(func(g Gomega) {
			after := addressOf(ctx, ns, "c")
			g.Expect(after.Finalizers).To(Equal(address.Finalizers))
			g.Expect(after.OwnerReferences).To(ConsistOf(address.OwnerReferences))
			g.Expect(after.UID).To(Equal(address.UID))
		}).Should(Succeed())
		Expect(m.Stop()).To(Succeed())
	})

	It("that a foreign finalizer keeps delays the deletion of its claim", func(ctx SpecContext) { // I3, R6
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.16.7.0/32").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		modify(ctx, address.DeepCopy(), func(a *ipamv1.IPAddress) { a.Finalizers = append(a.Finalizers, "example.com/dns") })
		deleteClaim(ctx, ns, "c")
		Eventually(func() []string { return addressNamed(ctx, ns, "c").Finalizers }).Should(ConsistOf("example.com/dns"))
		create(ctx, framework.MakeClaim(ns, "next").Pool("p").Obj())
		refusalOf(ctx, ns, "next", "PoolExhausted")
		expectRestMeanwhile(ctx, 1, m)
		kept := addressNamed(ctx, ns, "c")
		Expect(getClaim(ctx, ns, "c").UID).To(Equal(kept.OwnerReferences[0].UID)) // else it would be an IPAddress without a claim
		modify(ctx, kept, func(a *ipamv1.IPAddress) { a.Finalizers = nil })
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal(address.Spec.Address))
		expectAtRest(ctx, ns, 1)
		Expect(m.Stop()).To(Succeed())
	})

	It("whose claim was deleted by force is deleted after the grace period, and its address is taken until then", func(ctx SpecContext) { // R2, I2
		m := namespaceManager(ctx, ns, "--orphan-grace=1h")
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.16.2.0/32").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		Expect(m.Kill()).To(Succeed()) // a running manager would release the address before the claim is gone
		force(ctx, getClaim(ctx, ns, "c"))
		m = namespaceManager(ctx, ns, "--orphan-grace=1h")
		create(ctx, framework.MakeClaim(ns, "next").Pool("p").Obj())
		refusalOf(ctx, ns, "next", "PoolExhausted")
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns, "--orphan-grace=1s")
		Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal(address.Spec.Address))
		expectGone(ctx, address)
		Eventually(func() (float64, error) { return m.ReadMetric(ctx, "butler_ipam_voided_addresses_total") }).Should(BeEquivalentTo(1))
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("OrphanedAllocationGC"))
		expectAtRest(ctx, ns, 1)
		Expect(m.Stop()).To(Succeed())
	})

	It("is void at once when a new claim has the name of its own claim", func(ctx SpecContext) { // R2, U25
		m := namespaceManager(ctx, ns, "--orphan-grace=1h")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.16.3.0/32").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		before := addressOf(ctx, ns, "c")
		Expect(m.Kill()).To(Succeed())
		force(ctx, getClaim(ctx, ns, "c"))
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		m = namespaceManager(ctx, ns, "--orphan-grace=1h")
		after := addressOf(ctx, ns, "c")
		Expect(after.UID).NotTo(Equal(before.UID))
		Expect(after.OwnerReferences).To(ContainElement(claimOwner("c", getClaim(ctx, ns, "c").UID)))
		expectAtRest(ctx, ns, 1)
		Expect(m.Stop()).To(Succeed())
	})

	It("that no claim owns keeps its address and its name", func(ctx SpecContext) { // R2, R12, U27
		m := namespaceManager(ctx, ns)
		create(ctx, madeAddress(ns, "c", "10.16.4.0", 31), madeAddress(ns, "broken", "10.16.4.256", 31))
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.16.4.0/31").Obj()
		create(ctx, pool)
		// W12: the address that cannot be parsed affects only itself.
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 1, "availableIPs": 1})
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		Expect(refusalOf(ctx, ns, "c", "PoolNotReady")).To(ContainSubstring("Adopting")) // R10
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, pool)
		m = namespaceManager(ctx, ns)
		Expect(refusalOf(ctx, ns, "c", "AllocationFailed")).To(ContainSubstring("IPAddress " + ns + "/c"))
		create(ctx, framework.MakeClaim(ns, "d").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "d").Spec.Address).To(Equal("10.16.4.1"))
		force(ctx, &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}})
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.16.4.0"))
		Expect(m.Stop()).To(Succeed())
	})

	It("of another pool that has the name of a claim is named in the refusal of the claim", func(ctx SpecContext) { // W11, R12
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("q").Namespace(ns).CIDR("10.16.5.0/28").Obj()
		create(ctx, pool, madeAddress(ns, "c", "10.16.6.1", 24), framework.MakeClaim(ns, "c").Pool("q").Obj())
		Expect(refusalOf(ctx, ns, "c", "AllocationFailed")).To(ContainSubstring("IPAddress " + ns + "/c"))
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 1, "outOfRangeIPs": 0}) // the granted address waits with the claim
		force(ctx, &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}})
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.16.5.1"))
		expectAtRest(ctx, ns, 1)
		Expect(m.Stop()).To(Succeed())
	})
})
