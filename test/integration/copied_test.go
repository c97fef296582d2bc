package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A GlobalNetworkPool", Ordered, func() {
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })

	It("names the management cluster that serves it, and grants nothing in another one that it was copied to", func(ctx SpecContext) { // C52
		ns := newNamespace(ctx, nil)
		system := &corev1.Namespace{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system)).To(Succeed())
		home := HaveField("Annotations", HaveKeyWithValue(v1alpha1.ManagementClusterAnnotation, string(system.UID)))
		served := framework.MakeGlobalPool(ns + "-served").CIDR("10.175.0.0/28").Obj()
		another := map[string]string{v1alpha1.ManagementClusterAnnotation: "another"}
		copied := framework.MakeGlobalPool(ns + "-copied").CIDR("10.175.1.0/28").Obj()
		arrived := framework.MakeGlobalPool(ns + "-arrived").CIDR("10.175.3.0/28").Obj()
		arrived.Annotations = another
		local := framework.MakePool("local").Namespace(ns).CIDR("10.175.2.0/28").Obj()
		local.Annotations = another // it moves with its namespace: here it would wait for a Cluster, if it named one
		create(ctx, served, copied, arrived, local)
		DeferCleanup(func(ctx SpecContext) {
			for _, p := range []client.Object{served, copied, arrived} {
				Expect(client.IgnoreNotFound(k8s.Delete(ctx, p))).To(Succeed())
			}
		})
		expectCondition(ctx, served, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		Expect(served).To(home)
		Expect(expectCondition(ctx, local, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)).To(ContainSubstring("names no Cluster"))
		modify(ctx, local, func(p *v1alpha1.NetworkPool) { p.Annotations = nil })
		Eventually(func() string {
			return expectCondition(ctx, local, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		}).Should(ContainSubstring("new grants start at"))
		Expect(k8s.Get(ctx, keyOf(local), local)).To(Succeed())
		Expect(local).To(home)
		Expect(expectCondition(ctx, arrived, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)).
			To(ContainSubstring("it still grants nothing: the pool was copied here from another management cluster"))
		// The same state as after 75 s of Adopting.
		expectCondition(ctx, copied, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		modify(ctx, copied, func(p *v1alpha1.GlobalNetworkPool) { p.Annotations = another })
		expectCondition(ctx, copied, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.CopiedReason)
		create(ctx, framework.MakeClaim(ns, "c").GlobalPool(copied.Name).Obj())
		Expect(refusalOf(ctx, ns, "c", "PoolNotReady")).To(And(ContainSubstring("was copied here from another management cluster"),
			ContainSubstring("remove the annotation "+v1alpha1.ManagementClusterAnnotation)))
		expectRestMeanwhile(ctx, 1, m)
		modify(ctx, copied, func(p *v1alpha1.GlobalNetworkPool) { p.Annotations = nil })
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.175.1.1"))
		Expect(k8s.Get(ctx, keyOf(copied), copied)).To(Succeed())
		Expect(copied).To(home)
		deleteClaim(ctx, ns, "c")
	})
})
