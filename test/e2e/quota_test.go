package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var _ = Describe("A tenant with a quota", func() {
	var s *story
	var services []*corev1.Service
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 99)
		s.config.Spec.Network.QuotaPerTenant = &v1alpha1.TenantQuota{MaxLoadBalancerIPs: ptr.To[int32](3)}
		s.begin(ctx, nil)
		services = s.serveAll(ctx, "a", "b", "c", "d")
		startManager(ctx, "--shrink-grace="+grace)
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.QuotaReachedReason)
		Expect(condition.Message).To(ContainSubstring("quotaPerTenant.maxLoadBalancerIPs is 3"))
	})

	served := func(ctx SpecContext) (out []*corev1.Service) {
		for _, service := range services {
			Expect(workload.Get(ctx, client.ObjectKeyFromObject(service), service)).To(Succeed())
			if len(service.Status.LoadBalancer.Ingress) > 0 {
				out = append(out, service)
			}
		}
		return out
	}

	It("grows up to the quota, reports that, and is satisfied when it needs no more", func(ctx SpecContext) { // B39, F9
		Eventually(func() []*corev1.Service { return served(ctx) }).Should(HaveLen(3))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 2})
		events := func() []eventsv1.Event {
			list := &eventsv1.EventList{}
			Expect(management.List(ctx, list, client.InNamespace(s.ns))).To(Succeed())
			var out []eventsv1.Event
			for _, e := range list.Items {
				if e.Regarding.UID == s.cluster.UID && e.Reason == "LoadBalancerQuotaReached" {
					out = append(out, e)
				}
			}
			return out
		}
		Eventually(events).Should(ConsistOf(And(HaveField("Type", corev1.EventTypeWarning), HaveField("Note", ContainSubstring("maxLoadBalancerIPs is 3")))))

		s.stop(ctx, served(ctx)[0])
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 2})
		Expect(events()).To(HaveLen(1))
	})

	It("grows further when the quota is raised", func(ctx SpecContext) { // B39
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 2})
		management.change(ctx, s.config, `{"spec":{"network":{"quotaPerTenant":{"maxLoadBalancerIPs":5}}}}`)
		s.addressesOf(ctx, services...)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 2, "lb-2": 1})
	})
})
