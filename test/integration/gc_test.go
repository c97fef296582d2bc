package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The garbage collector and the namespace controller of Kubernetes run.
var _ = Describe("An object without its owner", Ordered, startsEarly, func() {
	BeforeAll(func(ctx SpecContext) {
		stop, err := cp.StartControllerManager()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(stop()).To(Succeed()) })
		emptyCluster(ctx)
		startManager(ctx, shortGrace)
	})

	It("is deleted when the namespace of its Cluster is deleted", func(ctx SpecContext) { // B70
		ns, team := newNamespace(ctx, nil), newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.124.0.0/28").Obj()
		lost, kept := framework.MakeAllocation(ns, "lost").Count(4).Cluster(team, "tenant").Obj(), framework.MakeAllocation(ns, "kept").Count(4).Obj()
		create(ctx, pool, makeCluster(team, "tenant", false), makeCluster(ns, "tenant", false), lost, kept)
		allocatedTo(ctx, lost)
		expectClusterSeen(ctx, lost, metav1.ConditionTrue)
		was := allocatedTo(ctx, kept)
		deleteNamespace(ctx, team)
		expectGone(ctx, makeCluster(team, "tenant", false))
		expectGone(ctx, lost)
		Eventually(func() []string { return eventsOf(ctx, pool) }).Should(ContainElement("OrphanedAllocationGC"))
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 4, "allocationCount": 1})
		Expect(allocatedTo(ctx, kept)).To(Equal(was))
	})

	It("is deleted when the finalizers of its Cluster are removed by hand", func(ctx SpecContext) { // B70
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.124.1.0/28").Obj()
		cluster := makeCluster(ns, "tenant", false)
		cluster.Finalizers = []string{clusterv1.ClusterFinalizer}
		o := framework.MakeAllocation(ns, "lb").Count(4).Obj()
		create(ctx, pool, cluster, o)
		allocatedTo(ctx, o)
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		// A Cluster in deletion still exists. An allocation that is created later is served, so the manager has had
		// time to act on the deletion.
		after := framework.MakeAllocation(ns, "after").Count(1).Obj()
		create(ctx, after)
		allocatedTo(ctx, after)
		Expect(allocatedTo(ctx, o)).NotTo(BeEmpty())
		expectClusterSeen(ctx, o, metav1.ConditionTrue)
		expectClusterSeen(ctx, after, metav1.ConditionTrue)
		force(ctx, cluster)
		expectGone(ctx, o)
		expectGone(ctx, after)
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 0})
	})

	It("is deleted when its claim is deleted without its finalizer", func(ctx SpecContext) { // R2
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.124.2.0/32").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		address := addressOf(ctx, ns, "c")
		modify(ctx, getClaim(ctx, ns, "c"), func(c *ipamv1.IPAddressClaim) { c.Finalizers = nil })
		force(ctx, getClaim(ctx, ns, "c"))
		expectGone(ctx, address)
		create(ctx, framework.MakeClaim(ns, "next").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal(address.Spec.Address))
	})

	It("is kept while it waits for its addresses, and is deleted with its namespace", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.124.3.0/30").Obj()
		failed := framework.MakeAllocation(ns, "failed").Count(30).Obj() // its Cluster never existed
		create(ctx, pool, failed, framework.MakeClaim(ns, "c").Pool("p").Obj())
		refusedBlock(ctx, failed, v1alpha1.AllocationFailed, "PoolExhausted")
		addressOf(ctx, ns, "c")
		deleteNamespace(ctx, ns)
		expectNamespaceGone(ctx, ns)
	})
})
