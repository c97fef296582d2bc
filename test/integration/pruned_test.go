package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A pool that was deleted while it was in use", func() {
	// docs/gitops.md: the recovery from an accidental deletion.
	It("serves again when its finalizer is removed and it is applied again", func(ctx SpecContext) { // W28
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.17.8.0/28").Gateway("10.17.8.1").Obj()
		again := pool.DeepCopy()
		create(ctx, pool)
		had := map[string]string{}
		for _, name := range []string{"a", "b", "leaving"} {
			create(ctx, framework.MakeClaim(ns, name).Pool("p").Obj())
			had[name] = addressOf(ctx, ns, name).Spec.Address
		}
		history := &invariants.History{}
		Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		Expect(k8s.Delete(ctx, pool)).To(Succeed())
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason)
		create(ctx, framework.MakeClaim(ns, "late").Pool("p").Obj())
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Finalizers = nil })
		expectGone(ctx, pool)
		deleteClaim(ctx, ns, "leaving") // also while there is no pool
		expectGone(ctx, framework.MakeClaim(ns, "leaving").Obj())
		create(ctx, again)
		// Grants that other managers may have made meanwhile must settle first; internal/allocator tests what follows
		// (poolless).
		expectCondition(ctx, again, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		for _, name := range []string{"a", "b"} {
			Eventually(func(g Gomega) {
				a := addressOf(ctx, ns, name)
				g.Expect(a.Spec.Address).To(Equal(had[name]))
				g.Expect(a.OwnerReferences).To(ContainElement(HaveField("UID", again.UID)))
			}).Should(Succeed())
		}
		Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		expectNumbers(ctx, again, map[string]int64{"allocatedIPs": 2})
		Expect(getClaim(ctx, ns, "late").Status.AddressRef.Name).To(BeEmpty())
		Expect(m.Stop()).To(Succeed())
	})
})
