package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// provider returns a ProviderConfig in mode ipam; its pools are tried in the given order.
func provider(ns, name string, pools ...string) *v1alpha1.ProviderConfig {
	c := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	c.Spec.Network = &v1alpha1.ProviderNetwork{Mode: v1alpha1.IPAMMode}
	for i, pool := range pools {
		ref := v1alpha1.ProviderPoolReference{PoolReference: v1alpha1.PoolReference{Name: pool}, Priority: int32(i)}
		// The order of the list differs: the priority decides (F6).
		c.Spec.Network.PoolRefs = append([]v1alpha1.ProviderPoolReference{ref}, c.Spec.Network.PoolRefs...)
	}
	return c
}

// tenant returns a Cluster that names a ProviderConfig.
func tenant(ns, name, config string) *clusterv1.Cluster {
	c := makeCluster(ns, name, false)
	c.Labels = map[string]string{v1alpha1.ProviderConfigLabel: config}
	return c
}

// expectNetwork waits for the condition NetworkReady of a Cluster, and returns the message.
func expectNetwork(ctx context.Context, cluster *clusterv1.Cluster, status metav1.ConditionStatus, reason string) string {
	GinkgoHelper()
	var c *metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(cluster), cluster)).To(Succeed())
		c = conditions.Get(cluster, v1alpha1.NetworkReadyCondition)
		g.Expect(c).To(HaveValue(And(HaveField("Status", status), HaveField("Reason", reason))))
	}).Should(Succeed())
	return c.Message
}

func allocationsIn(ctx context.Context, ns string) []v1alpha1.IPAllocation {
	GinkgoHelper()
	list := &v1alpha1.IPAllocationList{}
	Expect(k8s.List(ctx, list, client.InNamespace(ns))).To(Succeed())
	return list.Items
}

