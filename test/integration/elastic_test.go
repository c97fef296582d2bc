package integration

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("Blocks that follow Services", Ordered, func() {
	var ns string
	var near, far *workload
	var m *framework.Manager

	BeforeAll(func(ctx SpecContext) {
		if testing.Short() {
			Skip("it starts two workload clusters, and one of them is lost: make test-all")
		}
		ns, near, far = newNamespace(ctx, nil), startWorkload(ctx), startWorkload(ctx)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.222.0.0/24").Obj())
	})
	BeforeEach(func(ctx SpecContext) { m = startManager(ctx) })

	It("are written to MetalLB by server-side apply, the first of them too", func(ctx SpecContext) { // B53, B54
		near.createElasticCluster(ctx, ns, "near")
		pool := near.waitForPoolEntries(ctx, 1)
		Expect(pool.Generation).To(Equal(int64(1)), "it is as it was made")
		applied := And(HaveField("Manager", "butler-controller/ipam"), HaveField("Operation", metav1.ManagedFieldsOperationApply),
			HaveField("FieldsV1.Raw", ContainSubstring(`"f:addresses"`)))
		Eventually(func() []metav1.ManagedFieldsEntry { return near.waitForPoolEntries(ctx, 1).ManagedFields }).Should(ContainElement(applied))
	})

	It("grow on events, without waiting for a periodic reconcile", func(ctx SpecContext) { // B33, B44
		near.createService(ctx, "first")
		near.createService(ctx, "second")
		Expect(near.waitForPoolEntries(ctx, 2).ManagedFields).To(ContainElement(HaveField("Operation", metav1.ManagedFieldsOperationApply)))
	})

	It("are all reconciled when a manager starts, a bounded number at once", func(ctx SpecContext) { // F19
		far.createElasticCluster(ctx, ns, "far")
		far.waitForPoolEntries(ctx, 1)
		Expect(m.Kill()).To(Succeed())
		for _, name := range []string{"third", "fourth"} {
			near.createService(ctx, name)
			far.createService(ctx, name)
		}
		m = startManager(ctx)
		near.waitForPoolEntries(ctx, 3)
		far.waitForPoolEntries(ctx, 2)
		Expect(m.ReadGauge(ctx, `controller_runtime_max_concurrent_reconciles{controller="tenant"}`)).To(BeEquivalentTo(10))
	})

	It("of one tenant stay when its API server is killed, and those of others still follow their Services", func(ctx SpecContext) { // B43
		before := allocationsIn(ctx, ns)
		Expect(far.KillAPIServer()).To(Succeed())
		near.createService(ctx, "fifth")
		near.waitForPoolEntries(ctx, 4)
		first := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: ns + "-far-lb"}}
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(first), first)).To(Succeed())
			g.Expect(meta.FindStatusCondition(first.Status.Conditions, v1alpha1.DemandSatisfiedCondition)).To(HaveValue(And(
				HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.TenantUnreachableReason))))
		}).WithTimeout(framework.LongTimeout).Should(Succeed()) // clustercache probes it a few times before it gives up
		expectRestMeanwhile(ctx, 1, m)
		near.createService(ctx, "sixth") // its API server is known to be unreachable; other tenants are not affected
		near.waitForPoolEntries(ctx, 5)
		for i := range before {
			a := &before[i]
			if a.Spec.TenantClusterRef.Name != "far" {
				continue
			}
			current := &v1alpha1.IPAllocation{}
			Expect(k8s.Get(ctx, keyOf(a), current)).To(Succeed())
			Expect(current.UID).To(Equal(a.UID))
			Expect(current.DeletionTimestamp).To(BeNil())
			Expect(current.Status.CIDR).To(Equal(a.Status.CIDR))
		}
		expectNothingWrong(ctx, ns)
	})

	It("wait while the API server of their Cluster refuses the write, and the manager is at rest", func(ctx SpecContext) { // W30
		refusal := refuseIn(ctx, near, "no-pools", framework.MetalLBNamespace, "no pool is changed here", admissionv1.Update, "metallb.io", "ipaddresspools")
		Eventually(func() error { // the policy takes a moment to become effective
			pool := near.waitForPoolEntries(ctx, 5)
			pool.Labels = map[string]string{"tried": ""}
			return near.Update(ctx, pool, client.DryRunAll)
		}).Should(MatchError(ContainSubstring("no pool is changed here")))
		before := len(allocationsIn(ctx, ns))
		near.createService(ctx, "seventh")
		Eventually(func() []v1alpha1.IPAllocation { return allocationsIn(ctx, ns) }).Should(HaveLen(before + 1))
		Eventually(logOf(m)).Should(ContainSubstring("no pool is changed here"))
		expectRestMeanwhile(ctx, 1, m)
		near.waitForPoolEntries(ctx, 5)
		Expect(near.Delete(ctx, refusal)).To(Succeed())
		near.waitForPoolEntries(ctx, 6)
	})

	It("are labelled, whether the manager or a user created them", func(ctx SpecContext) { // B72, B73
		labels := func(o *v1alpha1.IPAllocation) map[string]string {
			Expect(k8s.Get(ctx, keyOf(o), o)).To(Succeed())
			return o.Labels
		}
		mine := func(kind, role string) map[string]string {
			return map[string]string{
				"butler.butlerlabs.dev/team": ns, "butler.butlerlabs.dev/tenant": "labelled", "butler.butlerlabs.dev/network-pool": "p",
				"butler.butlerlabs.dev/allocation-type": kind, "butler.butlerlabs.dev/allocation-role": role, "cluster.x-k8s.io/cluster-name": "labelled",
			}
		}
		grown := framework.MakeAllocation(ns, ns+"-labelled-lb-7").Cluster(ns, "labelled").Count(1).Obj()
		nodes := framework.MakeAllocation(ns, "machines").Cluster(ns, "labelled").ForNodes().Count(3).Obj()
		others := framework.MakeAllocation(ns, "others").Cluster(ns, "missing").Count(1).Obj()
		earlier := framework.MakeAllocation(ns, "earlier").Cluster(ns, "labelled").ForNodes().Count(1).Label("butler.butlerlabs.dev/allocation-role", "initial").Obj()
		create(ctx, grown, nodes, others, earlier, provider(ns, "labelled", "p"))
		create(ctx, tenant(ns, "labelled", "labelled"))
		Eventually(func() map[string]string { return labels(grown) }).Should(Equal(mine("loadbalancer", "growth")))
		Eventually(func() map[string]string { return labels(nodes) }).Should(Equal(mine("nodes", "initial")))
		Eventually(func() map[string]string { return labels(earlier) }).Should(Equal(mine("nodes", "initial")))
		late := framework.MakeAllocation(ns, "late").Cluster(ns, "labelled").ForNodes().Count(3).Label("butler.butlerlabs.dev/team", "mine").Obj()
		create(ctx, late)
		Eventually(func() map[string]string { return labels(late) }).Should(And(
			HaveKeyWithValue("butler.butlerlabs.dev/allocation-role", "initial"), HaveKeyWithValue("butler.butlerlabs.dev/team", "mine")))
		Expect(labels(others)).To(BeEmpty())
	})

	AfterAll(func(ctx SpecContext) {
		list := &clusterv1.ClusterList{}
		Expect(k8s.List(ctx, list)).To(Succeed())
		for i := range list.Items {
			if list.Items[i].Namespace == ns {
				force(ctx, &list.Items[i])
			}
		}
		all := allocationsIn(ctx, ns)
		for i := range all {
			force(ctx, &all[i])
		}
	})
})
