package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var _ = Describe("A tenant that is deleted", func() {
	var s *story
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 11)
		s.begin(ctx, nil)
	})

	gone := func(ctx context.Context) {
		GinkgoHelper()
		s.expectBlocks(ctx, map[string]int{})
		Eventually(func() bool {
			return apierrors.IsNotFound(management.Get(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster.DeepCopy()))
		}).Should(BeTrue())
		Expect(s.free(ctx, "other", 2)).To(Equal(s.net + "10"))
	}

	// held deletes the Cluster, which then has only the finalizer of its machines and ours.
	held := func(ctx context.Context) {
		GinkgoHelper()
		const machines = "machines.example.com/hold"
		Expect(retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the manager writes the Cluster, too
			if err := management.Get(ctx, client.ObjectKeyFromObject(s.cluster), s.cluster); err != nil {
				return err
			}
			controllerutil.AddFinalizer(s.cluster, machines)
			return management.Update(ctx, s.cluster)
		})).To(Succeed())
		Expect(s.cluster.Finalizers).To(ConsistOf(machines, v1alpha1.TenantNetworkFinalizer))
		Expect(management.Delete(ctx, s.cluster)).To(Succeed())
	}

	It("keeps its blocks until its machines are gone", func(ctx SpecContext) { // B68
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		held(ctx)
		// The Cluster is reconciled as before.
		pool, err := metalLBPool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
		workload.change(ctx, pool, `{"spec":{"autoAssign":false}}`)
		Eventually(func(g Gomega) {
			pool, err := metalLBPool(ctx, "default-pool")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pool.Spec.AutoAssign).To(HaveValue(BeTrue()))
		}).Should(Succeed())
		s.expectPoolEntries(ctx, "10-10", "11-11")
		for name, a := range s.blocks(ctx) {
			Expect(a.DeletionTimestamp).To(BeNil(), name)
		}
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		management.change(ctx, s.cluster, `{"metadata":{"finalizers":["`+v1alpha1.TenantNetworkFinalizer+`"]}}`)
		gone(ctx)
	})

	It("releases a block although the tenant is unreachable and has not confirmed the drain", func(ctx SpecContext) { // F2, B43, B68
		m := startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		stopWorkloadAPIServer()
		Expect(management.Delete(ctx, s.blocks(ctx)["lb-1"])).To(Succeed())
		s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.TenantUnreachableReason)
		expectRestMeanwhile(ctx, m)
		held(ctx)
		management.change(ctx, s.cluster, `{"metadata":{"finalizers":["`+v1alpha1.TenantNetworkFinalizer+`"]}}`)
		gone(ctx)
	})

	It("releases a block that is being drained", func(ctx SpecContext) { // B68
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		thaw := freezeMetalLB()
		s.stop(ctx, second)
		s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.ConfirmingReason)
		thaw()
		Expect(management.Delete(ctx, s.cluster)).To(Succeed())
		gone(ctx)
	})

	It("without our finalizer loses its blocks as orphans", func(ctx SpecContext) { // B70
		m := startManager(ctx, "--orphan-grace=1s")
		s.served(ctx, "first", "10")
		s.served(ctx, "second", "11")
		Expect(m.Kill()).To(Succeed())
		management.change(ctx, s.cluster, `{"metadata":{"finalizers":null}}`)
		Expect(management.Delete(ctx, s.cluster)).To(Succeed())
		startManager(ctx, "--orphan-grace=1s")
		gone(ctx)
	})
})
