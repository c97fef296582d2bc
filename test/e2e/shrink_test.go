package e2e

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	It("releases a block when it was idle for the grace period, and not before", func(ctx SpecContext) { // B45-B48, B50, F1
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		first := s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		changes, err := management.Watch(ctx, &v1alpha1.IPAllocationList{}, client.InNamespace(s.ns))
		Expect(err).NotTo(HaveOccurred())
		defer changes.Stop()
		idle := time.Now() // the grace must not start earlier
		s.stop(ctx, first, second)
		var last *v1alpha1.IPAllocation
		for e := range changes.ResultChan() {
			a, ok := e.Object.(*v1alpha1.IPAllocation)
			if !ok || a.Name != s.ns+"-tenant-lb-1" {
				continue
			}
			if last = a; e.Type == watch.Deleted {
				break
			}
		}
		in := meta.FindStatusCondition(last.Status.Conditions, v1alpha1.InUseCondition)
		Expect(in).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.IdleReason))))
		patience, err := time.ParseDuration(grace)
		Expect(err).NotTo(HaveOccurred())
		Expect(time.Since(idle)).To(BeNumerically(">=", patience))
		drained := meta.FindStatusCondition(last.Status.Conditions, v1alpha1.DrainingCondition)
		Expect(drained).To(HaveValue(HaveField("Status", metav1.ConditionTrue)))
		Expect(drained.LastTransitionTime.Time).NotTo(BeTemporally("<", in.LastTransitionTime.Add(patience)))
		s.expectPoolEntries(ctx, "10-10")
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		Eventually(func() []string { return eventsOn(ctx, management, s.ns, s.cluster.UID, "LoadBalancerPoolShrunk") }).Should(HaveLen(1))
	})

	It("keeps a block that is older than the grace period when it is idle for a moment", func(ctx SpecContext) { // F1, B50
		const patience = 20 * time.Second // longer than a moment, on a busy machine too
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+patience.String())
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		was := s.blocks(ctx)["lb-1"]
		Expect(was).NotTo(BeNil())
		Eventually(func() time.Duration { return time.Since(was.CreationTimestamp.Time) }).WithTimeout(2 * patience).Should(BeNumerically(">", patience+time.Second))
		stays := func(g Gomega) {
			block := s.blocks(ctx)["lb-1"]
			g.Expect(block).NotTo(BeNil())
			g.Expect(block.UID).To(Equal(was.UID))
			g.Expect(block.DeletionTimestamp).To(BeNil())
			g.Expect(meta.IsStatusConditionTrue(block.Status.Conditions, v1alpha1.DrainingCondition)).To(BeFalse())
		}
		s.stop(ctx, second)
		s.condition(ctx, "lb-1", v1alpha1.InUseCondition, metav1.ConditionFalse, v1alpha1.IdleReason)
		Consistently(stays).WithTimeout(patience / 5).Should(Succeed())
		s.served(ctx, "third", "11")
		s.condition(ctx, "lb-1", v1alpha1.InUseCondition, metav1.ConditionTrue, v1alpha1.InUseReason)
		Consistently(stays).WithTimeout(patience / 5).Should(Succeed())
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
	})

	It("keeps its blocks while it is unreachable, and no other claim gets them", func(ctx SpecContext) { // F2, B43
		p := s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		// Another allocation waits, longer than the tenant will: the tenant's Service still requests an address.
		other := s.allocation("other", 1)
		Expect(management.Create(ctx, other)).To(Succeed())
		failed := func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())
			g.Expect(other.Status.Phase).To(Equal(v1alpha1.AllocationFailed))
		}
		Eventually(failed).Should(Succeed())
		// A user deletes the block while the tenant is unreachable.
		restore := stopWorkloadAPIServer()
		block := s.blocks(ctx)["lb-1"]
		Expect(management.Delete(ctx, block)).To(Succeed())
		drained := s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.TenantUnreachableReason)
		Expect(drained.Message).To(ContainSubstring(v1alpha1.ReleaseUnconfirmedAnnotation))
		Eventually(failed).Should(Succeed())
		restore()
		Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())
			g.Expect(other.Status.StartAddress).To(Equal(s.net + "11"))
		}).WithTimeout(framework.LongTimeout).Should(Succeed()) // MetalLB and the manager continue once their watches are restored
		// By then the tenant had released it.
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
		Expect(second.Status.LoadBalancer.Ingress).To(BeEmpty())
		s.expectPoolEntries(ctx, "10-10")
		Expect(management.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		Expect(p.Status.AllocatedIPs).To(Equal(int64(2)))
	})

	It("is reported as unreachable by a manager that has just started, too", func(ctx SpecContext) { // B43
		s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
		m := startManager(ctx)
		s.served(ctx, "first", "10")
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		Expect(m.Kill()).To(Succeed())
		stopWorkloadAPIServer()
		startManager(ctx)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionUnknown, v1alpha1.TenantUnreachableReason)
	})

	It("loses the addresses of a deleted block, also those that Services have", func(ctx SpecContext) {
		s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
		startManager(ctx)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		block := s.blocks(ctx)["lb-1"]
		other := framework.MakeAllocation(s.ns, "other").PinnedRange(s.net+"11", s.net+"11").Obj()
		Expect(management.Create(ctx, other)).To(Succeed())
		Expect(management.Delete(ctx, block)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(other), other)).To(Succeed())
			g.Expect(other.Status.Phase).To(Equal(v1alpha1.AllocationAllocated))
		}).Should(Succeed())
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
		Expect(second.Status.LoadBalancer.Ingress).To(BeEmpty())
	})

	It("releases a block without confirmation when an operator sets the annotation", func(ctx SpecContext) {
		s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
		startManager(ctx)
		s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		stopWorkloadAPIServer()
		block := s.blocks(ctx)["lb-1"]
		Expect(management.Delete(ctx, block)).To(Succeed())
		s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.TenantUnreachableReason)
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+v1alpha1.ReleaseUnconfirmedAnnotation+`":""}}}`))
		Expect(management.Patch(ctx, block, patch)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(management.Get(ctx, client.ObjectKeyFromObject(block), block))
		}).Should(BeTrue())
	})
})
