package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant with two pools", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	// taken allocates the given addresses of each pool to others.
	taken := func(ctx context.Context, of map[string][]int) {
		GinkgoHelper()
		m := startManager(ctx)
		for pool, addresses := range of {
			for _, last := range addresses {
				at := fmt.Sprintf("%s%d", s.net, last)
				a := framework.MakeAllocation(s.ns, fmt.Sprintf("other-%d", last)).Pool(pool).PinnedRange(at, at).Cluster(s.ns, "elsewhere").Obj()
				Expect(management.Create(ctx, a)).To(Succeed())
				Expect(waitForGrant(ctx, a)).To(Equal(at))
			}
		}
		Expect(m.Kill()).To(Succeed())
	}

	It("grows by one block of the second pool when the first is fragmented", func(ctx SpecContext) { // F7, B25
		s.pool(ctx, "p", 10, 19)
		s.pool(ctx, "q", 30, 39)
		taken(ctx, map[string][]int{"p": {11, 13, 15, 17}}) // 10, 12, 14, 16 and 18-19 are free
		services := s.serveAll(ctx, "a", "b", "c", "d")
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.addressesOf(ctx, services...)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 3})
		Expect(s.blocks(ctx)["lb"].Spec.PoolRef.Name).To(Equal("p"))
		Expect(s.blocks(ctx)["lb-1"].Spec.PoolRef.Name).To(Equal("q"))
	})

	It("grows by several blocks when no pool has one contiguous range of the size", func(ctx SpecContext) { // F7
		s.pool(ctx, "p", 10, 19)
		s.pool(ctx, "q", 30, 33)
		taken(ctx, map[string][]int{"p": {11, 13, 15, 17}, "q": {31}}) // 30 and 32-33 are free
		services := s.serveAll(ctx, "a", "b", "c", "d", "e", "f", "g")
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.addressesOf(ctx, services...)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, "True", v1alpha1.SatisfiedReason)
		total := int64(0)
		for _, a := range s.blocks(ctx) {
			total += a.Status.AllocatedCount
		}
		Expect(total).To(Equal(int64(7)))
		s.expectDisjoint(ctx, &invariants.History{})
	})

	It("reports that both pools are exhausted, and grows when an address is free again", func(ctx SpecContext) { // F7, B40
		s.pool(ctx, "p", 10, 10)
		s.pool(ctx, "q", 30, 31)
		taken(ctx, map[string][]int{"q": {30}})
		services := s.serveAll(ctx, "a", "b", "c")
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, "False", v1alpha1.PoolExhaustedReason)
		Expect(condition.Message).To(And(ContainSubstring("NetworkPool p"), ContainSubstring("NetworkPool q")))
		other := framework.MakeAllocation(s.ns, "other-30").Obj()
		Expect(management.Delete(ctx, other)).To(Succeed())
		s.addressesOf(ctx, services...)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, "True", v1alpha1.SatisfiedReason)
	})

	It("grows from the pool with the lower priority first, whatever their order", func(ctx SpecContext) { // F6
		s.pool(ctx, "p", 10, 19)
		s.pool(ctx, "q", 30, 31)
		s.config.Spec.Network.PoolRefs[0].Priority = 7
		s.config.Spec.Network.PoolRefs[1].Priority = 3
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "a", "30")
		s.served(ctx, "b", "31")
		s.served(ctx, "c", "10")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
	})
})
