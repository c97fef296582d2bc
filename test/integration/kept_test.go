package integration

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A deleted claim whose IPAddress has a foreign finalizer", func() {
	It("reports that finalizer, keeps the address, and is deleted when the finalizer is removed", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.97.0.0/29").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		m := startManager(ctx, "--namespace="+ns)
		address := addressOf(ctx, ns, "c")
		const foreign = "example.com/hold"
		modify(ctx, address, func(a *ipamv1.IPAddress) { a.Finalizers = append(a.Finalizers, foreign) })
		claim := getClaim(ctx, ns, "c")
		Expect(k8s.Delete(ctx, claim)).To(Succeed())
		Eventually(func(g Gomega) {
			condition := meta.FindStatusCondition(getClaim(ctx, ns, "c").Status.Conditions, v1alpha1.ReadyCondition)
			g.Expect(condition).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", "Deleting"),
				HaveField("Message", "its IPAddress is kept by the finalizer example.com/hold; ask its owner to remove it"))))
		}).Should(Succeed())
		expectRest(ctx, m)
		other := framework.MakeClaim(ns, "other").Pool("p").Obj()
		create(ctx, other)
		Expect(addressOf(ctx, ns, "other").Spec.Address).NotTo(Equal(address.Spec.Address))

		modify(ctx, address, func(a *ipamv1.IPAddress) {
			a.Finalizers = slices.DeleteFunc(a.Finalizers, func(f string) bool { return f == foreign })
		})
		Eventually(func() error { return k8s.Get(ctx, keyOf(claim), claim) }).ShouldNot(Succeed())
	})
})
