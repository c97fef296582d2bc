package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// byAnnotation is the message on a claim that is paused by its own annotation.
const byAnnotation = "IPAddressClaim has the annotation " + clusterv1.PausedAnnotation + "; remove it to resume"

// pauseOf returns the condition Paused of a claim as text, or "" without one.
func pauseOf(ctx context.Context, ns, name string) string {
	GinkgoHelper()
	c := meta.FindStatusCondition(getClaim(ctx, ns, name).Status.Conditions, clusterv1.PausedCondition)
	if c == nil {
		return ""
	}
	return string(c.Status) + ": " + c.Message
}

var _ = Describe("A pause", Ordered, func() {
	var ns string
	var m *framework.Manager

	BeforeAll(func(ctx SpecContext) {
		m = startManager(ctx)
	})
	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("of a claim blocks only that claim, until it ends", func(ctx SpecContext) { // C31, W9
		claim := framework.MakeClaim(ns, "held").Pool("p").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.0.0/24").Obj(), claim, framework.MakeClaim(ns, "free").Pool("p").Obj())
		// A pool is planned as a whole, the oldest claim first: the younger claim is served, the older one was
		// skipped.
		Expect(addressOf(ctx, ns, "free").Spec.Address).To(Equal("10.10.0.1"))
		expectOnlyPaused(ctx, ns, "held", byAnnotation)
		expectRestMeanwhile(ctx, 1, m)
		version := getClaim(ctx, ns, "held").ResourceVersion
		create(ctx, framework.MakeClaim(ns, "late").Pool("p").Obj())
		addressOf(ctx, ns, "late") // the pool was reconciled again, and wrote nothing to the paused claim
		Expect(getClaim(ctx, ns, "held").ResourceVersion).To(Equal(version))
		setPaused(ctx, claim, false)
		Expect(addressOf(ctx, ns, "held").Spec.Address).To(Equal("10.10.0.3"))
		Expect(pauseOf(ctx, ns, "held")).To(BeEmpty())
		// A served claim gets the condition, too, and loses it.
		setPaused(ctx, claim, true)
		Eventually(pauseOf).WithArguments(ctx, ns, "held").Should(Equal("True: " + byAnnotation))
		Expect(readyOf(getClaim(ctx, ns, "held")).Status).To(Equal(metav1.ConditionTrue))
		setPaused(ctx, claim, false)
		Eventually(pauseOf).WithArguments(ctx, ns, "held").Should(BeEmpty())
		Expect(readyOf(getClaim(ctx, ns, "held")).Status).To(Equal(metav1.ConditionTrue))
	})

	It("of a claim blocks it after a restart too", func(ctx SpecContext) { // W9: every restart maps pools to claims
		claim := framework.MakeClaim(ns, "held").Pool("p").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.1.0/24").Obj(), claim)
		own := namespaceManager(ctx, ns)
		create(ctx, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		expectOnlyPaused(ctx, ns, "held", byAnnotation)
		Expect(own.Stop()).To(Succeed())
	})

	It("of a pool blocks all of its claims, until it ends", func(ctx SpecContext) { // C31
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.2.0/24").Annotate(clusterv1.PausedAnnotation, "").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj(),
			framework.MakePool("q").Namespace(ns).CIDR("10.10.3.0/24").Obj(), framework.MakeClaim(ns, "other").Pool("q").Obj())
		addressOf(ctx, ns, "other")
		expectRestMeanwhile(ctx, 1, m)
		Expect(getClaim(ctx, ns, "c").Finalizers).To(BeEmpty())
		expectOnlyPaused(ctx, ns, "c", "NetworkPool "+ns+"/p is paused; remove its annotation cluster.x-k8s.io/paused to resume")
		const message = "the pool is paused by its annotation cluster.x-k8s.io/paused: it neither grants nor releases addresses; remove the annotation to resume"
		Expect(expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionFalse, clusterv1.PausedReason)).To(Equal(message))
		Expect(expectCondition(ctx, pool, clusterv1.PausedCondition, metav1.ConditionTrue, clusterv1.PausedReason)).To(Equal(message))
		setPaused(ctx, pool, false)
		addressOf(ctx, ns, "c")
		expectCondition(ctx, pool, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReadyReason)
		expectCondition(ctx, pool, clusterv1.PausedCondition, metav1.ConditionFalse, clusterv1.NotPausedReason)
	})

	It("of a claim blocks its release", func(ctx SpecContext) { // C35
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.4.0/24").Obj(),
			framework.MakeClaim(ns, "held").Pool("p").Obj(), framework.MakeClaim(ns, "free").Pool("p").Obj())
		address := addressOf(ctx, ns, "held")
		addressOf(ctx, ns, "free")
		claim := getClaim(ctx, ns, "held")
		setPaused(ctx, claim, true)
		deleteClaim(ctx, ns, "held")
		deleteClaim(ctx, ns, "free")
		expectGone(ctx, framework.MakeClaim(ns, "free").Obj())
		expectRestMeanwhile(ctx, 1, m)
		Expect(getClaim(ctx, ns, "held").Finalizers).To(ConsistOf("ipam.cluster.x-k8s.io/ReleaseAddress"))
		still := address.DeepCopy()
		Expect(k8s.Get(ctx, keyOf(address), still)).To(Succeed())
		Expect(still.DeletionTimestamp).To(BeNil())
		setPaused(ctx, claim, false)
		expectGone(ctx, claim)
		expectGone(ctx, address)
	})

	It("of a pool causes no write to a claim that has its address", func(ctx SpecContext) {
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.8.0/24").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		version := getClaim(ctx, ns, "c").ResourceVersion
		setPaused(ctx, pool, true)
		expectCondition(ctx, pool, clusterv1.PausedCondition, metav1.ConditionTrue, clusterv1.PausedReason)
		create(ctx, framework.MakeClaim(ns, "waits").Pool("p").Obj())
		expectOnlyPaused(ctx, ns, "waits", "NetworkPool "+ns+"/p is paused; remove its annotation cluster.x-k8s.io/paused to resume")
		setPaused(ctx, pool, false)
		addressOf(ctx, ns, "waits")
		Expect(getClaim(ctx, ns, "c").ResourceVersion).To(Equal(version))
		Expect(meta.FindStatusCondition(statusOf(ctx, pool).Conditions, clusterv1.PausedCondition)).NotTo(BeNil())
	})

	It("of a refused claim is removed from its conditions when it ends", func(ctx SpecContext) {
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.9.0/32").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "has").Pool("p").Obj())
		addressOf(ctx, ns, "has")
		claim := framework.MakeClaim(ns, "none").Pool("p").Obj()
		create(ctx, claim)
		message := refusalOf(ctx, ns, "none", "PoolExhausted")
		setPaused(ctx, claim, true)
		Eventually(pauseOf).WithArguments(ctx, ns, "none").Should(Equal("True: " + byAnnotation))
		expectRestMeanwhile(ctx, 1, m)
		Expect(refusalOf(ctx, ns, "none", "PoolExhausted")).To(Equal(message))
		setPaused(ctx, claim, false)
		Eventually(pauseOf).WithArguments(ctx, ns, "none").Should(BeEmpty())
		Expect(refusalOf(ctx, ns, "none", "PoolExhausted")).To(Equal(message))
	})

	It("of a Cluster blocks the release of its claims, and the absence of the Cluster does not", func(ctx SpecContext) { // C35, U21
		cluster := makeCluster(ns, "k", false)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.5.0/24").Obj(), cluster,
			framework.MakeClaim(ns, "a").Pool("p").Cluster("k").Obj(), framework.MakeClaim(ns, "b").Pool("p").Cluster("k").Obj(),
			framework.MakeClaim(ns, "free").Pool("p").Obj())
		for _, name := range []string{"a", "b", "free"} {
			addressOf(ctx, ns, name)
		}
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		own := namespaceManager(ctx, ns) // it observes the paused Cluster from the start, which avoids a race
		for _, name := range []string{"a", "free"} {
			deleteClaim(ctx, ns, name)
		}
		expectGone(ctx, framework.MakeClaim(ns, "free").Obj())
		expectRestMeanwhile(ctx, 1, m, own)
		Expect(getClaim(ctx, ns, "a").Finalizers).NotTo(BeEmpty())
		Eventually(pauseOf).WithArguments(ctx, ns, "a").Should(Equal("True: Cluster " + ns + "/k is paused; resume it to go on"))
		Expect(pauseOf(ctx, ns, "b")).To(BeEmpty()) // nothing of it is blocked
		modify(ctx, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(false) })
		expectGone(ctx, framework.MakeClaim(ns, "a").Obj())
		Expect(k8s.Delete(ctx, cluster)).To(Succeed())
		deleteClaim(ctx, ns, "b")
		expectGone(ctx, framework.MakeClaim(ns, "b").Obj())
		Expect(own.Stop()).To(Succeed())
	})

	It("of a pool blocks the release of its claims", func(ctx SpecContext) { // C31, C35: the in-cluster provider does
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.10.6.0/24").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		setPaused(ctx, pool, true)
		own := namespaceManager(ctx, ns) // it observes the paused pool from the start, which avoids a race
		deleteClaim(ctx, ns, "c")
		expectRestMeanwhile(ctx, 1, m, own)
		Expect(getClaim(ctx, ns, "c").Finalizers).NotTo(BeEmpty())
		setPaused(ctx, pool, false)
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		Expect(own.Stop()).To(Succeed())
	})

	It("of a claim keeps the changes of others to it", func(ctx SpecContext) { // C31
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.10.7.0/24").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		claim := getClaim(ctx, ns, "c")
		setPaused(ctx, claim, true)
		modifyStatus(ctx, claim, func(c *ipamv1.IPAddressClaim) { c.Status.AddressRef.Name = "changed" })
		create(ctx, framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		Consistently(func() string { return getClaim(ctx, ns, "c").Status.AddressRef.Name }).WithTimeout(1e9).Should(Equal("changed"))
		setPaused(ctx, claim, false)
		Eventually(func() string { return getClaim(ctx, ns, "c").Status.AddressRef.Name }).Should(Equal("c"))
	})
})
