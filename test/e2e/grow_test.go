package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	It("grows by one", func(ctx SpecContext) { // B33-B37, B41, B53, B54
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.expectPoolEntries(ctx, "10-10")
		first := s.serve(ctx, "first")
		Expect(s.addressOf(ctx, first)).To(Equal(s.net + "10"))
		second := s.serve(ctx, "second")
		Expect(s.addressOf(ctx, second)).To(Equal(s.net + "11"))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		s.expectPoolEntries(ctx, "10-10", "11-11")
		Expect(s.blocks(ctx)["lb-1"].Labels).To(HaveKeyWithValue(v1alpha1.AllocationRoleLabel, v1alpha1.GrowthRole))
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		Eventually(func() []string { return eventsOn(ctx, management, s.ns, s.cluster.UID, "LoadBalancerPoolGrowing") }).Should(HaveLen(1))
	})

	It("grows by five at once", func(ctx SpecContext) { // B38
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		var services []*corev1.Service
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			services = append(services, s.serve(ctx, name))
		}
		startManager(ctx, "--shrink-grace="+grace)
		for _, service := range services {
			s.addressOf(ctx, service)
		}
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 5})
	})
})
