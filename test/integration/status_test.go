package integration

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// expectNumbers waits for the integers of a pool's status as kubectl shows them: an omitted field is missing, and not
// zero.
func expectNumbers(ctx context.Context, pool *v1alpha1.NetworkPool, want map[string]int64) {
	GinkgoHelper()
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(pool), raw)).To(Succeed())
		status, _, err := unstructured.NestedMap(raw.Object, "status")
		g.Expect(err).NotTo(HaveOccurred())
		for field, n := range want {
			g.Expect(status).To(HaveKeyWithValue(field, n))
		}
	}).Should(Succeed())
}

var _ = Describe("A pool's status", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("counts every address, and shows counts of zero", func(ctx SpecContext) { // B6, B7, B8, U16
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.15.0.0/28").Gateway("10.15.0.14").Reserved("10.15.0.12-10.15.0.13").Obj()
		create(ctx, pool) // the hosts .1 to .11
		expectNumbers(ctx, pool, map[string]int64{
			"totalIPs": 11, "allocatedIPs": 0, "availableIPs": 11, "outOfRangeIPs": 0, "allocationCount": 0,
			"largestFreeBlock": 11, "fragmentationPercent": 0, "observedGeneration": 1,
		})
		for _, last := range []int{4, 9} { // this leaves .1-.3, .5-.8 and .10-.11
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("at%d", last)).Pool("p").RequestAddress(fmt.Sprintf("10.15.0.%d", last)).Obj())
		}
		expectNumbers(ctx, pool, map[string]int64{
			"totalIPs": 11, "allocatedIPs": 2, "availableIPs": 9, "allocationCount": 2, "largestFreeBlock": 4, "fragmentationPercent": 55,
		})
		Eventually(func() (float64, error) { return m.ReadMetric(ctx, "butler_ipam_pool_fragmentation_ratio") }).Should(Equal(0.55))
		burst(ctx, ns, 9)
		expectNumbers(ctx, pool, map[string]int64{
			"totalIPs": 11, "allocatedIPs": 11, "availableIPs": 0, "outOfRangeIPs": 0, "allocationCount": 11,
			"largestFreeBlock": 0, "fragmentationPercent": 0, "observedGeneration": 1,
		})
		modify(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Spec.Reserved = nil })
		expectNumbers(ctx, pool, map[string]int64{"totalIPs": 13, "availableIPs": 2, "observedGeneration": 2})
		Expect(m.Stop()).To(Succeed())
	})

	It("does not count cooling and preallocated addresses as available", func(ctx SpecContext) { // B6, W15
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.15.1.1-10.15.1.10").PreAllocate("vip", "10.15.1.5").ReuseGracePeriod(3600).Obj()
		create(ctx, pool)
		expectNumbers(ctx, pool, map[string]int64{"totalIPs": 10, "allocatedIPs": 0, "availableIPs": 9, "largestFreeBlock": 5})
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		deleteClaim(ctx, ns, "c")
		expectNumbers(ctx, pool, map[string]int64{"totalIPs": 10, "allocatedIPs": 0, "availableIPs": 8})
		Expect(m.Stop()).To(Succeed())
	})

	It("has all conditions from the start, each with reason and message", func(ctx SpecContext) { // B9, B10, B80
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.15.2.1-10.15.2.20").Obj()
		create(ctx, pool)
		Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(
			Equal("20/20 IPs available (0 allocations)"))
		Expect(expectCondition(ctx, pool, v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason)).NotTo(BeEmpty())
		for _, condition := range []string{"CapacityWarning", "CapacityCritical", "CapacityExhausted"} {
			Expect(expectCondition(ctx, pool, condition, metav1.ConditionFalse, v1alpha1.BelowThresholdReason)).To(ContainSubstring("0% (0/20 IPs)"))
		}
		for _, c := range pool.Status.Conditions {
			Expect(c.ObservedGeneration).To(Equal(pool.Generation), c.Type)
		}
		burst(ctx, ns, 3)
		Eventually(func() string {
			return expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		}).Should(Equal("17/20 IPs available (3 allocations)"))
		Expect(m.Stop()).To(Succeed())
	})

	It("warns at 70, 85 and 95 percent, once each", func(ctx SpecContext) { // B75, B76, B77, F14
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).Addresses("10.15.3.1-10.15.3.20").Obj()
		create(ctx, pool)
		claimed := 0
		use := func(n int) {
			GinkgoHelper()
			for ; claimed < n; claimed++ {
				create(ctx, framework.MakeClaim(ns, fmt.Sprintf("u%d", claimed)).Pool("p").Obj())
			}
			for ; claimed > n; claimed-- {
				deleteClaim(ctx, ns, fmt.Sprintf("u%d", claimed-1))
			}
			expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": int64(n)})
		}
		tiers := []string{"CapacityWarning", "CapacityCritical", "CapacityExhausted"}
		expectTiers := func(reached int) {
			GinkgoHelper()
			for i, condition := range tiers {
				if i < reached {
					expectCondition(ctx, pool, condition, metav1.ConditionTrue, v1alpha1.AboveThresholdReason)
				} else {
					expectCondition(ctx, pool, condition, metav1.ConditionFalse, v1alpha1.BelowThresholdReason)
				}
			}
		}
		var want []any
		for i, n := range []int{14, 17, 19} {
			use(n - 1)
			expectTiers(i)
			use(n)
			expectTiers(i + 1)
			want = append(want, "Pool"+tiers[i])
			Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ConsistOf(want...))
		}
		// Below and above again: no event is repeated within ten minutes, not even by a manager that starts again.
		use(18)
		expectTiers(2)
		use(19)
		expectTiers(3)
		Expect(m.Stop()).To(Succeed())
		m = namespaceManager(ctx, ns)
		use(20)
		expectTiers(3)
		Expect(eventsOf(ctx, pool)).To(ConsistOf(want...))
		use(0)
		expectTiers(0)
		Expect(eventsOf(ctx, pool)).To(ConsistOf(want...))
		// The recovery is recorded once when the ten minutes are over, by any manager.
		Expect(m.Stop()).To(Succeed())
		modifyStatus(ctx, pool, func(p *v1alpha1.NetworkPool) {
			for i := range p.Status.CapacityEvents {
				e := &p.Status.CapacityEvents[i]
				e.Time = metav1.NewTime(e.Time.Add(-11 * time.Minute))
			}
		})
		m = namespaceManager(ctx, ns)
		want = append(want, "PoolCapacityRecovered", "PoolCapacityRecovered", "PoolCapacityRecovered")
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ConsistOf(want...))
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		use(1)
		Expect(eventsOf(ctx, pool)).To(ConsistOf(want...))
		Expect(m.Stop()).To(Succeed())
	})
})
