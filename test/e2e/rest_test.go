package e2e

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant at rest", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	// writesNothing expects that the managers write nothing while they reconcile the tenant repeatedly.
	writesNothing := func(ctx SpecContext, service *corev1.Service, managers ...*framework.Manager) {
		GinkgoHelper()
		Eventually(func(g Gomega) { // finished grants are removed from the status of the pools last, also those of earlier specs
			pools, blocks := &v1alpha1.NetworkPoolList{}, &v1alpha1.IPAllocationList{}
			g.Expect(management.List(ctx, pools)).To(Succeed())
			g.Expect(management.List(ctx, blocks)).To(Succeed())
			left := int64(0)
			for i := range pools.Items {
				status := &pools.Items[i].Status
				g.Expect(status.Allocator).To(HaveValue(HaveField("InFlight", BeEmpty())))
				left += status.AllocatedIPs
			}
			for i := range blocks.Items {
				left -= blocks.Items[i].Status.AllocatedCount
			}
			g.Expect(left).To(BeZero())
		}).Should(Succeed())
		s.triggerReconciles(ctx, 3, service, managers...)
		before := s.versions(ctx)
		var wrote []map[string]int
		for _, m := range managers {
			wrote = append(wrote, writes(ctx, m))
		}
		s.triggerReconciles(ctx, 6, service, managers...)
		for i, m := range managers {
			Expect(writes(ctx, m)).To(Equal(wrote[i]))
		}
		Expect(s.versions(ctx)).To(Equal(before))
	}

	It("causes no writes when all Services are served", func(ctx SpecContext) { // B52
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		m := startManager(ctx, "--shrink-grace="+grace)
		first := s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		Eventually(func(g Gomega) {
			p, err := metalLBPool(ctx, "default-pool")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Status.AssignedIPv4).To(Equal(int64(2)))
		}).Should(Succeed())
		writesNothing(ctx, first, m)
	})

	DescribeTable("causes no writes when some Services cannot be served", func(ctx SpecContext, last int, quota *int32, reason string) { // B39, B52, F4
		s.pool(ctx, "p", 10, last)
		s.pool(ctx, "q", 100, 100)
		s.config.Spec.Network.QuotaPerTenant = &v1alpha1.TenantQuota{MaxLoadBalancerIPs: quota}
		s.begin(ctx, nil)
		m := startManager(ctx, "--shrink-grace="+grace)
		first := s.served(ctx, "first", "10")
		s.serveAll(ctx, "a", "b", "c", "d")
		s.serve(ctx, "stuck", annotated("metallb.io/address-pool", "nowhere"))
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, reason)
		Eventually(func(g Gomega) {
			p, err := metalLBPool(ctx, "default-pool")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Status.AssignedIPv4).To(Equal(int64(3)))
		}).Should(Succeed())
		writesNothing(ctx, first, m)
	},
		Entry("because the quota is reached", 99, ptr.To[int32](3), v1alpha1.QuotaReachedReason),
		Entry("because the pools are exhausted", 11, nil, v1alpha1.PoolExhaustedReason),
	)

	It("with two managers has no address twice, and neither manager writes", func(ctx SpecContext) { // I1, B37, B52
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		managers := []*framework.Manager{startManager(ctx, "--shrink-grace="+grace), startManager(ctx, "--shrink-grace="+grace)}
		history := &invariants.History{}
		first := s.served(ctx, "first", "10")
		live := []*corev1.Service{first}
		rounds := 20
		if testing.Short() {
			rounds = 5
		}
		for i := range rounds {
			live = append(live, s.serveAll(ctx, fmt.Sprintf("a-%d", i), fmt.Sprintf("b-%d", i))...)
			for _, service := range live {
				s.addressOf(ctx, service)
				s.expectDisjoint(ctx, history)
			}
			if len(live) > 6 {
				s.stop(ctx, live[1:6]...)
				live = append(live[:1], live[6:]...)
			}
		}
		addresses := s.addressesOf(ctx, live...)
		Eventually(func(g Gomega) {
			s.expectDisjoint(ctx, history)
			blocks := s.blocks(ctx)
			for name, a := range blocks {
				g.Expect(a.DeletionTimestamp).To(BeNil(), name)
				g.Expect(meta.IsStatusConditionFalse(a.Status.Conditions, v1alpha1.InUseCondition)).To(BeFalse(), name)
				g.Expect(meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)).To(BeFalse(), name)
			}
			p, err := metalLBPool(ctx, "default-pool")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Spec.Addresses).To(HaveLen(len(blocks)))
			g.Expect(p.Status.AssignedIPv4).To(Equal(int64(len(addresses))))
		}).Should(Succeed())
		writesNothing(ctx, first, managers...)
		Expect(s.addressesOf(ctx, live...)).To(Equal(addresses)) // no Service was moved
	})
})
