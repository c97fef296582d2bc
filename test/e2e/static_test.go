package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	It("in static mode gets its block in MetalLB, and a condition reports how many addresses are missing", func(ctx SpecContext) { // B22, B33, B53
		s.pool(ctx, "p", 10, 99)
		s.config.Spec.Network.LoadBalancer = &v1alpha1.LoadBalancerPool{
			AllocationMode: v1alpha1.StaticAllocation, DefaultPoolSize: ptr.To[int32](2),
		}
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.expectPoolEntries(ctx, "10-11")
		pool, err := metalLBPool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
		Expect(waitForAdvertisement(ctx).Spec.IPAddressPoolSelectors).To(ConsistOf(metav1.LabelSelector{MatchLabels: pool.Labels}))

		first := s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		third := s.serve(ctx, "third")
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.StaticReason)
		Expect(condition.Message).To(ContainSubstring("1 more address"))
		Eventually(func() []string { return eventsOn(ctx, management, s.ns, s.cluster.UID, "LoadBalancerStatic") }).Should(ConsistOf(condition.Message))
		// The block does not shrink either.
		s.stop(ctx, first, second)
		Expect(s.addressOf(ctx, third)).To(HavePrefix(s.net))
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 2})
		s.expectPoolEntries(ctx, "10-11")
	})
})
