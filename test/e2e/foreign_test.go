package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// createForeignObject creates an object of MetalLB's as a user would.
func createForeignObject(ctx context.Context, o client.Object) {
	GinkgoHelper()
	o.SetNamespace(framework.MetalLBNamespace)
	Expect(workload.Create(ctx, o, client.FieldOwner("kubectl-create"))).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(workload.Delete(ctx, o))).To(Succeed()) })
}

var _ = Describe("A tenant whose MetalLB has a default-pool of its own", func() {
	const handOver = `{"metadata":{"annotations":{"` + v1alpha1.HandOverAnnotation + `":"true"}}}`
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
	})

	It("keeps that pool until it is handed over, and has it restored when the block is released", func(ctx SpecContext) { // F23, B56
		foreign := &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Name: "default-pool", Labels: map[string]string{balancer.ManagedByLabel: "Helm"}},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{"10.99.1.0/28"}, AutoAssign: ptr.To(true)},
		}
		createForeignObject(ctx, foreign)
		named := annotated("metallb.io/address-pool", "default-pool")
		before := s.serve(ctx, "before", named)
		Expect(s.addressOf(ctx, before)).To(HavePrefix("10.99.1."))
		manager := startManager(ctx, "--shrink-grace="+grace)
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.ForeignPoolReason)
		Expect(condition.Message).To(And(ContainSubstring("(kubectl-create, app.kubernetes.io/managed-by=Helm)"), ContainSubstring(v1alpha1.HandOverAnnotation+"=true")))
		Eventually(func() []string { return eventsOn(ctx, management, s.ns, s.cluster.UID, "LoadBalancerForeignPool") }).ShouldNot(BeEmpty())
		expectRestMeanwhile(ctx, manager)
		// An edit of it triggers another reconcile, as does a restart.
		workload.change(ctx, foreign, `{"metadata":{"annotations":{"note":"mine"}}}`)
		Expect(manager.Stop()).To(Succeed())
		startManager(ctx, "--shrink-grace="+grace)
		late := s.serve(ctx, "late", named)
		Expect(s.addressOf(ctx, late)).To(HavePrefix("10.99.1."))
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.ForeignPoolReason)
		now, err := metalLBPool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
		Expect(now.Spec).To(Equal(foreign.Spec))
		Expect(now.Labels).To(Equal(foreign.Labels))
		s.expectBlocks(ctx, map[string]int{"lb": 1})

		By("handing it over")
		s.stop(ctx, before, late)
		workload.change(ctx, foreign, handOver)
		s.expectPoolEntries(ctx, "10-10")
		first := s.served(ctx, "first", "10")
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)

		By("releasing the block")
		s.stop(ctx, first)
		management.change(ctx, s.cluster, `{"metadata":{"labels":{"`+v1alpha1.ProviderConfigLabel+`":null}}}`)
		Expect(management.Delete(ctx, s.blocks(ctx)["lb"])).To(Succeed())
		s.expectBlocks(ctx, map[string]int{})
		Eventually(func(g Gomega) {
			now, err := metalLBPool(ctx, "default-pool")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now.UID).To(Equal(foreign.UID))
			g.Expect(now.Spec).To(Equal(foreign.Spec))
			g.Expect(now.Labels).To(Equal(foreign.Labels))
			g.Expect(now.Annotations).To(Equal(map[string]string{"note": "mine", v1alpha1.HandOverAnnotation: "true"}))
			g.Expect(now.ManagedFields).NotTo(ContainElement(HaveField("Manager", string(balancer.FieldOwner))))
		}).Should(Succeed())
	})

	It("keeps an advertisement of its own, and a condition reports when that omits the blocks", func(ctx SpecContext) { // F23
		foreign := &metallbv1beta1.L2Advertisement{
			ObjectMeta: metav1.ObjectMeta{Name: "default-pool"}, Spec: metallbv1beta1.L2AdvertisementSpec{IPAddressPools: []string{"other"}},
		}
		createForeignObject(ctx, foreign)
		startManager(ctx, "--shrink-grace="+grace)
		s.expectPoolEntries(ctx, "10-10")
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.ForeignAdvertisementReason)
		Expect(condition.Message).To(ContainSubstring("kubectl annotate l2advertisement -n metallb-system default-pool"))
		workload.change(ctx, foreign, `{"spec":{"ipAddressPools":["other","default-pool"]}}`)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		workload.change(ctx, foreign, `{"spec":{"ipAddressPools":["other"]}}`)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.ForeignAdvertisementReason)
		workload.change(ctx, foreign, handOver)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		Expect(waitForAdvertisement(ctx).Spec.IPAddressPoolSelectors).NotTo(BeEmpty())
	})
})
