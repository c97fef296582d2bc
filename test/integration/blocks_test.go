package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gstruct "github.com/onsi/gomega/gstruct"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// allocatedTo waits until an allocation has a block, and returns the block in its status.
func allocatedTo(ctx context.Context, o *v1alpha1.IPAllocation) string {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		g.Expect(o.Status.Phase).To(Equal(v1alpha1.AllocationAllocated), "%+v", o.Status.Conditions)
	}).Should(Succeed())
	return o.Status.CIDR
}

// refusedBlock waits until an allocation has failed, or waits, for a reason, and returns the message.
func refusedBlock(ctx context.Context, o *v1alpha1.IPAllocation, phase v1alpha1.AllocationPhase, reason string) string {
	GinkgoHelper()
	var ready *metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		ready = meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
		g.Expect(ready).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason))))
		g.Expect(o.Status.Phase).To(Equal(phase))
	}).Should(Succeed())
	return ready.Message
}

func remove(ctx context.Context, objs ...client.Object) {
	GinkgoHelper()
	for _, o := range objs {
		Expect(k8s.Delete(ctx, o)).To(Succeed())
	}
	for _, o := range objs {
		expectGone(ctx, o)
	}
}

var _ = Describe("IPAllocations", Ordered, func() {
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })

	It("get a block, and show it in all fields of their status", func(ctx SpecContext) { // B2, B11-B13, B15, B16, B66, B72
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.120.0.0/24").Reserved("10.120.0.0/28").Obj()
		o := framework.MakeAllocation(ns, "lb").Count(8).Obj()
		Expect(k8s.Create(ctx, o)).To(Succeed())
		Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		Expect(o.Status.Phase).To(BeElementOf(v1alpha1.AllocationPending, v1alpha1.AllocationFailed))
		create(ctx, makeCluster(ns, "tenant", false), pool)
		Expect(allocatedTo(ctx, o)).To(Equal("10.120.0.16/29"))
		expectClusterSeen(ctx, o, metav1.ConditionTrue)
		Expect(o.Finalizers).To(ConsistOf(v1alpha1.IPAllocationFinalizer))
		Expect(o.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, "10.120.0.16/29"))
		Expect(o.Status).To(gstruct.MatchAllFields(gstruct.Fields{
			"Phase": Equal(v1alpha1.AllocationAllocated), "CIDR": Equal("10.120.0.16/29"),
			"StartAddress": Equal("10.120.0.16"), "EndAddress": Equal("10.120.0.23"), "AllocatedCount": Equal(int64(8)),
			"Addresses": Equal([]string{
				"10.120.0.16", "10.120.0.17", "10.120.0.18", "10.120.0.19", "10.120.0.20", "10.120.0.21", "10.120.0.22", "10.120.0.23",
			}),
			"ObservedGeneration": Equal(o.Generation), "AllocatedBy": Equal("networkpool-controller"),
			"AllocatedAt": Not(BeNil()), "ReleasedAt": BeNil(),
			"Conditions": ContainElement(And(HaveField("Type", "Ready"), HaveField("Status", metav1.ConditionTrue),
				HaveField("Reason", "Ready"), HaveField("Message", "allocated 8 IPs: 10.120.0.16/29"))),
		}))
		var writers []metav1.ManagedFieldsEntry
		Expect(o.ManagedFields).To(ContainElement(HaveField("Subresource", "status"), &writers))
		Expect(writers).To(HaveExactElements(HaveField("Manager", "butler-ipam-manager")))
		expectNumbers(ctx, pool, map[string]int64{"totalIPs": 239, "allocatedIPs": 8, "availableIPs": 231, "allocationCount": 1})
		// A block that is not a CIDR has the format first-last.
		odd := framework.MakeAllocation(ns, "odd").Count(3).Obj()
		create(ctx, odd)
		Expect(allocatedTo(ctx, odd)).To(Equal("10.120.0.24-10.120.0.26"))
		Eventually(func() []string { return eventsAbout(ctx, ns, o) }).Should(ConsistOf("IPsAllocated"))
	})

	It("default to the count that the pool has for their type", func(ctx SpecContext) { // B5, F22
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.120.1.0/24").TenantRange("10.120.1.32", "10.120.1.95").Obj()
		pool.Spec.TenantAllocation.Defaults = &v1alpha1.AllocationDefaults{NodesPerTenant: 3, LBPoolPerTenant: 6}
		nodes, lb := framework.MakeAllocation(ns, "nodes").ForNodes().Obj(), framework.MakeAllocation(ns, "lb").Obj()
		create(ctx, pool, framework.MakePool("plain").Namespace(ns).CIDR("10.120.2.0/24").Obj(), nodes, lb)
		allocatedTo(ctx, nodes)
		allocatedTo(ctx, lb)
		Expect(nodes.Status.AllocatedCount).To(Equal(int64(3)))
		Expect(lb.Status.AllocatedCount).To(Equal(int64(6)))
		// Pools without defaults: 5 and 8.
		nodes, lb = framework.MakeAllocation(ns, "nodes-2").Pool("plain").ForNodes().Obj(), framework.MakeAllocation(ns, "lb-2").Pool("plain").Obj()
		create(ctx, nodes, lb)
		allocatedTo(ctx, nodes)
		allocatedTo(ctx, lb)
		Expect(nodes.Status.AllocatedCount).To(Equal(int64(5)))
		Expect(lb.Status.AllocatedCount).To(Equal(int64(8)))
	})

	It("fail with a reason, and are served when addresses are free", func(ctx SpecContext) { // B27-B29, F15
		ns := newNamespace(ctx, nil)
		first := framework.MakeAllocation(ns, "first").Count(6).Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.120.3.0/28").Obj(), first)
		allocatedTo(ctx, first)
		late, small := framework.MakeAllocation(ns, "late").Count(10).Obj(), framework.MakeAllocation(ns, "small").Count(4).Obj()
		create(ctx, late)
		Expect(refusedBlock(ctx, late, v1alpha1.AllocationFailed, "PoolExhausted")).To(ContainSubstring("no contiguous block available"))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, small) // one failure never blocks another allocation
		allocatedTo(ctx, small)
		remove(ctx, small)
		remove(ctx, first)
		allocatedTo(ctx, late)
		Eventually(func() []string { return eventsAbout(ctx, ns, late) }).Should(ConsistOf("AllocationFailed", "IPsAllocated"))
	})

	It("can be pinned to a range, but not to addresses that are taken, reserved, the gateway or outside the pool", func(ctx SpecContext) { // B61, B62, F12
		ns := newNamespace(ctx, nil)
		pin := framework.MakeAllocation(ns, "pinned").PinnedRange("10.120.4.8", "10.120.4.11").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.120.4.0/28").Gateway("10.120.4.1").Reserved("10.120.4.14").Obj(), pin)
		Expect(allocatedTo(ctx, pin)).To(Equal("10.120.4.8/30"))
		for name, c := range map[string]struct{ first, last, want string }{
			"taken":    {"10.120.4.6", "10.120.4.8", "10.120.4.8/30, which is held by IPAllocation " + ns + "/pinned"},
			"reserved": {"10.120.4.13", "10.120.4.14", "does not hand out, such as 10.120.4.14, which is reserved by spec.reserved[0] ("},
			"gateway":  {"10.120.4.1", "10.120.4.2", "does not hand out, such as 10.120.4.1, which is the gateway (spec.gateway)"},
			"outside":  {"10.120.4.12", "10.120.4.20", "does not hand out, such as 10.120.4.14, which is reserved by spec.reserved[0] ("},
		} {
			o := framework.MakeAllocation(ns, name).PinnedRange(c.first, c.last).Obj()
			create(ctx, o)
			Expect(refusedBlock(ctx, o, v1alpha1.AllocationFailed, "AllocationFailed")).To(ContainSubstring(c.want))
		}
		free := framework.MakeAllocation(ns, "free").PinnedRange("10.120.4.6", "10.120.4.7").Obj()
		create(ctx, free)
		Expect(allocatedTo(ctx, free)).To(Equal("10.120.4.6/31"))
	})

	It("may be of IPv6, and larger than the list of addresses in their status", func(ctx SpecContext) { // B65, B67
		ns := newNamespace(ctx, nil)
		huge, large := framework.MakeAllocation(ns, "huge").Count(1<<31-1).Obj(), framework.MakeAllocation(ns, "large").Count(65536).Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("2001:db8:20::/64").Obj(), large)
		allocatedTo(ctx, large)
		Expect(large.Status.Addresses).To(HaveLen(65536))
		create(ctx, huge)
		allocatedTo(ctx, huge)
		s := huge.Status
		Expect([]string{s.StartAddress, s.EndAddress, s.CIDR}).To(Equal(
			[]string{"2001:db8:20::1:1", "2001:db8:20::8000:ffff", "2001:db8:20::1:1-2001:db8:20::8000:ffff"}))
		Expect(s.AllocatedCount).To(Equal(int64(1<<31 - 1)))
		Expect(len(s.Addresses)).To(And(BeNumerically(">", 60000), BeNumerically("<=", 65536))) // etcd's limit for an object
		remove(ctx, large, huge)
	})

	It("of a global pool are served in the namespaces that it serves", func(ctx SpecContext) {
		ns, other := newNamespace(ctx, map[string]string{"team": "a"}), newNamespace(ctx, nil)
		create(ctx, framework.MakeGlobalPool("blocks").CIDR("10.120.5.0/28").ForNamespaces("team", "a").Obj())
		in, out := framework.MakeAllocation(ns, "in").GlobalPool("blocks").Count(4).Obj(), framework.MakeAllocation(other, "out").GlobalPool("blocks").Count(4).Obj()
		create(ctx, in, out)
		allocatedTo(ctx, in)
		Expect(refusedBlock(ctx, out, v1alpha1.AllocationFailed, "AllocationFailed")).To(ContainSubstring("does not serve namespace " + other))
		remove(ctx, in, out)
	})

	It("record the time of their release, and their block is granted to the next one", func(ctx SpecContext) { // B13, B69
		ns := newNamespace(ctx, nil)
		o := framework.MakeAllocation(ns, "lb").Count(8).Obj()
		o.Finalizers = []string{"example.com/watcher"}
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.120.6.0/29").AllocateReservedAddresses().Obj()
		create(ctx, pool, o)
		allocatedTo(ctx, o)
		next := framework.MakeAllocation(ns, "next").Count(8).Obj()
		create(ctx, next)
		refusedBlock(ctx, next, v1alpha1.AllocationFailed, "PoolExhausted")
		Expect(k8s.Delete(ctx, o)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
			g.Expect(o.Status.Phase).To(Equal(v1alpha1.AllocationReleased))
			g.Expect(o.Status.ReleasedAt).NotTo(BeNil())
			g.Expect(o.Finalizers).To(ConsistOf("example.com/watcher"))
		}).Should(Succeed())
		// The allocation still exists, so its block is not free (I3).
		Expect(refusedBlock(ctx, next, v1alpha1.AllocationFailed, "PoolExhausted")).NotTo(BeEmpty())
		Expect(statusOf(ctx, pool).AllocatedIPs).To(Equal(int64(8)))
		modify(ctx, o, func(o *v1alpha1.IPAllocation) { o.Finalizers = nil })
		allocatedTo(ctx, next)
		Expect(next.Status.CIDR).To(Equal("10.120.6.0/29"))
	})

	It("keep their block when their status, record and finalizer are overwritten", func(ctx SpecContext) { // R8, I4
		ns := newNamespace(ctx, nil)
		o, other := framework.MakeAllocation(ns, "lb").Count(4).Obj(), framework.MakeAllocation(ns, "other").Count(4).Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.120.7.0/28").Obj(), o)
		was := allocatedTo(ctx, o)
		create(ctx, other)
		allocatedTo(ctx, other)
		status := o.Status.DeepCopy()
		same := func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
			g.Expect(o.Status.CIDR).To(Equal(was))
			g.Expect(o.Status.Addresses).To(Equal(status.Addresses))
			g.Expect(o.Status.Phase).To(Equal(v1alpha1.AllocationAllocated))
			g.Expect(o.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, was))
			g.Expect(o.Finalizers).To(ContainElement(v1alpha1.IPAllocationFinalizer))
		}
		modifyStatus(ctx, o, func(o *v1alpha1.IPAllocation) {
			o.Status.StartAddress, o.Status.EndAddress, o.Status.CIDR = other.Status.StartAddress, other.Status.EndAddress, other.Status.CIDR
		})
		Eventually(same).Should(Succeed())
		modifyStatus(ctx, o, func(o *v1alpha1.IPAllocation) {
			o.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationPending}
		})
		Eventually(same).Should(Succeed())
		modify(ctx, o, func(o *v1alpha1.IPAllocation) { o.Annotations[v1alpha1.AddressAnnotation] = other.Status.CIDR })
		Eventually(same).Should(Succeed())
		modify(ctx, o, func(o *v1alpha1.IPAllocation) { o.Annotations, o.Finalizers = nil, nil })
		Eventually(same).Should(Succeed())
		expectNothingWrong(ctx, ns)
	})

	It("wait while their Cluster is paused, and are not released then", func(ctx SpecContext) { // B.10
		ns := newNamespace(ctx, nil)
		cluster := makeCluster(ns, "tenant", true)
		o := framework.MakeAllocation(ns, "lb").Count(4).Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.120.8.0/28").Obj(), cluster)
		own := namespaceManager(ctx, ns) // it observes the paused Cluster from the start, which avoids a race
		bystander := framework.MakeAllocation(ns, "bystander").Count(4).Cluster(ns, "elsewhere").Obj()
		create(ctx, o, bystander)
		allocatedTo(ctx, bystander) // it was created later
		Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		Expect(o.Status.Phase).To(Equal(v1alpha1.AllocationPending))
		Expect(o.Finalizers).To(BeEmpty())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
			g.Expect(o.Status.Conditions).To(ConsistOf(And(HaveField("Type", clusterv1.PausedCondition), HaveField("Message", "Cluster "+ns+"/tenant is paused; resume it to go on"))))
		}).Should(Succeed())
		expectRestMeanwhile(ctx, 1, m, own)
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
		allocatedTo(ctx, o)
		Expect(o.Status.Conditions).NotTo(ContainElement(HaveField("Type", clusterv1.PausedCondition)))
		Expect(own.Stop()).To(Succeed())
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		own = namespaceManager(ctx, ns)
		Expect(k8s.Delete(ctx, o)).To(Succeed())
		remove(ctx, bystander)
		expectRestMeanwhile(ctx, 1, m, own)
		Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
		expectGone(ctx, o)
		Expect(own.Stop()).To(Succeed())
	})

	It("block the deletion of their pool only while they have a block", func(ctx SpecContext) { // B71, F13
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.120.9.0/29").Obj()
		o, failed := framework.MakeAllocation(ns, "lb").Count(4).Obj(), framework.MakeAllocation(ns, "failed").Count(30).Obj()
		create(ctx, pool, o, failed)
		allocatedTo(ctx, o)
		refusedBlock(ctx, failed, v1alpha1.AllocationFailed, "PoolExhausted")
		Expect(k8s.Delete(ctx, pool)).To(Succeed())
		Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.DeletingReason)).To(ContainSubstring(ns + "/lb"))
		expectRestMeanwhile(ctx, 1, m)
		remove(ctx, o)
		expectGone(ctx, pool)
		Eventually(func() string {
			return refusedBlock(ctx, failed, v1alpha1.AllocationPending, "PoolNotReady")
		}).Should(ContainSubstring("does not exist"))
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.120.9.0/26").Obj())
		allocatedTo(ctx, failed)
	})
})

// eventsAbout returns the reasons of the events of an object of a namespace.
func eventsAbout(ctx context.Context, ns string, o client.Object) []string {
	GinkgoHelper()
	return eventReasons(ctx, ns, o.GetUID())
}
