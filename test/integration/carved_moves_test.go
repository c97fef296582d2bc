package integration

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A pool that is carved from another", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("grows and shrinks when its parent is in another shard", func(ctx SpecContext) { // C26
		parent, child := poolOf(1, 2, ns), poolOf(2, 2, ns)
		create(ctx, framework.MakePool(parent).Namespace(ns).CIDR("10.68.0.0/24").AllocateReservedAddresses().Carvable().Obj())
		team := framework.MakePool(child).Namespace(ns).AllocateReservedAddresses().Carve(v1alpha1.NetworkPoolKind, parent, 30, 0, 3).Obj()
		create(ctx, team)
		var managers []*framework.Manager
		for i := range 2 {
			managers = append(managers, namespaceManager(ctx, ns, fmt.Sprintf("--shard=%d/2", i+1), "--shrink-grace=1s"))
		}
		for i := range 6 {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool(child).Obj())
		}
		for i := range 6 {
			addressOf(ctx, ns, fmt.Sprintf("c%d", i))
		}
		Expect(blocksOf(ctx, team)).To(HaveLen(2))
		expectNothingWrong(ctx, ns)
		for i := range 6 {
			deleteClaim(ctx, ns, fmt.Sprintf("c%d", i))
		}
		Eventually(func() []string { return blocksOf(ctx, team) }).Should(BeEmpty())
		Eventually(func(g Gomega) {
			list := &v1alpha1.IPAllocationList{}
			g.Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}).Should(Succeed())
		for _, m := range managers {
			Expect(m.Stop()).To(Succeed())
		}
	})

	It("has its blocks and addresses again after a restore without any status", func(ctx SpecContext) { // R10, R13
		site := framework.MakePool("site").Namespace(ns).CIDR("10.69.0.0/24").AllocateReservedAddresses().Carvable().Obj()
		team := framework.MakePool("team").Namespace(ns).AllocateReservedAddresses().Carve(v1alpha1.NetworkPoolKind, "site", 30, 1, 2).Obj()
		create(ctx, site, team)
		m := namespaceManager(ctx, ns)
		addresses := map[string]string{}
		for i := range 6 {
			name := fmt.Sprintf("c%d", i)
			create(ctx, framework.MakeClaim(ns, name).Pool("team").Obj())
			addresses[name] = addressOf(ctx, ns, name).Spec.Address
		}
		Expect(m.Stop()).To(Succeed())
		list := &v1alpha1.IPAllocationList{}
		Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
		Expect(list.Items).To(HaveLen(2))
		for i := range list.Items {
			modifyStatus(ctx, &list.Items[i], func(a *v1alpha1.IPAllocation) { a.Status = v1alpha1.IPAllocationStatus{} })
		}
		for _, pool := range []*v1alpha1.NetworkPool{site, team} {
			modifyStatus(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Status = v1alpha1.NetworkPoolStatus{} })
		}
		m = namespaceManager(ctx, ns)
		for _, pool := range []*v1alpha1.NetworkPool{site, team} {
			expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		}
		Eventually(func() []string { return blocksOf(ctx, team) }).Should(HaveLen(2)) // opened at once: it is in use
		create(ctx, framework.MakeClaim(ns, "new").Pool("team").Obj())
		refusalOf(ctx, ns, "new", ipamv1.IPAddressClaimReadyPoolNotReadyReason)
		for name, address := range addresses {
			Expect(addressOf(ctx, ns, name).Spec.Address).To(Equal(address))
		}
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, site)
		endQuarantine(ctx, team)
		m = namespaceManager(ctx, ns)
		newAddress := addressOf(ctx, ns, "new").Spec.Address
		Expect(addresses).NotTo(ContainElement(newAddress))
		expectAtRest(ctx, ns, 7)
		Expect(m.Stop()).To(Succeed())
	})

	It("does not let a claim adopt an address whose block was not restored", func(ctx SpecContext) { // R13
		site := framework.MakePool("site").Namespace(ns).CIDR("10.58.0.0/30").AllocateReservedAddresses().Carvable().Obj()
		team := framework.MakePool("p").Namespace(ns).AllocateReservedAddresses().Carve(v1alpha1.NetworkPoolKind, "site", 31, 0, 2).Obj()
		create(ctx, site, team)
		m := namespaceManager(ctx, ns, "--shrink-grace=1s")
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		had := addressOf(ctx, ns, "c")
		list := &v1alpha1.IPAllocationList{}
		Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
		Expect(list.Items).To(HaveLen(1))
		block := &list.Items[0]
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, block)
		for i := range 4 { // other claims have got all of it since
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("other-%d", i)).Pool("site").Obj())
			addressOf(ctx, ns, fmt.Sprintf("other-%d", i))
		}
		Expect(m.Stop()).To(Succeed())

		restored := framework.MakeClaim(ns, "c").Pool("p").Obj()
		restored.Finalizers = []string{v1alpha1.ClaimFinalizer}
		restored.Annotations = map[string]string{v1alpha1.AddressAnnotation: had.Spec.Address}
		create(ctx, restored, madeAddress(ns, "c", had.Spec.Address, 30, claimOwner("c", "the-uid-before"), poolOwner("p", team.UID)))
		m = namespaceManager(ctx, ns)
		Expect(refusalOf(ctx, ns, "c", ipamv1.IPAddressClaimReadyAllocationFailedReason)).To(ContainSubstring("which is in no block of NetworkPool " + ns + "/p"))
		expectRest(ctx, m)

		for i := range 4 {
			deleteClaim(ctx, ns, fmt.Sprintf("other-%d", i))
		}
		again := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: block.Name, Annotations: block.Annotations, Finalizers: block.Finalizers, Labels: block.Labels,
		}, Spec: block.Spec}
		create(ctx, again)
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal(had.Spec.Address))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})
})