var _ = Describe("A Cluster that names a ProviderConfig", Ordered, func() {
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })

	It("gets a labelled load-balancer block, and releases it when it is deleted", func(ctx SpecContext) { // B17, B22, B26, B30, B68, B72, F2
		ns, team := newNamespace(ctx, nil), newNamespace(ctx, map[string]string{v1alpha1.TeamLabel: "a"})
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.130.0.0/24").Obj()
		config := provider(ns, "static", "p")
		create(ctx, pool, config)
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		cluster := tenant(team, "prod", "static")
		cluster.Finalizers = []string{"example.com/machines"}
		create(ctx, cluster)
		Expect(expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(Equal("allocated 8 IPs: 10.130.0.1-10.130.0.8"))
		o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: team + "-prod-lb"}}
		allocatedTo(ctx, o)
		Expect(o.Spec.TenantClusterRef).To(Equal(v1alpha1.ClusterReference{Namespace: team, Name: "prod"}))
		Expect(o.Labels).To(Equal(map[string]string{
			v1alpha1.TeamLabel: team, v1alpha1.TenantLabel: "prod", v1alpha1.NetworkPoolLabel: "p", v1alpha1.ProviderConfigLabel: "static",
			v1alpha1.AllocationTypeLabel: "loadbalancer", v1alpha1.AllocationRoleLabel: v1alpha1.InitialRole,
			clusterv1.ClusterNameLabel: "prod",
		}))
		// 246 of the 254 addresses are left: enough for 18 Clusters, at 5 machines and 8 addresses for load balancers
		// each (B78).
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(config), config)).To(Succeed())
			g.Expect(config.Status.Capacity).To(Equal(v1alpha1.ProviderCapacity{AvailableIPs: 246, EstimatedTenants: 18}))
			g.Expect(config.Status).To(And(HaveField("Ready", true), HaveField("Validated", true), HaveField("ObservedGeneration", config.Generation)))
		}).Should(Succeed())
		// While its machines exist, the Cluster keeps its addresses.
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		other := tenant(team, "other", "static")
		create(ctx, other)
		expectNetwork(ctx, other, metav1.ConditionTrue, v1alpha1.ReadyReason)
		Expect(allocatedTo(ctx, o)).To(Equal("10.130.0.1-10.130.0.8"))
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Finalizers = []string{v1alpha1.TenantNetworkFinalizer} })
		expectGone(ctx, cluster)
		expectGone(ctx, o)
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 8})
	})

	It("may request a number of addresses, and gets no more than its quota", func(ctx SpecContext) { // B22, B23, F9
		ns := newNamespace(ctx, nil)
		config := provider(ns, "sized", "p")
		config.Spec.Network.LoadBalancer = &v1alpha1.LoadBalancerPool{DefaultPoolSize: ptr.To[int32](3)}
		config.Spec.Network.QuotaPerTenant = &v1alpha1.TenantQuota{MaxLoadBalancerIPs: ptr.To[int32](6)}
		asks, wrong, plain := tenant(ns, "asks", "sized"), tenant(ns, "wrong", "sized"), tenant(ns, "plain", "sized")
		asks.Annotations = map[string]string{v1alpha1.LBPoolSizeAnnotation: "9"}
		wrong.Annotations = map[string]string{v1alpha1.LBPoolSizeAnnotation: "many"}
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.1.0/24").Obj(), config, asks, wrong, plain)
		Expect(expectNetwork(ctx, asks, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(HavePrefix("allocated 6 IPs"))
		Expect(expectNetwork(ctx, plain, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(HavePrefix("allocated 3 IPs"))
		Expect(expectNetwork(ctx, wrong, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)).To(ContainSubstring(`is "many"`))
		modify(ctx, wrong, func(c *clusterv1.Cluster) { c.Annotations = nil })
		message := expectNetwork(ctx, wrong, metav1.ConditionTrue, v1alpha1.ReadyReason)
		// A Cluster that has its block makes no further request.
		modify(ctx, wrong, func(c *clusterv1.Cluster) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, v1alpha1.LBPoolSizeAnnotation, "many")
		})
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(wrong), wrong)).To(Succeed())
			g.Expect(conditions.Get(wrong, v1alpha1.NetworkReadyCondition)).To(HaveValue(And(
				HaveField("Status", metav1.ConditionTrue), HaveField("Message", And(HavePrefix(message+"; "), ContainSubstring(`is "many"`))))))
		}).Should(Succeed())
	})

	It("has no more machine addresses than its quota, until there is room", func(ctx SpecContext) { // B81
		ns := newNamespace(ctx, nil)
		config := provider(ns, "bounded", "blocks")
		config.Spec.Network.QuotaPerTenant = &v1alpha1.TenantQuota{MaxNodeIPs: ptr.To[int32](2)}
		cluster := tenant(ns, "tenant", "bounded")
		create(ctx, framework.MakePool("blocks").Namespace(ns).CIDR("10.130.10.0/28").Obj(), framework.MakePool("one").Namespace(ns).CIDR("10.130.11.0/28").Obj(),
			framework.MakePool("two").Namespace(ns).CIDR("10.130.12.0/28").Obj(), config, cluster)
		expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)
		machine := func(name, pool string) {
			GinkgoHelper()
			create(ctx, framework.MakeClaim(ns, name).Pool(pool).Cluster("tenant").Obj())
		}
		machine("a", "one")
		addressOf(ctx, ns, "a")
		machine("b", "two")
		addressOf(ctx, ns, "b")
		machine("c", "one")
		Expect(refusalOf(ctx, ns, "c", v1alpha1.QuotaExceededReason)).To(ContainSubstring("maxNodeIPs"))
		create(ctx, framework.MakeClaim(ns, "others").Pool("one").Obj()) // without a Cluster
		addressOf(ctx, ns, "others")
		deleteClaim(ctx, ns, "b") // from the other pool
		addressOf(ctx, ns, "c")
		machine("d", "two")
		refusalOf(ctx, ns, "d", v1alpha1.QuotaExceededReason)
		modify(ctx, config, func(c *v1alpha1.ProviderConfig) { *c.Spec.Network.QuotaPerTenant.MaxNodeIPs = 3 })
		addressOf(ctx, ns, "d")
	})

	It("is served by the next pool when the first is fragmented", func(ctx SpecContext) { // B24, B25, F6, F7
		ns := newNamespace(ctx, nil)
		pieces := framework.MakePool("pieces").Namespace(ns).CIDR("10.130.2.0/28").Obj()
		middle := framework.MakeAllocation(ns, "middle").Pool("pieces").PinnedRange("10.130.2.6", "10.130.2.8").Obj()
		create(ctx, pieces, middle)
		allocatedTo(ctx, middle)
		Expect(statusOf(ctx, pieces).AvailableIPs).To(BeNumerically(">", 8))
		cluster := tenant(ns, "tenant", "two")
		create(ctx, framework.MakePool("whole").Namespace(ns).CIDR("10.130.3.0/28").Obj(), provider(ns, "two", "pieces", "whole"), cluster)
		Expect(expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(ContainSubstring("10.130.3."))
		Expect(cluster.Annotations).NotTo(HaveKey(v1alpha1.TriedPoolsAnnotation))
	})

	It("waits while all pools are exhausted, and is served when one has free addresses", func(ctx SpecContext) { // B28, B32
		ns := newNamespace(ctx, nil)
		first, second := framework.MakePool("first").Namespace(ns).CIDR("10.130.4.0/29").Obj(), framework.MakePool("second").Namespace(ns).CIDR("10.130.5.0/29").Obj()
		config, cluster := provider(ns, "full", "first", "second"), tenant(ns, "tenant", "full")
		create(ctx, first, second, config, cluster)
		message := expectNetwork(ctx, cluster, metav1.ConditionFalse, v1alpha1.PoolExhaustedReason)
		Expect(message).To(And(ContainSubstring("NetworkPool first"), ContainSubstring("NetworkPool second")))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(config), config)).To(Succeed())
			available := meta.FindStatusCondition(config.Status.Conditions, v1alpha1.PoolAvailableCondition)
			g.Expect(available).To(HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.PoolExhaustedReason))))
			g.Expect(config.Status.Ready).To(BeFalse())
		}).Should(Succeed())
		Eventually(func() []string { return eventsAbout(ctx, ns, config) }).Should(ContainElement("PoolsExhausted"))
		expectRestMeanwhile(ctx, 2, m)
		modify(ctx, second, func(p *v1alpha1.NetworkPool) { p.Spec.CIDR = "10.130.5.0/28" })
		Expect(expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(ContainSubstring("10.130.5."))
		Expect(allocationsIn(ctx, ns)).To(HaveLen(1))
	})

	It("has a condition that reports a missing ProviderConfig, and one without pools or with a missing pool", func(ctx SpecContext) { // B31
		ns := newNamespace(ctx, nil)
		none, unknown, missing := tenant(ns, "none", "none"), tenant(ns, "unknown", "unknown"), tenant(ns, "missing", "missing")
		create(ctx, provider(ns, "none"), provider(ns, "unknown", "nowhere"), none, unknown, missing)
		Expect(expectNetwork(ctx, none, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)).To(ContainSubstring("poolRefs"))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(unknown), unknown)).To(Succeed())
			g.Expect(conditions.Get(unknown, v1alpha1.NetworkReadyCondition)).To(HaveValue(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Message", "NetworkPool nowhere of ProviderConfig "+ns+"/unknown does not exist; create it, or correct network.poolRefs"))))
		}).Should(Succeed())
		Expect(expectNetwork(ctx, missing, metav1.ConditionFalse, v1alpha1.NetworkNotReadyReason)).To(ContainSubstring("ProviderConfig missing does not exist"))
		expectRestMeanwhile(ctx, 3, m)
		// It is reconciled when the missing object is created.
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.6.0/28").Obj(), provider(ns, "missing", "p"))
		expectNetwork(ctx, missing, metav1.ConditionTrue, v1alpha1.ReadyReason)
	})

	It("has a ProviderConfig that reports its wrong entry, and that it is paused", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		config := provider(ns, "config", "p", "nowhere")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.40.0/28").Obj(), config)
		conditionText := func(condition string) func() string {
			return func() string {
				Expect(k8s.Get(ctx, keyOf(config), config)).To(Succeed())
				c := ptr.Deref(meta.FindStatusCondition(config.Status.Conditions, condition), metav1.Condition{})
				return string(c.Status) + " " + c.Reason + ": " + c.Message
			}
		}
		wrong := "False ValidationFailed: spec.network.poolRefs[0]: NetworkPool nowhere does not exist; create it, or correct the entry"
		Eventually(conditionText(v1alpha1.ReadyCondition)).Should(Equal(wrong))
		Expect(meta.FindStatusCondition(config.Status.Conditions, clusterv1.PausedCondition)).To(BeNil())
		setPaused(ctx, config, true)
		Eventually(conditionText(clusterv1.PausedCondition)).Should(And(HavePrefix("True Paused: ProviderConfig has the annotation cluster.x-k8s.io/paused"), HaveSuffix("remove it to resume")))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, framework.MakePool("nowhere").Namespace(ns).CIDR("10.130.41.0/28").Obj())
		setPaused(ctx, config, false)
		Eventually(conditionText(v1alpha1.ReadyCondition)).Should(HavePrefix("True Ready: "))
		Expect(conditionText(clusterv1.PausedCondition)()).To(HavePrefix("False NotPaused: "))
	})

	It("is ignored in mode cloud", func(ctx SpecContext) { // B21
		ns := newNamespace(ctx, nil)
		config := provider(ns, "cloud", "p")
		config.Spec.Network.Mode = v1alpha1.CloudMode
		cluster, after := tenant(ns, "tenant", "cloud"), tenant(ns, "after", "ipam")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.7.0/28").Obj(), config, provider(ns, "ipam", "p"), cluster)
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(config), config)).To(Succeed())
			g.Expect(config.Status.Ready).To(BeTrue())
		}).Should(Succeed())
		create(ctx, after)
		expectNetwork(ctx, after, metav1.ConditionTrue, v1alpha1.ReadyReason) // which was created later
		Expect(k8s.Get(ctx, keyOf(cluster), cluster)).To(Succeed())
		Expect(cluster.Finalizers).To(BeEmpty())
		Expect(cluster.Status.Conditions).To(BeEmpty())
		Expect(allocationsIn(ctx, ns)).To(HaveLen(1))
	})

	It("keeps its block when it names no ProviderConfig any more, and loses our finalizer when the block is deleted", func(ctx SpecContext) { // B82
		ns := newNamespace(ctx, nil)
		config := provider(ns, "left", "p")
		served, asks, cloud := tenant(ns, "given", "left"), tenant(ns, "asks", "left"), tenant(ns, "cloud", "turns")
		turns := provider(ns, "turns", "p")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.42.0/28").Obj(), config, turns, served)
		expectNetwork(ctx, served, metav1.ConditionTrue, v1alpha1.ReadyReason)
		create(ctx, asks, cloud) // 8 of 14 addresses are allocated: there is no room for these
		expectNetwork(ctx, asks, metav1.ConditionFalse, v1alpha1.PoolExhaustedReason)
		expectNetwork(ctx, cloud, metav1.ConditionFalse, v1alpha1.PoolExhaustedReason)
		for _, c := range []*clusterv1.Cluster{served, asks, cloud} { // as Cluster API does: the status of a Cluster is never empty
			modifyStatus(ctx, c, func(c *clusterv1.Cluster) { c.Status.Phase = string(clusterv1.ClusterPhaseProvisioned) })
		}
		ended := func(c *clusterv1.Cluster) func(Gomega) {
			return func(g Gomega) {
				g.Expect(k8s.Get(ctx, keyOf(c), c)).To(Succeed())
				g.Expect(c.Finalizers).To(BeEmpty())
				g.Expect(c.Annotations).To(BeEmpty())
				g.Expect(c.Status.Conditions).To(BeEmpty())
			}
		}
		// A request that was not granted is deleted by the manager.
		unlabel := func(c *clusterv1.Cluster) { delete(c.Labels, v1alpha1.ProviderConfigLabel) }
		modify(ctx, asks, unlabel)
		modify(ctx, turns, func(c *v1alpha1.ProviderConfig) { c.Spec.Network.Mode = v1alpha1.CloudMode })
		Eventually(ended(asks)).Should(Succeed())
		Eventually(ended(cloud)).Should(Succeed())
		Expect(allocationsIn(ctx, ns)).To(HaveLen(1))
		modify(ctx, served, unlabel)
		Expect(expectNetwork(ctx, served, metav1.ConditionTrue, v1alpha1.AllocationsRemainReason)).To(Equal(
			"the label butler.butlerlabs.dev/provider-config was removed; the Cluster keeps what it has until you " +
				"delete the IPAllocation " + ns + "/" + ns + "-given-lb: Services that have its addresses in default-pool lose them then"))
		Expect(served.Finalizers).To(ConsistOf(v1alpha1.TenantNetworkFinalizer))
		Expect(k8s.Delete(ctx, &allocationsIn(ctx, ns)[0])).To(Succeed())
		Eventually(ended(served)).Should(Succeed())
		// With the label it starts again.
		modify(ctx, served, func(c *clusterv1.Cluster) {
			metav1.SetMetaDataLabel(&c.ObjectMeta, v1alpha1.ProviderConfigLabel, "left")
		})
		expectNetwork(ctx, served, metav1.ConditionTrue, v1alpha1.ReadyReason)
	})

	It("gets no block from a ProviderConfig that does not admit its namespace", func(ctx SpecContext) {
		ns, otherNS := newNamespace(ctx, nil), newNamespace(ctx, nil)
		cluster := tenant(otherNS, "tenant", "closed-"+ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.8.0/28").Obj(), provider(ns, "closed-"+ns, "p"), cluster)
		Expect(expectNetwork(ctx, cluster, metav1.ConditionFalse, v1alpha1.AccessDeniedReason)).To(ContainSubstring(v1alpha1.TeamLabel))
		Eventually(func() []string { return eventsAbout(ctx, otherNS, cluster) }).Should(ConsistOf("NetworkAccessDenied"))
		expectRestMeanwhile(ctx, 1, m)
		Expect(allocationsIn(ctx, ns)).To(BeEmpty())
		Expect(cluster.Finalizers).To(BeEmpty())
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		expectGone(ctx, cluster)
	})

	It("keeps a block that was pinned for it, or that Butler allocated", func(ctx SpecContext) { // B73
		ns := newNamespace(ctx, nil)
		pin := framework.MakeAllocation(ns, ns+"-tenant-lb").PinnedRange("10.130.9.3", "10.130.9.5").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.130.9.0/28").Obj(), pin)
		was := allocatedTo(ctx, pin)
		cluster := tenant(ns, "tenant", "pinned")
		create(ctx, provider(ns, "pinned", "p"), cluster)
		Expect(expectNetwork(ctx, cluster, metav1.ConditionTrue, v1alpha1.ReadyReason)).To(ContainSubstring(was))
		Expect(k8s.Get(ctx, keyOf(pin), pin)).To(Succeed())
		Expect(pin.Labels).To(And(HaveKeyWithValue(v1alpha1.AllocationRoleLabel, v1alpha1.InitialRole), HaveKeyWithValue(v1alpha1.TenantLabel, "tenant")))
	})
})
