package e2e

import (
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A tenant without MetalLB", func() {
	BeforeEach(func() {
		cp, err := framework.StartControlPlane(framework.Options{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
		admin, err := cp.NewClient()
		Expect(err).NotTo(HaveOccurred())
		before := workload
		workload = cluster{ControlPlane: cp, WithWatch: admin}
		DeferCleanup(func() { workload = before })
	})

	It("gets its block in MetalLB once MetalLB is installed", func(ctx SpecContext) { // B33
		s := newStory(ctx)
		Expect(workload.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: framework.MetalLBNamespace}})).To(Succeed()) // for its role
		s.pool(ctx, "p", 10, 99)
		s.begin(ctx, nil)
		manager := startManager(ctx, "--shrink-grace="+grace)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionUnknown, v1alpha1.MetalLBMissingReason)
		services := s.serveAll(ctx, "first", "second")
		expectRestMeanwhile(ctx, manager)
		Expect(workload.InstallMetalLB(ctx)).To(Succeed())
		withLongTimeout(func() { s.expectPoolEntries(ctx, "10-10", "11-11") }) // before any controller reads it
		m, err := workload.StartMetalLB(ctx)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(m.Kill()).To(Succeed()) })
		s.addressesOf(ctx, services...)
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})

		By("uninstalling MetalLB")
		Expect(m.Kill()).To(Succeed())
		// A pool that is restored while its CRD is deleted would be left over.
		Expect(manager.Signal(syscall.SIGSTOP)).To(Succeed())
		Expect(workload.UninstallMetalLB(ctx)).To(Succeed())
		Expect(manager.Signal(syscall.SIGCONT)).To(Succeed())
		withLongTimeout(func() {
			s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionUnknown, v1alpha1.MetalLBMissingReason)
		})
		block := s.blocks(ctx)["lb-1"]
		Expect(management.Delete(ctx, block)).To(Succeed())
		drained := s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.ConfirmingReason)
		Expect(drained.Message).To(ContainSubstring("has " + block.Status.StartAddress)) // no controller has cleared the Service
		Expect(workload.DeleteAllOf(ctx, &corev1.Service{}, client.InNamespace(s.services))).To(Succeed())
		s.expectBlocks(ctx, map[string]int{"lb": 1})

		By("installing MetalLB again")
		Expect(workload.InstallMetalLB(ctx)).To(Succeed())
		withLongTimeout(func() { s.expectPoolEntries(ctx, "10-10") })
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)
	})
})
