package integration

import (
	"context"
	"fmt"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// createPair creates two pools in this order, at least a second apart: creation times are in whole seconds. No
// manager may run, or the younger one cannot be created again.
func createPair(ctx context.Context, older, younger v1alpha1.Pool) {
	GinkgoHelper()
	create(ctx, older)
	Eventually(func(g Gomega) {
		younger.SetResourceVersion("")
		younger.SetUID("")
		g.Expect(k8s.Create(ctx, younger)).To(Succeed())
		if !older.GetCreationTimestamp().Time.Before(younger.GetCreationTimestamp().Time) {
			g.Expect(k8s.Delete(ctx, younger)).To(Succeed())
			g.Expect(younger.GetName()).To(BeEmpty(), "created within the same second")
		}
	}).Should(Succeed())
}

var _ = Describe("Two pools with the same addresses", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	expectOverlap := func(ctx SpecContext, pool v1alpha1.Pool, other string) {
		GinkgoHelper()
		Expect(expectCondition(ctx, pool, v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.OverlapReason)).To(
			And(ContainSubstring(other), ContainSubstring("spec.network")))
	}

	It("both report the overlap, and the younger one grants nothing", func(ctx SpecContext) { // R11, W13, U3
		older := framework.MakePool("older").Namespace(ns).CIDR("10.14.0.0/28").Obj()
		younger := framework.MakePool("younger").Namespace(ns).Addresses("10.14.0.9-10.14.0.20").Obj()
		createPair(ctx, older, younger)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "o").Pool("older").Obj(), framework.MakeClaim(ns, "y").Pool("younger").Obj())
		addressOf(ctx, ns, "o")
		Expect(refusalOf(ctx, ns, "y", "PoolNotReady")).To(ContainSubstring("NetworkPool " + ns + "/older has 10.14.0.9"))
		expectOverlap(ctx, older, "younger")
		expectOverlap(ctx, younger, "older")
		expectCondition(ctx, older, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		expectCondition(ctx, younger, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.OverlapReason)
		for _, pool := range []v1alpha1.Pool{older, younger} {
			Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("PoolOverlap"))
		}
		expectRestMeanwhile(ctx, 2, m)
		Expect(m.Stop()).To(Succeed())
	})

	It("both report the overlap when the second one is created", func(ctx SpecContext) { // R11
		older := framework.MakePool("older").Namespace(ns).CIDR("10.14.1.0/28").Obj()
		younger := framework.MakePool("younger").Namespace(ns).CIDR("10.14.1.0/29").Obj()
		m := namespaceManager(ctx, ns)
		create(ctx, older)
		expectCondition(ctx, older, v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason)
		create(ctx, younger)
		expectOverlap(ctx, younger, "older")
		expectOverlap(ctx, older, "younger")
		Expect(m.Stop()).To(Succeed())
	})

	It("both serve again when the overlap ends", func(ctx SpecContext) { // R11, W6: woken by what happened
		older := framework.MakePool("older").Namespace(ns).CIDR("10.14.2.0/28").Obj()
		younger := framework.MakePool("younger").Namespace(ns).CIDR("10.14.2.0/29").Obj()
		createPair(ctx, older, younger)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "y").Pool("younger").Obj())
		refusalOf(ctx, ns, "y", "PoolNotReady")
		modify(ctx, older, func(p *v1alpha1.NetworkPool) { p.Spec.Network = "elsewhere" })
		Eventually(func() metav1.ConditionStatus { return readyOf(getClaim(ctx, ns, "y")).Status }).Should(Equal(metav1.ConditionTrue))
		Expect(m.Stop()).To(Succeed())
	})

	It("do not let the younger one grant, from the first moment after a restart", func(ctx SpecContext) { // R11, I1
		const n = 5
		older := framework.MakePool("z-older").Namespace(ns).CIDR("10.14.3.0/28").Obj()
		younger := framework.MakePool("a-younger").Namespace(ns).CIDR("10.14.3.0/28").Obj()
		createPair(ctx, older, younger)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			create(ctx, framework.MakeClaim(ns, name).Pool("a-younger").Obj())
		}
		// The pools are reconciled one after the other, the younger one first.
		m := namespaceManager(ctx, ns, "--pool-concurrency=1")
		expectOverlap(ctx, younger, "z-older")
		Eventually(func(g Gomega) {
			o := objects(ctx, ns)
			var granted []string
			for i := range o.Addresses {
				granted = append(granted, o.Addresses[i].Spec.Address)
			}
			Expect(granted).To(BeEmpty())
			refused := slices.DeleteFunc(o.Claims, func(c ipamv1.IPAddressClaim) bool { return readyOf(&c).Reason != "PoolNotReady" })
			g.Expect(refused).To(HaveLen(n))
		}).Should(Succeed())
		Expect(m.Stop()).To(Succeed())
	})

	It("both serve when spec.allowOverlap is set", func(ctx SpecContext) { // R11
		older := framework.MakePool("older").Namespace(ns).CIDR("10.14.4.0/28").Obj()
		younger := framework.MakePool("younger").Namespace(ns).CIDR("10.14.4.0/28").AllowOverlap().Obj()
		createPair(ctx, older, younger)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "o").Pool("older").Obj(), framework.MakeClaim(ns, "y").Pool("younger").Obj())
		addressOf(ctx, ns, "o")
		addressOf(ctx, ns, "y")
		expectOverlap(ctx, older, "younger")
		expectOverlap(ctx, younger, "older")
		expectCondition(ctx, younger, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		Expect(m.Stop()).To(Succeed())
	})

	It("do not overlap when their networks differ", func(ctx SpecContext) { // R11: the same range in two data centres
		one := framework.MakePool("one").Namespace(ns).CIDR("10.14.5.0/28").Network("dc-1").Obj()
		two := framework.MakePool("two").Namespace(ns).CIDR("10.14.5.0/28").Network("dc-2").Obj()
		create(ctx, one, two)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "one").Pool("one").Obj(), framework.MakeClaim(ns, "two").Pool("two").Obj())
		Expect(addressOf(ctx, ns, "one").Spec.Address).To(Equal("10.14.5.1"))
		Expect(addressOf(ctx, ns, "two").Spec.Address).To(Equal("10.14.5.1"))
		for _, pool := range []v1alpha1.Pool{one, two} {
			expectCondition(ctx, pool, v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason)
			expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		}
		Expect(m.Stop()).To(Succeed())
	})

	It("overlap also when they are of different kinds", func(ctx SpecContext) { // R11
		older := framework.MakeGlobalPool(ns).CIDR("10.14.6.0/28").Obj()
		younger := framework.MakePool("younger").Namespace(ns).CIDR("10.14.6.0/28").Obj()
		createPair(ctx, older, younger)
		m := startManager(ctx)
		create(ctx, framework.MakeClaim(ns, "g").GlobalPool(ns).Obj(), framework.MakeClaim(ns, "y").Pool("younger").Obj())
		addressOf(ctx, ns, "g")
		Expect(refusalOf(ctx, ns, "y", "PoolNotReady")).To(ContainSubstring("GlobalNetworkPool " + ns))
		expectOverlap(ctx, older, "younger")
		Expect(m.Stop()).To(Succeed())
	})

	DescribeTable("grant no address twice when the older one is widened over addresses in use",
		func(ctx SpecContext, net string, widen func(ctx context.Context, m *framework.Manager, edit func()) *framework.Manager) { // R11, I1
			const have, free, asked = 4, 8, 11 // free: four of its own, and four that the younger pool has not granted
			older := framework.MakePool("older").Namespace(ns).Addresses(net + ".1-" + net + ".4").Obj()
			younger := framework.MakePool("younger").Namespace(ns).Addresses(net + ".5-" + net + ".12").Obj()
			createPair(ctx, older, younger)
			m := namespaceManager(ctx, ns)
			var inUse []string
			for i := range have {
				name := fmt.Sprintf("y%d", i)
				create(ctx, framework.MakeClaim(ns, name).Pool("younger").Obj())
				inUse = append(inUse, addressOf(ctx, ns, name).Spec.Address)
			}
			for i := range asked {
				create(ctx, framework.MakeClaim(ns, fmt.Sprintf("o%02d", i)).Pool("older").Obj())
			}
			m = widen(ctx, m, func() {
				modify(ctx, older, func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{net + ".1-" + net + ".12"} })
			})

			// Exactly the free addresses are granted, which shows that the younger pool has yielded.
			expectNumbers(ctx, older, map[string]int64{"allocatedIPs": free})
			Eventually(func() map[metav1.ConditionStatus]int {
				statuses := map[metav1.ConditionStatus]int{}
				for i := range asked {
					statuses[readyOf(getClaim(ctx, ns, fmt.Sprintf("o%02d", i))).Status]++
				}
				return statuses
			}).Should(Equal(map[metav1.ConditionStatus]int{metav1.ConditionTrue: free, metav1.ConditionFalse: asked - free}))
			var granted []string
			for _, a := range objects(ctx, ns).Addresses {
				if a.Spec.PoolRef.Name == "older" {
					granted = append(granted, a.Spec.Address)
				}
			}
			Expect(granted).To(And(HaveLen(free), Not(ContainElement(BeElementOf(inUse)))))
			expectNothingWrong(ctx, ns)
			expectOverlap(ctx, younger, "older")
			Expect(statusOf(ctx, younger).Yields).To(ConsistOf(HaveField("Name", "older")))
			Expect(m.Stop()).To(Succeed())
		},
		Entry("while its manager runs", "10.14.7", func(_ context.Context, m *framework.Manager, edit func()) *framework.Manager {
			edit()
			return m
		}),
		Entry("while no manager runs", "10.14.8", func(ctx context.Context, m *framework.Manager, edit func()) *framework.Manager {
			Expect(m.Kill()).To(Succeed())
			edit()
			return namespaceManager(ctx, ns)
		}),
	)
})
