package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant with a pool for each block", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 99)
		s.config.Spec.Network.LoadBalancer.Projection = v1alpha1.PoolPerAllocationProjection
		s.begin(ctx, nil)
	})

	shows := func(ctx context.Context, block, last string) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			p, err := metalLBPool(ctx, s.ns+"-tenant-"+block)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Spec.Addresses).To(Equal([]string{s.net + last + "-" + s.net + last}))
			g.Expect(p.Spec.AutoAssign).To(HaveValue(BeTrue()))
			g.Expect(p.Labels).To(HaveKeyWithValue(balancer.ManagedByLabel, balancer.ManagedByValue))
		}).Should(Succeed())
	}

	It("grows by a pool, and drains the pool before its block is released", func(ctx SpecContext) { // B53, F2
		startManager(ctx, "--shrink-grace="+grace)
		shows(ctx, "lb", "10")
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		shows(ctx, "lb-1", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		_, err := metalLBPool(ctx, "default-pool")
		Expect(apierrors.IsNotFound(err)).To(BeTrue())
		waitForAdvertisement(ctx)

		w, err := workload.Watch(ctx, &metallbv1beta1.IPAddressPoolList{}, client.InNamespace(framework.MetalLBNamespace))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		blocks := s.watching(ctx)
		s.stop(ctx, second)
		watchUntil(blocks, func(e watch.EventType, a *v1alpha1.IPAllocation) bool {
			return a.Name == s.ns+"-tenant-lb-1" && (e == watch.Deleted || !a.DeletionTimestamp.IsZero())
		})
		_, err = metalLBPool(ctx, s.ns+"-tenant-lb-1")
		Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the block was released before its pool was gone")
		quiet := false
		seen := watchUntil(w, func(e watch.EventType, p *metallbv1beta1.IPAddressPool) bool {
			if p.Name != s.ns+"-tenant-lb-1" {
				return false
			}
			quiet = quiet || !ptr.Deref(p.Spec.AutoAssign, true)
			return e == watch.Deleted
		})
		Expect(quiet).To(BeTrue(), "the pool was taken away while it served")
		for _, p := range seen {
			Expect(p.Spec.Addresses).NotTo(BeEmpty())
		}
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		shows(ctx, "lb", "10")
	})

	It("keeps the addresses of a deleted block until no Service needs them", func(ctx SpecContext) {
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		block := s.blocks(ctx)["lb-1"]
		Expect(management.Delete(ctx, block)).To(Succeed())
		Eventually(func() string {
			return s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.ConfirmingReason).Message
		}).Should(ContainSubstring("second has"))
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(second), second)).To(Succeed())
		Expect(second.Status.LoadBalancer.Ingress).To(HaveLen(1))
		s.stop(ctx, second)
		Eventually(func() bool {
			return apierrors.IsNotFound(management.Get(ctx, client.ObjectKeyFromObject(block), block))
		}).Should(BeTrue())
	})

	It("serves again from a pool that was being drained", func(ctx SpecContext) { // B50
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		before := s.blocks(ctx)["lb-1"]
		s.stop(ctx, second)
		Eventually(func(g Gomega) {
			p, err := metalLBPool(ctx, s.ns+"-tenant-lb-1")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Spec.AutoAssign).To(HaveValue(BeFalse()))
		}).Should(Succeed())
		s.served(ctx, "third", "11")
		shows(ctx, "lb-1", "11")
		Expect(s.blocks(ctx)["lb-1"].UID).To(Equal(before.UID))
	})

	It("keeps its pools unchanged when its ProviderConfig is deleted, and gets no new block", func(ctx SpecContext) { // B58
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		shows(ctx, "lb-1", "11")
		before, err := metalLBPool(ctx, s.ns+"-tenant-lb-1")
		Expect(err).NotTo(HaveOccurred())
		Expect(management.Delete(ctx, s.config)).To(Succeed())
		third := s.serve(ctx, "third")
		Eventually(func(g Gomega) { // the Cluster controller has reconciled it
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster)).To(Succeed())
			g.Expect(conditions.IsFalse(s.cluster, v1alpha1.NetworkReadyCondition)).To(BeTrue())
		}).Should(Succeed())
		// Edits of users are reverted as before.
		workload.change(ctx, before, `{"spec":{"autoAssign":false}}`)
		shows(ctx, "lb-1", "11")
		shows(ctx, "lb", "10")
		_, err = metalLBPool(ctx, "default-pool")
		Expect(apierrors.IsNotFound(err)).To(BeTrue())
		after, err := metalLBPool(ctx, s.ns+"-tenant-lb-1")
		Expect(err).NotTo(HaveOccurred())
		Expect(after.UID).To(Equal(before.UID))
		Expect(eventsOn(ctx, workload, s.services, third.UID, "NoAddress")).To(BeEmpty())
		Eventually(func() []metav1.Condition { return s.blocks(ctx)["lb"].Status.Conditions }).
			ShouldNot(ContainElement(HaveField("Type", v1alpha1.DemandSatisfiedCondition)), "whether a block more would help, nothing says")
	})
})
