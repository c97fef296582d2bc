package integration

import (
	"context"
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// blocksOf returns the open blocks of a pool.
func blocksOf(ctx context.Context, pool v1alpha1.Pool) (out []string) {
	for _, b := range statusOf(ctx, pool).Blocks {
		out = append(out, b.Range)
	}
	return out
}

var _ = Describe("A pool that is carved from another", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("grows with its claims, and releases the blocks that they leave", func(ctx SpecContext) { // C26
		parent := framework.MakePool("datacentre").Namespace(ns).CIDR("10.60.0.0/24").Gateway("10.60.0.254").AllocateReservedAddresses().Carvable().Obj()
		child := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "datacentre", 29, 1, 3).Obj()
		create(ctx, parent, child)
		m := namespaceManager(ctx, ns, "--shrink-grace=1s")
		Eventually(func() []string { return blocksOf(ctx, child) }).Should(HaveLen(1))
		for i := range 12 {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("team").Obj())
		}
		open := netip.MustParsePrefix("10.60.0.0/24")
		for i := range 12 {
			a := addressOf(ctx, ns, fmt.Sprintf("c%d", i))
			Expect(open.Contains(netip.MustParseAddr(a.Spec.Address))).To(BeTrue())
			Expect(*a.Spec.Prefix).To(BeEquivalentTo(24))
			Expect(a.Spec.Gateway).To(Equal("10.60.0.254"))
		}
		Expect(blocksOf(ctx, child)).To(HaveLen(2))
		expectNothingWrong(ctx, ns)
		for i := range 12 {
			deleteClaim(ctx, ns, fmt.Sprintf("c%d", i))
		}
		Eventually(func() []v1alpha1.CarvedBlock { return statusOf(ctx, child).Blocks }).Should(HaveLen(1))
		Eventually(func(g Gomega) {
			list := &v1alpha1.IPAllocationList{}
			g.Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1))
		}).Should(Succeed())
		expectRest(ctx, m)

		Expect(k8s.Delete(ctx, child)).To(Succeed())
		expectGone(ctx, child)
		Eventually(func() int64 { return statusOf(ctx, parent).AllocatedIPs }).Should(BeZero())
		Expect(m.Stop()).To(Succeed())
	})

	It("keeps spec.carve.minAvailable addresses free, and its parent is not deleted before it", func(ctx SpecContext) { // C26
		parent := framework.MakePool("datacentre").Namespace(ns).CIDR("10.59.0.0/24").AllocateReservedAddresses().Carvable().Obj()
		child := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "datacentre", 30, 1, 3).AllocateReservedAddresses().Obj()
		child.Spec.Carve.MinAvailable = 3
		create(ctx, parent, child)
		m := namespaceManager(ctx, ns)
		Eventually(func() []string { return blocksOf(ctx, child) }).Should(HaveLen(1))
		for _, name := range []string{"a", "b"} { // two of four are left, and no claim waits
			create(ctx, framework.MakeClaim(ns, name).Pool("team").Obj())
			addressOf(ctx, ns, name)
		}
		Eventually(func() []string { return blocksOf(ctx, child) }).Should(HaveLen(2))
		expectRest(ctx, m)

		Expect(k8s.Delete(ctx, parent)).To(Succeed())
		Expect(expectCondition(ctx, parent, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason)).To(ContainSubstring("team"))
		create(ctx, framework.MakeClaim(ns, "c").Pool("team").Obj())
		addressOf(ctx, ns, "c") // the pool serves from the block that it has
		deleteClaims(ctx, ns)
		Expect(k8s.Delete(ctx, child)).To(Succeed())
		expectGone(ctx, child)
		expectGone(ctx, parent)
		Expect(m.Stop()).To(Succeed())
	})

	It("reports why it cannot grow", func(ctx SpecContext) {
		parent := framework.MakePool("small").Namespace(ns).CIDR("10.61.0.0/29").AllocateReservedAddresses().Obj()
		child := framework.MakePool("team").Namespace(ns).Carve(v1alpha1.NetworkPoolKind, "small", 29, 1, 3).AllocateReservedAddresses().Obj()
		create(ctx, child)
		m := namespaceManager(ctx, ns)
		Expect(expectCondition(ctx, child, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ParentNotReadyReason)).To(ContainSubstring("does not exist"))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, parent)
		Eventually(func() string {
			return expectCondition(ctx, child, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ParentNotReadyReason)
		}).Should(ContainSubstring("spec.carvable is not set"))
		modify(ctx, parent, func(p *v1alpha1.NetworkPool) { p.Spec.Carvable = &v1alpha1.Carvable{} })
		expectCondition(ctx, child, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		for i := range 9 {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("team").Obj())
		}
		Eventually(func(g Gomega) {
			waiting := 0
			for i := range 9 {
				ready := readyOf(getClaim(ctx, ns, fmt.Sprintf("c%d", i)))
				if ready.Status == metav1.ConditionFalse {
					g.Expect(ready.Message).To(ContainSubstring("NetworkPool " + ns + "/small has no free prefix of /29"))
					waiting++
				}
			}
			g.Expect(waiting).To(Equal(1))
		}).Should(Succeed())
		Expect(expectCondition(ctx, child, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.PoolExhaustedReason)).To(ContainSubstring("small"))
		expectRestMeanwhile(ctx, 2, m)
		Expect(m.Stop()).To(Succeed())
	})
})
