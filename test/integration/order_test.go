package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("The order of allocation", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("goes through the whole pool before an address is used again, over a restart too", func(ctx SpecContext) { // U50, U51
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.176.1.1-10.176.1.4").AllocationOrder(v1alpha1.LeastRecentlyUsedOrder).Obj()
		create(ctx, pool)
		got := func(name string) string {
			GinkgoHelper()
			create(ctx, framework.MakeClaim(ns, name).Pool("p").Obj())
			return addressOf(ctx, ns, name).Spec.Address
		}
		release := func(name, released string) {
			GinkgoHelper()
			deleteClaim(ctx, ns, name)
			expectGone(ctx, &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
			Eventually(func() string { return statusOf(ctx, pool).Released }).Should(Equal(released))
		}
		Expect(got("a")).To(Equal("10.176.1.1"))
		release("a", "10.176.1.1")
		Expect(got("b")).To(Equal("10.176.1.2"))
		Expect(got("c")).To(Equal("10.176.1.3"))
		release("c", "10.176.1.1, 10.176.1.3")
		release("b", "10.176.1.1, 10.176.1.3, 10.176.1.2")
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		Expect(got("d")).To(Equal("10.176.1.4"))
		Expect(got("e")).To(Equal("10.176.1.1"))
		Expect(got("f")).To(Equal("10.176.1.3"))

		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.AllocationOrder = v1alpha1.BestFitOrder })
		Eventually(func() string { return statusOf(ctx, pool).Released }).Should(BeEmpty())
		Expect(got("g")).To(Equal("10.176.1.2"))
		Expect(m.Stop()).To(Succeed())
	})
})
