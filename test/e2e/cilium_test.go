package e2e

import (
	"context"
	"fmt"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Only the LB IPAM of Cilium's operator runs here.
var _ = Describe("A tenant with Cilium", Ordered, func() {
	var (
		s      *story
		lbIPAM *framework.LBIPAM
	)
	BeforeAll(func(ctx SpecContext) {
		before := workload
		workload = startCluster(twoFamilies)
		DeferCleanup(func() { workload = before })
		Expect(workload.InstallCilium(ctx)).To(Succeed())
		var err error
		lbIPAM, err = workload.StartLBIPAM()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(lbIPAM.Kill()).To(Succeed()) })
	})
	BeforeEach(func(ctx SpecContext) {
		s = newStory(ctx)
		s.pool(ctx, "p", 10, 99)
		s.config.Spec.Network.LoadBalancer.Type = v1alpha1.CiliumLoadBalancer
		DeferCleanup(func(ctx SpecContext) {
			if CurrentSpecReport().Failed() {
				GinkgoWriter.Println(lbIPAM.LogTail(40))
			}
			Expect(workload.DeleteAllOf(ctx, &cilium.Pool{})).To(Succeed())
		})
	})

	pool := func(ctx context.Context, name string) (*cilium.Pool, error) {
		p := &cilium.Pool{}
		return p, workload.Get(ctx, client.ObjectKey{Name: name}, p)
	}
	shows := func(ctx context.Context, name string, disabled bool, last ...int) {
		GinkgoHelper()
		var want []cilium.Block
		for _, l := range last {
			want = append(want, cilium.Block{Start: fmt.Sprint(s.net, l), Stop: fmt.Sprint(s.net, l)})
		}
		Eventually(func(g Gomega) {
			p, err := pool(ctx, name)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.Spec.Blocks).To(Equal(want))
			g.Expect(p.Spec.Disabled).To(Equal(disabled))
		}).Should(Succeed())
	}
	freeze := func() (thaw func()) {
		GinkgoHelper()
		Expect(lbIPAM.Signal(syscall.SIGSTOP)).To(Succeed())
		thaw = func() { Expect(lbIPAM.Signal(syscall.SIGCONT)).To(Succeed()) }
		DeferCleanup(thaw)
		return thaw
	}

	It("grows and shrinks with its Services", func(ctx SpecContext) { // U70, U71, U72
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		shows(ctx, "default-pool", false, 10)
		second := s.serve(ctx, "second", func(service *corev1.Service) { service.Spec.LoadBalancerClass = ptr.To("io.cilium/l2-announcer") })
		Expect(s.addressOf(ctx, second)).To(Equal(s.net + "11"))
		shows(ctx, "default-pool", false, 10, 11)
		shared := s.serve(ctx, "shared", annotated("lbipam.cilium.io/sharing-key", "k"))
		Expect(s.addressOf(ctx, shared)).To(Equal(s.net + "12"))
		beside := s.serve(ctx, "beside", annotated("lbipam.cilium.io/sharing-key", "k"), func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
		Expect(s.addressOf(ctx, beside)).To(Equal(s.net + "12"))
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1, "lb-2": 1})
		s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionTrue, v1alpha1.SatisfiedReason)

		s.stop(ctx, second, shared, beside)
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		shows(ctx, "default-pool", false, 10)
		Expect(s.free(ctx, "other", 1)).To(Equal(s.net + "11"))
	})

	It("releases no block before Cilium has applied the change of its pool", func(ctx SpecContext) { // U71
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		thaw := freeze()
		s.stop(ctx, second)
		shows(ctx, "default-pool", false, 10)
		var condition metav1.Condition
		Eventually(func(g Gomega) {
			condition = s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.ConfirmingReason)
			g.Expect(condition.Message).To(ContainSubstring("Cilium has not applied the change of CiliumLoadBalancerIPPool default-pool"))
		}).Should(Succeed())
		Expect(s.free(ctx, "other", 1)).To(Equal(s.net + "12"))
		thaw()
		withLongTimeout(func() { s.expectBlocks(ctx, map[string]int{"lb": 1}) })
		Expect(s.free(ctx, "another", 1)).To(Equal(s.net + "11"))
	})

	It("has a pool for each block, which is disabled, drained and then deleted", func(ctx SpecContext) { // U71
		s.config.Spec.Network.LoadBalancer.Projection = v1alpha1.PoolPerAllocationProjection
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		second := s.served(ctx, "second", "11")
		name := s.ns + "-tenant-lb-1"
		shows(ctx, name, false, 11)
		thaw := freeze()
		Expect(management.Delete(ctx, s.blocks(ctx)["lb-1"])).To(Succeed())
		shows(ctx, name, true, 11)
		thaw()
		// Its Service keeps the address until it is deleted, and no other Service gets it.
		third := s.serve(ctx, "third")
		Expect(s.addressOf(ctx, third)).To(Equal(s.net + "12"))
		condition := s.condition(ctx, "lb-1", v1alpha1.DrainingCondition, metav1.ConditionTrue, v1alpha1.ConfirmingReason)
		Expect(condition.Message).To(Or(ContainSubstring("has "+s.net+"11"), ContainSubstring("not of generation")))
		s.stop(ctx, second)
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-2": 1})
		Eventually(func(g Gomega) {
			_, err := pool(ctx, name)
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
		}).Should(Succeed())
	})

	It("does not grow for Services that growth does not help, and records Cilium's message as an event on them", func(ctx SpecContext) { // U73
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		s.served(ctx, "first", "10")
		foreign := s.serve(ctx, "foreign", func(service *corev1.Service) { service.Spec.LoadBalancerClass = ptr.To("example.com/other") })
		elsewhere := s.serve(ctx, "elsewhere", annotated("lbipam.cilium.io/ips", "203.0.113.5"))
		taken := s.serve(ctx, "taken", annotated("lbipam.cilium.io/ips", s.net+"10"))
		for _, service := range []*corev1.Service{elsewhere, taken} {
			Eventually(func() []string { return eventsOn(ctx, workload, s.services, service.UID, "NoAddress") }).ShouldNot(BeEmpty(), service.Name)
		}
		s.served(ctx, "second", "11")
		s.expectBlocks(ctx, map[string]int{"lb": 1, "lb-1": 1})
		Expect(eventsOn(ctx, workload, s.services, foreign.UID, "NoAddress")).To(BeEmpty())
	})

	It("leaves a foreign pool unchanged, and reports one that overlaps", func(ctx SpecContext) { // U74, U77
		byHand := func(name, cidr string) *cilium.Pool {
			return &cilium.Pool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: cilium.PoolSpec{Blocks: []cilium.Block{{CIDR: cidr}}}}
		}
		foreign := byHand("default-pool", "10.99.0.0/30")
		Expect(workload.Create(ctx, foreign)).To(Succeed())
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.ForeignPoolReason)
		Expect(condition.Message).To(ContainSubstring("CiliumLoadBalancerIPPool default-pool"))
		kept, err := pool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
		Expect(kept.Generation).To(Equal(foreign.Generation))
		Expect(workload.Delete(ctx, foreign)).To(Succeed())
		shows(ctx, "default-pool", false, 10)

		By("creating one that overlaps, and ours again, so that ours is the younger one")
		overlapping := byHand("by-hand", s.net+"10/32")
		overlapping.Spec.ServiceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no-service": "has"}}
		Expect(workload.Create(ctx, overlapping)).To(Succeed())
		time := metav1.Now().Rfc3339Copy()
		Eventually(func() bool { return metav1.Now().Rfc3339Copy().After(time.Time) }).Should(BeTrue()) // Cilium orders by the second
		ours, err := pool(ctx, "default-pool")
		Expect(err).NotTo(HaveOccurred())
		Expect(workload.Delete(ctx, ours)).To(Succeed())
		shows(ctx, "default-pool", false, 10)
		first := s.serve(ctx, "first")
		withLongTimeout(func() {
			condition = s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.NotPlacedReason)
		})
		Expect(condition.Message).To(And(ContainSubstring("Cilium has a free address"), ContainSubstring("CiliumLoadBalancerIPPool default-pool: "), ContainSubstring("by-hand")))
		Expect(workload.Delete(ctx, overlapping)).To(Succeed())
		Expect(s.addressOf(ctx, first)).To(Equal(s.net + "10"))
	})

	It("stays with Cilium when the ProviderConfig names another load balancer, until its blocks are deleted", func(ctx SpecContext) { // U75, U76
		s.begin(ctx, nil)
		startManager(ctx, "--shrink-grace="+grace)
		first := s.served(ctx, "first", "10")
		management.change(ctx, s.config, `{"spec":{"network":{"loadBalancer":{"type":"MetalLB"}}}}`)
		condition := s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionFalse, v1alpha1.TypeChangedReason)
		Expect(condition.Message).To(ContainSubstring("Cilium is shown the blocks"))
		s.served(ctx, "second", "11") // it is served as before
		before := s.blocks(ctx)["lb"].UID
		Expect(management.DeleteAllOf(ctx, &v1alpha1.IPAllocation{}, client.InNamespace(s.ns))).To(Succeed())
		withLongTimeout(func() {
			s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionUnknown, v1alpha1.MetalLBMissingReason)
		})
		Expect(s.blocks(ctx)["lb"].UID).NotTo(Equal(before))
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(first), first)).To(Succeed())
		Expect(first.Status.LoadBalancer.Ingress).To(BeEmpty())
		p, err := pool(ctx, "default-pool")
		Expect(err == nil && len(p.Spec.Blocks) > 0).To(BeFalse())
	})

	It("moves to another load balancer with the steps of docs/cilium.md, and keeps one of its ranges", func(ctx SpecContext) { // U76
		s.begin(ctx, nil)
		machines := framework.MakeAllocation(s.ns, "machines").Pool("p").Count(1).Cluster(s.ns, "tenant").Obj()
		machines.Spec.Type = v1alpha1.NodesAllocation
		Expect(management.Create(ctx, machines)).To(Succeed())
		other := s.config.DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Namespace: s.ns, Name: "other"}
		other.Spec.Network.LoadBalancer.Type = v1alpha1.MetalLBLoadBalancer
		Expect(management.Create(ctx, other)).To(Succeed())
		startManager(ctx, "--shrink-grace="+grace)
		s.expectBlocks(ctx, map[string]int{"lb": 1})
		first := s.serve(ctx, "first")
		had := s.addressOf(ctx, first)
		ofTenant := client.MatchingLabels{v1alpha1.TeamLabel: s.ns, v1alpha1.TenantLabel: "tenant"}
		Eventually(func(g Gomega) {
			list := &v1alpha1.IPAllocationList{}
			g.Expect(management.List(ctx, list, client.InNamespace(s.ns), ofTenant)).To(Succeed())
			g.Expect(list.Items).To(HaveLen(2))
		}).Should(Succeed())

		label := func(config string) {
			management.change(ctx, s.cluster, `{"metadata":{"labels":{"`+v1alpha1.ProviderConfigLabel+`":`+config+`}}}`)
		}
		label("null")
		Expect(management.DeleteAllOf(ctx, &v1alpha1.IPAllocation{}, client.InNamespace(s.ns), ofTenant,
			client.MatchingLabels{v1alpha1.AllocationTypeLabel: string(v1alpha1.LoadBalancerAllocation)})).To(Succeed())
		withLongTimeout(func() { s.expectBlocks(ctx, map[string]int{}) })
		pinned := framework.MakeAllocation(s.ns, s.ns+"-tenant-lb").Pool("p").Cluster(s.ns, "tenant").Obj()
		pinned.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: had, EndAddress: had}
		Expect(management.Create(ctx, pinned)).To(Succeed())
		label(`"other"`)
		withLongTimeout(func() {
			s.condition(ctx, "lb", v1alpha1.DemandSatisfiedCondition, metav1.ConditionUnknown, v1alpha1.MetalLBMissingReason)
		})
		Expect(s.blocks(ctx)["lb"].Status.StartAddress).To(Equal(had))
		Expect(management.Get(ctx, client.ObjectKeyFromObject(machines), machines)).To(Succeed())
		Expect(machines.DeletionTimestamp).To(BeNil())
	})
})
