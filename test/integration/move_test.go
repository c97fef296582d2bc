package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// clusterctl creates objects with their metadata and spec and without status, sets the UIDs in owner references to
// those of the objects that it created, and leaves the UID of the source for a pool that existed already.
var _ = Describe("On the target of a move", func() {
	const elsewhere = types.UID("00000000-0000-4000-8000-000000000000")
	var (
		ns      string
		pool    *v1alpha1.NetworkPool
		cluster *clusterv1.Cluster
	)

	BeforeEach(func(ctx SpecContext) {
		ns = newNamespace(ctx, nil)
		cluster = makeCluster(ns, "k", true)
		create(ctx, cluster)
	})
	unpause := func(ctx SpecContext) {
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
	}
	// served creates the pool and waits until it has an allocator, so that it adopts nothing later.
	served := func(ctx SpecContext, p *v1alpha1.NetworkPool) {
		GinkgoHelper()
		pool = p
		create(ctx, pool)
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
	}
	moved := func(name, record string) *ipamv1.IPAddressClaim {
		claim := framework.MakeClaim(ns, name).Pool("p").ClusterLabel("k").Annotate(v1alpha1.AddressAnnotation, record).Obj()
		claim.Finalizers = []string{"ipam.cluster.x-k8s.io/ReleaseAddress"}
		return claim
	}
	expectAdopted := func(ctx SpecContext, claim *ipamv1.IPAddressClaim, made *ipamv1.IPAddress) {
		GinkgoHelper()
		address := addressOf(ctx, ns, claim.Name)
		Expect(address.UID).To(Equal(made.UID))
		Expect(address.Spec).To(Equal(made.Spec))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(made), address)).To(Succeed())
			g.Expect(address.OwnerReferences).To(ConsistOf(claimOwner(claim.Name, claim.UID), poolOwner("p", pool.UID)))
		}).Should(Succeed())
	}

	It("claims without a status are linked with their IPAddress again", func(ctx SpecContext) { // C44, I4
		m := namespaceManager(ctx, ns)
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.0.0/24").Gateway("10.12.0.1").Obj())
		linked, late := moved("linked", "10.12.0.77"), moved("late", "10.12.0.78")
		create(ctx, linked, late, framework.MakeClaim(ns, "new").Pool("p").ClusterLabel("k").Obj())
		made := madeAddress(ns, "linked", "10.12.0.77", 24, claimOwner("linked", linked.UID), poolOwner("p", elsewhere))
		made.Spec.Gateway = "10.12.0.1"
		create(ctx, made, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		// The IPAddress of the claim "late" has not arrived yet: the manager creates none for a paused Cluster.
		Expect(objects(ctx, ns).Addresses).To(HaveLen(2))
		expectOnlyPaused(ctx, ns, "new", "Cluster "+ns+"/k is paused; resume it to go on")
		madeLate := madeAddress(ns, "late", "10.12.0.78", 24, claimOwner("late", late.UID), poolOwner("p", elsewhere))
		create(ctx, madeLate)
		unpause(ctx)
		expectAdopted(ctx, linked, made)
		expectAdopted(ctx, late, madeLate)
		addressOf(ctx, ns, "new")
		expectAtRest(ctx, ns, 4)
		Expect(m.Stop()).To(Succeed())
	})

	It("a claim whose IPAddress was left behind gets the address on its record", func(ctx SpecContext) { // C43
		m := namespaceManager(ctx, ns)
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.1.0/24").Obj())
		create(ctx, moved("c", "10.12.1.99"))
		unpause(ctx)
		Expect(addressOf(ctx, ns, "c").Spec).To(And(HaveField("Address", "10.12.1.99"), HaveField("Prefix", ptr.To[int32](24))))
		Expect(m.Stop()).To(Succeed())
	})

	It("and after a restore, a claim adopts an IPAddress with another owner UID if its record has the address", func(ctx SpecContext) { // R2
		unpause(ctx)
		m := namespaceManager(ctx, ns, "--orphan-grace=1h")
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.2.0/24").Obj())
		made := madeAddress(ns, "c", "10.12.2.50", 24, claimOwner("c", elsewhere), poolOwner("p", elsewhere))
		create(ctx, made)
		// The address is in use although no claim has it, until a restore creates the claim or the grace ends.
		Eventually(func() int64 { return statusOf(ctx, pool).AllocatedIPs }).Should(Equal(int64(1)))
		claim := moved("c", "10.12.2.50")
		create(ctx, claim)
		expectAdopted(ctx, claim, made)
		Expect(m.Stop()).To(Succeed())
	})

	It("a claim does not adopt an address on its record that was granted to another claim since", func(ctx SpecContext) { // R2: a restore after the address was given away
		unpause(ctx)
		m := namespaceManager(ctx, ns, "--orphan-grace=1h")
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.8.0/24").Obj())
		create(ctx, framework.MakeClaim(ns, "owner").Pool("p").Obj())
		address := addressOf(ctx, ns, "owner")
		Expect(m.Kill()).To(Succeed()) // it would observe the restored objects one by one
		create(ctx, madeAddress(ns, "c", address.Spec.Address, 24, claimOwner("c", elsewhere), poolOwner("p", elsewhere)))
		create(ctx, moved("c", address.Spec.Address))
		m = namespaceManager(ctx, ns, "--orphan-grace=1h")
		Eventually(func() int { return len(objects(ctx, ns).Addresses) }).Should(Equal(1))
		// The claim has waited until the IPAddress of its name was gone.
		Eventually(func() string { return refusalOf(ctx, ns, "c", "AllocationFailed") }).Should(ContainSubstring(ns + "/owner"))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("a record never takes an address that another claim has", func(ctx SpecContext) { // R1: users can write annotations
		unpause(ctx)
		m := namespaceManager(ctx, ns)
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.3.0/24").Obj())
		create(ctx, framework.MakeClaim(ns, "owner").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "owner").Spec.Address).To(Equal("10.12.3.1"))
		create(ctx, moved("thief", "10.12.3.1"))
		Expect(refusalOf(ctx, ns, "thief", "AllocationFailed")).To(ContainSubstring(ns + "/owner"))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("nothing of a paused Cluster is written", func(ctx SpecContext) { // C31, C44
		m := namespaceManager(ctx, ns)
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.5.0/24").Obj())
		claim := framework.MakeClaim(ns, "c").Pool("p").ClusterLabel("k").Annotate(v1alpha1.AddressAnnotation, "10.12.5.9").Obj()
		create(ctx, claim)
		made := madeAddress(ns, "c", "10.12.5.9", 24, claimOwner("c", claim.UID), poolOwner("p", elsewhere))
		create(ctx, made, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		expectRestMeanwhile(ctx, 1, m)
		paused := getClaim(ctx, ns, "c")
		Expect(paused.Finalizers).To(BeEmpty())
		Expect(paused.Annotations).To(Equal(claim.Annotations))
		Expect(paused.Status.AddressRef.Name).To(BeEmpty())
		Expect(paused.Status.Conditions).To(HaveEach(HaveField("Type", clusterv1.PausedCondition)))
		unpause(ctx)
		expectAdopted(ctx, claim, made)
		Expect(m.Stop()).To(Succeed())
	})

	It("a pool without a record of an allocator adopts at once and grants later", func(ctx SpecContext) { // R10
		unpause(ctx)
		pool = framework.MakePool("p").Namespace(ns).CIDR("10.12.4.0/24").Obj()
		claim := moved("c", "10.12.4.7")
		create(ctx, pool, claim)
		made := madeAddress(ns, "c", "10.12.4.7", 24, claimOwner("c", claim.UID), poolOwner("p", pool.UID))
		create(ctx, made, framework.MakeClaim(ns, "new").Pool("p").Obj())
		m := namespaceManager(ctx, ns)
		expectAdopted(ctx, claim, made)
		message := expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		Expect(message).To(MatchRegexp(`new grants start at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ,`))
		Expect(refusalOf(ctx, ns, "new", "PoolNotReady")).To(ContainSubstring(v1alpha1.AdoptingReason))
		expectRestMeanwhile(ctx, 1, m)
		// The wait continues under the next manager.
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "newer").Pool("p").Obj())
		refusalOf(ctx, ns, "newer", "PoolNotReady")
		// And it ends 75 s after its start, which is moved two minutes into the past here.
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, pool)
		m = namespaceManager(ctx, ns)
		addressOf(ctx, ns, "new")
		addressOf(ctx, ns, "newer")
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		expectAtRest(ctx, ns, 3)
		Expect(m.Stop()).To(Succeed())
	})

	It("a pool that arrives before its claims and IPAddresses grants later", func(ctx SpecContext) { // R10: a move brings the pool first
		pool = framework.MakePool("p").Namespace(ns).CIDR("10.12.7.0/24").Obj()
		pool.Finalizers = []string{v1alpha1.PoolFinalizer}
		m := namespaceManager(ctx, ns)
		create(ctx, pool)
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		create(ctx, framework.MakeClaim(ns, "new").Pool("p").Obj())
		refusalOf(ctx, ns, "new", "PoolNotReady")
		claim := moved("c", "10.12.7.1")
		create(ctx, claim)
		made := madeAddress(ns, "c", "10.12.7.1", 24, claimOwner("c", claim.UID), poolOwner("p", pool.UID))
		create(ctx, made)
		unpause(ctx) // earlier, the manager would create the IPAddress on record in the claim
		expectAdopted(ctx, claim, made)
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, pool)
		m = namespaceManager(ctx, ns)
		addressOf(ctx, ns, "new")
		expectAtRest(ctx, ns, 2)
		Expect(m.Stop()).To(Succeed())
	})

	It("a pool from another management cluster grants nothing until a Cluster that moved with it runs, however long that takes", func(ctx SpecContext) { // C53, R10
		create(ctx, makeCluster(ns, "native", false))
		pool = framework.MakePool("p").Namespace(ns).CIDR("10.12.9.0/24").Obj()
		pool.Finalizers = []string{v1alpha1.PoolFinalizer}
		pool.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: "another", v1alpha1.ClustersAnnotation: "k,late"}
		m := namespaceManager(ctx, ns)
		create(ctx, pool, framework.MakeClaim(ns, "new").Pool("p").Obj())
		message := expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		Expect(message).To(And(ContainSubstring("Cluster k is paused"), ContainSubstring("remove the annotation "+v1alpha1.ManagementClusterAnnotation)))
		// long simulates minutes without an arrival.
		long := func() {
			GinkgoHelper()
			Expect(m.Kill()).To(Succeed())
			endQuarantine(ctx, pool)
			m = namespaceManager(ctx, ns)
		}
		long()
		create(ctx, framework.MakeClaim(ns, "newer").Pool("p").Obj())
		refusalOf(ctx, ns, "newer", "PoolNotReady")
		claim := moved("c", "10.12.9.1")
		create(ctx, claim)
		made := madeAddress(ns, "c", "10.12.9.1", 24, claimOwner("c", claim.UID), poolOwner("p", elsewhere))
		create(ctx, made)
		unpause(ctx)
		expectAdopted(ctx, claim, made)
		Eventually(func() string {
			return expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		}).Should(ContainSubstring("new grants start at"))
		long()
		for _, name := range []string{"new", "newer"} {
			Expect(addressOf(ctx, ns, name).Spec.Address).NotTo(Equal("10.12.9.1"))
		}
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(pool), pool)).To(Succeed())
			g.Expect(pool.Annotations).To(And(HaveKeyWithValue(v1alpha1.ManagementClusterAnnotation, Not(Equal("another"))),
				HaveKeyWithValue(v1alpha1.ClustersAnnotation, Not(BeEmpty()))))
		}).Should(Succeed())
		expectAtRest(ctx, ns, 3)
		Expect(m.Stop()).To(Succeed())
	})

	It("a pool whose status was wiped while it is served adopts again", func(ctx SpecContext) { // R10: backup, status wiped
		unpause(ctx)
		m := namespaceManager(ctx, ns)
		served(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.12.6.0/24").Obj())
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		before := addressOf(ctx, ns, "c")
		expectAtRest(ctx, ns, 1)
		modifyStatus(ctx, pool, func(p *v1alpha1.NetworkPool) { p.Status = v1alpha1.NetworkPoolStatus{} })
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		create(ctx, framework.MakeClaim(ns, "new").Pool("p").Obj())
		refusalOf(ctx, ns, "new", "PoolNotReady")
		after := addressOf(ctx, ns, "c")
		Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
		Expect(m.Stop()).To(Succeed())
	})
})
