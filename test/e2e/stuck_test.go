package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	It("does not grow for Services that growth does not help, and records an event on them", func(ctx SpecContext) { // F4, B36
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		const elsewhere = "203.0.113.5"
		foreign := s.serve(ctx, "foreign", func(service *corev1.Service) { service.Spec.LoadBalancerClass = ptr.To("example.com/other") })
		stuck := []*corev1.Service{
			s.serve(ctx, "pool", annotated("metallb.io/address-pool", "nowhere")),
			s.serve(ctx, "address", annotated("metallb.io/loadBalancerIPs", elsewhere)),
			s.serve(ctx, "field", func(service *corev1.Service) { service.Spec.LoadBalancerIP = elsewhere }),
			s.serve(ctx, "both", annotated("metallb.io/loadBalancerIPs", elsewhere), func(service *corev1.Service) { service.Spec.LoadBalancerIP = elsewhere }),
			s.serve(ctx, "nonsense", annotated("metallb.io/loadBalancerIPs", "nonsense")),
		}
		stuckEvents := func(service *corev1.Service) []string {
			return eventsOn(ctx, workload, s.services, service.UID, "NoAddress")
		}
		for _, service := range stuck {
			Eventually(func() []string { return stuckEvents(service) }).Should(HaveLen(1), service.Name)
		}
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		// Other Services get exactly what they need.
		s.served(ctx, "second", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		s.served(ctx, "third", "12")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
		for _, service := range stuck {
			Expect(stuckEvents(service)).To(HaveLen(1), service.Name)
		}
		Expect(stuckEvents(foreign)).To(BeEmpty())
		// A corrected Service is served like others.
		workload.change(ctx, stuck[0], `{"metadata":{"annotations":{"metallb.io/address-pool":"default-pool"}}}`)
		Expect(s.addressOf(ctx, stuck[0])).To(Equal(s.net + "13"))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1, "lb-3": 1})
	})

	It("reports why MetalLB assigns no address, after MetalLB has had a free one for half a minute", func(ctx SpecContext) { // B36
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		m := startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		overlapping := &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: framework.MetalLBNamespace, Name: "by-hand"},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{s.net + "10/32"}},
		}
		Expect(workload.Create(ctx, overlapping)).To(Succeed())
		second := s.serve(ctx, "second")
		s.expectPoolEntries(ctx, "10-10", "11-11")
		var condition metav1.Condition
		withLongTimeout(func() {
			condition = s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.NotPlacedReason)
		})
		Expect(condition.Message).To(And(ContainSubstring(second.Name), ContainSubstring("refuses its configuration"), ContainSubstring("overlaps")))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		expectRestMeanwhile(ctx, m)
		Expect(workload.Delete(ctx, overlapping)).To(Succeed())
		Expect(s.addressOf(ctx, second)).To(Equal(s.net + "11"))
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
	})
})
