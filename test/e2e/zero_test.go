package e2e

import (
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
	})

	It("with an initial pool size of 0 has a pool while a Service needs one", func(ctx SpecContext) { // F3, B22, B53
		s.pool(ctx, "p", 10, 99)
		s.config.Spec.Network.LoadBalancer.InitialPoolSize = ptr.To[int32](0)
		s.begin(ctx, nil)
		w, err := workload.Watch(ctx, &metallbv1beta1.IPAddressPoolList{}, client.InNamespace(framework.MetalLBNamespace))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		startManager(ctx, "--shrink-grace="+grace)
		Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster)).To(Succeed())
			g.Expect(conditions.IsTrue(s.cluster, v1alpha1.NetworkReadyCondition)).To(BeTrue())
		}).Should(Succeed())
		s.expectBlocks(ctx, map[string]int{})
		for range 2 {
			first := s.served(ctx, "first", "10")
			s.expectBlocks(ctx, map[string]int{"lb-1": 1})
			s.condition(ctx, "lb-1", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
			s.stop(ctx, first)
			seen := watchUntil(w, func(e watch.EventType, _ *metallbv1beta1.IPAddressPool) bool { return e == watch.Deleted })
			for _, p := range seen {
				Expect(p.Name).To(Equal("default-pool"))
				Expect(p.Spec.Addresses).To(Equal([]string{s.net + "10-" + s.net + "10"}))
			}
			s.expectBlocks(ctx, map[string]int{})
			_, err := metalLBPool(ctx, "default-pool")
			Expect(apierrors.IsNotFound(err)).To(BeTrue())
		}
	})

	It("uses the number in the name of a released block again", func(ctx SpecContext) { // F8, B41
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		s.served(ctx, "third", "12")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
		s.stop(ctx, second)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-2": 1})
		s.served(ctx, "fourth", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
		s.served(ctx, "fifth", "13")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1, "lb-3": 1})
	})
})
