package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Without webhooks, every spec that the schema accepts reaches the reconciler.
var _ = Describe("A changed spec", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("that cuts off addresses in use reports them, and their claims keep them", func(ctx SpecContext) { // W13, U23, I4
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.13.0.0/28").Gateway("10.13.0.14").Obj()
		create(ctx, pool)
		before := map[string]*ipamv1.IPAddress{}
		for _, name := range []string{"a", "b", "c"} {
			create(ctx, framework.MakeClaim(ns, name).Pool("p").Obj())
			before[name] = addressOf(ctx, ns, name)
		}
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.CIDR = "10.13.0.8/29" })
		cutOff := func(n int64) {
			GinkgoHelper()
			Eventually(func() v1alpha1.NetworkPoolStatus { return *statusOf(ctx, pool) }).Should(And(
				HaveField("OutOfRangeIPs", n), HaveField("ObservedGeneration", pool.Generation)))
		}
		cutOff(3)
		Expect(pool.Status).To(And(HaveField("TotalIPs", int64(5)), HaveField("AllocatedIPs", int64(0)), HaveField("AvailableIPs", int64(5))))
		Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(
			ContainSubstring("3 addresses in use stay outside the spec until released: 10.13.0.1 of IPAddressClaim " + ns + "/a, 10.13.0.2 of IPAddressClaim " + ns + "/b, 10.13.0.3"))
		create(ctx, framework.MakeClaim(ns, "d").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "d").Spec.Address).To(Equal("10.13.0.9"))
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		deleteClaim(ctx, ns, "a")
		expectGone(ctx, before["a"])
		cutOff(2)
		for _, name := range []string{"b", "c"} {
			after := addressOf(ctx, ns, name)
			Expect(after.ResourceVersion).To(Equal(before[name].ResourceVersion), name)
		}
		expectAtRest(ctx, ns, 3)
		Expect(m.Stop()).To(Succeed())
	})

	It("that cuts off an address leaves it to its claim when the IPAddress is deleted by force", func(ctx SpecContext) { // C14, I4
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.13.1.0/28").Gateway("10.13.1.14").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		before := addressOf(ctx, ns, "c")
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.CIDR = "10.13.1.8/29" })
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		force(ctx, before.DeepCopy())
		after := recreated(ctx, before)
		Expect(after.Spec.Address).To(Equal(before.Spec.Address))
		Expect(after.Spec).To(Equal(before.Spec))
		Expect(m.Stop()).To(Succeed())
	})

	It("that cannot be served is reported, and allocated addresses stay", func(ctx SpecContext) { // W13, design: the API
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.13.2.1-10.13.2.9").Prefix(24).Obj()
		create(ctx, pool, framework.MakeClaim(ns, "a").Pool("p").Obj(), framework.MakeClaim(ns, "leaves").Pool("p").Obj())
		before := addressOf(ctx, ns, "a")
		addressOf(ctx, ns, "leaves")
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Reserved = []v1alpha1.ReservedRange{{Addresses: "10.99.0.0/24"}} })
		Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)).To(
			And(ContainSubstring("spec.reserved[0].addresses"), ContainSubstring("10.99.0.0/24"), ContainSubstring("not inside the pool")))
		create(ctx, framework.MakeClaim(ns, "b").Pool("p").Obj())
		Expect(refusalOf(ctx, ns, "b", "PoolNotReady")).To(ContainSubstring("spec.reserved[0].addresses"))
		expectRestMeanwhile(ctx, 1, m)
		deleteClaim(ctx, ns, "leaves")
		expectGone(ctx, framework.MakeClaim(ns, "leaves").Obj())
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("PoolValidationFailed"))
		// A manager that has never observed a spec that can be served.
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		refusalOf(ctx, ns, "c", "PoolNotReady")
		Expect(addressOf(ctx, ns, "a").ResourceVersion).To(Equal(before.ResourceVersion))
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Reserved[0].Addresses = "10.13.2.8/31" })
		for _, name := range []string{"b", "c"} {
			addressOf(ctx, ns, name)
		}
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		expectAtRest(ctx, ns, 3)
		Expect(m.Stop()).To(Succeed())
	})

	It("of a new pool that cannot be served is reported", func(ctx SpecContext) { // W13
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.13.3.1-10.13.3.9").Prefix(24).Reserved("10.99.0.0/24").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)
		refusalOf(ctx, ns, "c", "PoolNotReady")
		expectRestMeanwhile(ctx, 1, m)
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Reserved = nil })
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.13.3.1"))
		Expect(m.Stop()).To(Succeed())
	})

	It("that adds addresses serves the claims that wait", func(ctx SpecContext) { // W6, U6
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.13.4.0/32").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "a").Pool("p").Obj())
		addressOf(ctx, ns, "a")
		create(ctx, framework.MakeClaim(ns, "b").Pool("p").Obj())
		refusalOf(ctx, ns, "b", "PoolExhausted")
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.CIDR = "10.13.4.0/31" })
		Expect(addressOf(ctx, ns, "b").Spec.Address).To(Equal("10.13.4.1"))
		Expect(m.Stop()).To(Succeed())
	})
})
