package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The garbage collector of Kubernetes runs: if the mirror had its pool as owner, it would be deleted with the pool.
var _ = Describe("A deleted pool of the in-cluster provider", Ordered, func() {
	const flag = "--serve-in-cluster-pools"
	var rights string
	BeforeAll(func(ctx SpecContext) {
		rights = startCollectorOfInClusterPools(ctx)
	})

	DescribeTable("leaves its mirror as an independent pool when it was handed over and nothing names it any more", // U85
		func(ctx SpecContext, how metav1.DeletionPropagation) {
			ns := newNamespace(ctx, nil)
			pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.79.1.10-10.79.1.19"}, "prefix": int64(24), "gateway": "10.99.0.1"})
			mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p.in-cluster"}}
			m := namespaceManager(ctx, ns, flag, rights)
			create(ctx, claimOn(ns, "old", ipPool, "p"), framework.MakeClaim(ns, "new").Pool("p.in-cluster").Obj())
			Expect(addressOf(ctx, ns, "old").Spec.Address).To(Equal("10.79.1.10"))
			modify(ctx, pool, handOver)
			Expect(addressOf(ctx, ns, "new").Spec.Address).To(Equal("10.79.1.11"))

			By("deleting it while claims still name it")
			Expect(k8s.Delete(ctx, pool, client.PropagationPolicy(how))).To(Succeed())
			Eventually(func(g Gomega) {
				g.Expect(k8s.Get(ctx, keyOf(mirror), mirror)).To(Succeed())
				g.Expect(mirror.Status.Conditions).To(ContainElement(And(HaveField("Type", v1alpha1.ReadyCondition), HaveField("Status", metav1.ConditionTrue),
					HaveField("Message", ContainSubstring("InClusterIPPool p is being deleted, and is kept while IPAddressClaim "+ns+"/old names it")))))
			}).Should(Succeed())
			Expect(mirror.OwnerReferences).To(BeEmpty())
			create(ctx, claimOn(ns, "late", ipPool, "p"), framework.MakeClaim(ns, "next").Pool("p.in-cluster").Obj())
			Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal("10.79.1.12"))
			Expect(refusalOf(ctx, ns, "late", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(And(
				ContainSubstring("InClusterIPPool p is being deleted"), ContainSubstring("NetworkPool "+ns+"/p.in-cluster")))
			Expect(addressNamed(ctx, ns, "old").Spec.Address).To(Equal("10.79.1.10"))

			By("deleting the claims that name it")
			Expect(k8s.Delete(ctx, getClaim(ctx, ns, "late"))).To(Succeed())
			expectGone(ctx, claimOn(ns, "late", ipPool, "p"))
			Expect(k8s.Delete(ctx, getClaim(ctx, ns, "old"))).To(Succeed())
			// The manager removes its finalizer at once, and not only in the next periodic reconcile of the pool
			// (deletionRequeueDelay).
			Eventually(func() ([]string, error) {
				if err := k8s.Get(ctx, keyOf(pool), pool); err != nil {
					return nil, client.IgnoreNotFound(err)
				}
				return pool.GetFinalizers(), nil
			}).ShouldNot(ContainElement(incluster.PoolFinalizer))
			// In a foreground deletion the garbage collector removes its own finalizer last.
			Eventually(func() error { return k8s.Get(ctx, keyOf(pool), pool) }).WithTimeout(framework.LongTimeout).Should(Satisfy(apierrors.IsNotFound))
			Expect(k8s.Get(ctx, keyOf(mirror), mirror)).To(Succeed())
			Expect(mirror.Annotations).To(And(HaveLen(3), HaveKeyWithValue(incluster.EndedAnnotation, ""), HaveKeyWithValue(incluster.GatewayAnnotation, "10.99.0.1"),
				HaveKey(v1alpha1.ManagementClusterAnnotation)))
			Expect([]any{mirror.OwnerReferences, mirror.DeletionTimestamp}).To(HaveEach(BeNil()))
			Expect(eventReasons(ctx, ns, mirror.UID)).To(ContainElement("Ended"))

			By("creating a claim that names it all the same, and the pool again")
			create(ctx, claimOn(ns, "stray", ipPool, "p"))
			Expect(refusalOf(ctx, ns, "stray", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("InClusterIPPool p has ended"))
			again := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.79.1.10-10.79.1.19"}, "prefix": int64(24)})
			Eventually(func() []string { return eventReasons(ctx, ns, again.GetUID()) }).Should(ContainElement("NotServed"))
			Expect(k8s.Delete(ctx, again)).To(Succeed())
			expectGone(ctx, again)
			Expect(k8s.Delete(ctx, getClaim(ctx, ns, "stray"))).To(Succeed())
			Expect(m.Stop()).To(Succeed())

			By("starting a manager without --serve-in-cluster-pools")
			m = namespaceManager(ctx, ns)
			modify(ctx, mirror, func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = append(p.Spec.Addresses, "10.79.1.30") })
			create(ctx, framework.MakeClaim(ns, "later").Pool("p.in-cluster").Obj())
			Expect(addressOf(ctx, ns, "later").Spec).To(And(HaveField("Gateway", "10.99.0.1"), HaveField("Address", Or(Equal("10.79.1.30"), Equal("10.79.1.10")))))
			expectCondition(ctx, mirror, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
			expectNothingWrong(ctx, ns)
			Expect(m.Stop()).To(Succeed())
		},
		Entry("after a deletion as by kubectl", metav1.DeletePropagationBackground),
		Entry("after a deletion as by Argo CD", metav1.DeletePropagationForeground),
		Entry("after a deletion with the propagation policy Orphan", metav1.DeletePropagationOrphan),
	)

	It("takes its mirror along when it was not handed over", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.79.2.10-10.79.2.19"}, "prefix": int64(24)})
		mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p.in-cluster"}}
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "a", ipPool, "p"))
		addressOf(ctx, ns, "a")
		Expect(k8s.Delete(ctx, pool)).To(Succeed())
		expectCondition(ctx, mirror, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason)
		Expect(k8s.Delete(ctx, getClaim(ctx, ns, "a"))).To(Succeed())
		expectGone(ctx, mirror)
		expectGone(ctx, pool)
		Expect(m.Stop()).To(Succeed())
	})
})
