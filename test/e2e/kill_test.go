package e2e

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant whose manager is killed", func() {
	var s *story
	var history *invariants.History
	var m *framework.Manager
	BeforeEach(func(ctx SpecContext) {
		s, history = newStory(ctx), &invariants.History{}
		s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
		m = startManager(ctx, "--shrink-grace="+grace)
	})

	// killed kills the manager when lb-1 is in a state, and returns the block.
	killed := func(w watch.Interface, matches func(*v1alpha1.IPAllocation) bool) *v1alpha1.IPAllocation {
		GinkgoHelper()
		seen := watchUntil(w, func(_ watch.EventType, a *v1alpha1.IPAllocation) bool {
			return a.Name == s.ns+"-tenant-lb-1" && matches(a)
		})
		Expect(m.Kill()).To(Succeed())
		return seen[len(seen)-1]
	}
	draining := func(a *v1alpha1.IPAllocation) bool {
		return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)
	}

	DescribeTable("grows if that happens after", func(ctx SpecContext, matches func(*v1alpha1.IPAllocation) bool) { // B37, B58, F5, F19
		s.served(ctx, "first", "10")
		w := s.watching(ctx)
		second := s.serve(ctx, "second")
		killed(w, matches)
		s.expectDisjoint(ctx, history)
		startManager(ctx, "--shrink-grace=1h")
		expectAddress(ctx, second, s.net+"11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		s.expectPoolEntries(ctx, "10-10", "11-11")
		s.expectDisjoint(ctx, history)
	},
		Entry("a block is requested", func(*v1alpha1.IPAllocation) bool { return true }),
		Entry("the block is granted", func(a *v1alpha1.IPAllocation) bool { return a.Status.Phase == v1alpha1.AllocationAllocated }),
		Entry("our finalizer is on the block", func(a *v1alpha1.IPAllocation) bool {
			return controllerutil.ContainsFinalizer(a, v1alpha1.TenantPoolFinalizer)
		}),
	)

	It("grows if that happens after the block is in the MetalLB pool", func(ctx SpecContext) { // B37
		s.served(ctx, "first", "10")
		w, err := workload.Watch(ctx, &metallbv1beta1.IPAddressPoolList{}, client.InNamespace(framework.MetalLBNamespace))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		second := s.serve(ctx, "second")
		watchUntil(w, func(_ watch.EventType, p *metallbv1beta1.IPAddressPool) bool { return len(p.Spec.Addresses) == 2 })
		Expect(m.Kill()).To(Succeed())
		expectAddress(ctx, second, s.net+"11") // this no longer needs the manager
		startManager(ctx, "--shrink-grace=1h")
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
	})

	DescribeTable("shrinks if that happens after", func(ctx SpecContext, matches func(*v1alpha1.IPAllocation) bool) { // B46, B47, F1, F2
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		w := s.watching(ctx)
		s.stop(ctx, second)
		killed(w, matches)
		s.expectDisjoint(ctx, history)
		startManager(ctx, "--shrink-grace="+grace)
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		s.expectPoolEntries(ctx, "10-10")
		Expect(s.free(ctx, "other", 1)).To(Equal(s.net + "11"))
		s.expectDisjoint(ctx, history)
	},
		Entry("a block is found idle", func(a *v1alpha1.IPAllocation) bool {
			return meta.IsStatusConditionFalse(a.Status.Conditions, v1alpha1.InUseCondition)
		}),
		Entry("the block starts to drain", draining),
		Entry("the block is deleted", func(a *v1alpha1.IPAllocation) bool { return a.DeletionTimestamp != nil }),
	)

	It("keeps a draining block if a Service needs it when the manager starts again", func(ctx SpecContext) { // B50, F2
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		w := s.watching(ctx)
		thaw := freezeMetalLB()
		s.stop(ctx, second)
		before := killed(w, draining)
		thaw()
		third := s.serve(ctx, "third")
		startManager(ctx, "--shrink-grace="+grace)
		expectAddress(ctx, third, s.net+"11")
		s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionFalse, v1alpha1.InUseAgainReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		Expect(s.blocks(ctx)["lb-1"].UID).To(Equal(before.UID))
	})
})
