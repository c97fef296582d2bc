package integration

import (
	"context"
	"fmt"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const ipPool = "InClusterIPPool"

var _ = Describe("In the place of the in-cluster provider, a manager", Ordered, startsEarly, func() {
	const flag = "--serve-in-cluster-pools"
	var ns, rights string
	BeforeAll(func(ctx SpecContext) {
		Expect(cp.InstallInClusterPools()).To(Succeed())
		kubeconfig, err := cp.InClusterManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		rights = "--kubeconfig=" + kubeconfig
	})
	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	mirror := func(name string) *v1alpha1.NetworkPool {
		return &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	// counts waits until the status of a pool has the given counts of its addresses.
	counts := func(ctx context.Context, pool *unstructured.Unstructured, total, used, outOfRange int64) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
			got, _, err := unstructured.NestedMap(pool.Object, "status", "ipAddresses")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(map[string]any{"total": total, "used": used, "free": total - used, "outOfRange": outOfRange}))
		}).Should(Succeed())
	}

	It("adopts allocated addresses, serves new claims, and reports how many addresses are in use", func(ctx SpecContext) {
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{
			"addresses": []any{"10.70.0.10-10.70.0.19"}, "prefix": int64(24), "gateway": "10.70.0.1", "excludedAddresses": []any{"10.70.0.12"},
		})
		other := &peer{ns: ns, pool: pool, first: netip.MustParseAddr("10.70.0.10"), last: netip.MustParseAddr("10.70.0.19"), gateway: "10.70.0.1"}
		a := claimOn(ns, "a", ipPool, "p") // it has an old record of this provider, without an IPAddress
		a.Annotations, a.Finalizers = map[string]string{v1alpha1.AddressAnnotation: "10.70.0.18"}, []string{"ipam.cluster.x-k8s.io/ReleaseAddress"}
		create(ctx, a, claimOn(ns, "b", ipPool, "p"))
		other.serveClaims(ctx)
		other.serveClaims(ctx)
		before := map[string]string{"a": "10.70.0.10", "b": "10.70.0.11"}
		create(ctx, claimOn(ns, "new", ipPool, "p"))

		m := namespaceManager(ctx, ns, flag, rights)
		for name, address := range before {
			Expect(addressOf(ctx, ns, name).Spec.Address).To(Equal(address))
		}
		Expect(refusalOf(ctx, ns, "new", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(v1alpha1.AdoptingReason))
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, mirror("p.in-cluster"))
		m = namespaceManager(ctx, ns, flag, rights)
		made := addressOf(ctx, ns, "new")
		Expect(made.Spec).To(Equal(ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: "new"}, PoolRef: ipamv1.IPPoolReference{APIGroup: "ipam.cluster.x-k8s.io", Kind: ipPool, Name: "p"},
			Address: "10.70.0.13", Prefix: ptr.To[int32](24), Gateway: "10.70.0.1",
		}))
		Expect(made.OwnerReferences).To(Equal(other.address(getClaim(ctx, ns, "new"), "").OwnerReferences))
		Eventually(func() map[string]string { return getClaim(ctx, ns, "a").Annotations }).Should(HaveKeyWithValue(v1alpha1.AddressAnnotation, "10.70.0.10"))
		counts(ctx, pool, 9, 3, 0)

		By("serving claims that name the mirror from the same addresses, once the pool is handed over")
		direct := framework.MakeClaim(ns, "direct").Pool("p.in-cluster").Obj()
		create(ctx, direct)
		Expect(refusalOf(ctx, ns, "direct", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(incluster.HandedOverAnnotation))
		modify(ctx, pool, handOver)
		Expect(addressOf(ctx, ns, "direct").Spec).To(And(HaveField("Address", "10.70.0.14"), HaveField("PoolRef.Kind", v1alpha1.NetworkPoolKind)))
		counts(ctx, pool, 9, 4, 0)
		Expect(k8s.Delete(ctx, direct)).To(Succeed())
		counts(ctx, pool, 9, 3, 0)
		Expect(annotations.HasPaused(pool)).To(BeTrue()) // which keeps the other provider from serving it

		By("following the spec of the pool")
		patch := client.MergeFrom(pool.DeepCopy())
		Expect(unstructured.SetNestedStringSlice(pool.Object, []string{"10.70.0.11-10.70.0.19"}, "spec", "addresses")).To(Succeed())
		Expect(k8s.Patch(ctx, pool, patch)).To(Succeed())
		counts(ctx, pool, 8, 3, 1)

		By("deleting the pool, which stays until no claim needs it")
		Expect(k8s.Delete(ctx, pool)).To(Succeed())
		for _, name := range []string{"a", "b"} {
			Expect(k8s.Delete(ctx, getClaim(ctx, ns, name))).To(Succeed())
		}
		Eventually(func() bool {
			return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "a"}, &ipamv1.IPAddress{}))
		}).Should(BeTrue())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
		Expect(k8s.Delete(ctx, getClaim(ctx, ns, "new"))).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)) }).Should(BeTrue())
		Expect(m.Stop()).To(Succeed())
	})

	It("serves global pools and pools of prefixes", func(ctx SpecContext) {
		makeInClusterPool(ctx, "GlobalInClusterIPPool", "", ns, map[string]any{ // as the other provider reads it
			"addresses": []any{"10.71.0.77/24"}, "prefix": int64(24), "excludedAddresses": []any{"10.71.0.1-10.71.0.3", "10.0.0.0/16"},
		})
		makeInClusterPool(ctx, "InClusterPrefixPool", ns, "p", map[string]any{"prefixes": []any{"fd00:70::/48"}, "gateway": "fe80::1", "excludedPrefixes": []any{"fd00:70::/64"}})
		makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.71.1.1-10.71.1.9"}, "prefix": int64(24)})
		m := startManager(ctx, flag, rights)
		create(ctx, claimOn(ns, "global", "GlobalInClusterIPPool", ns), claimOn(ns, "prefix", "InClusterPrefixPool", "p"), claimOn(ns, "local", ipPool, "p"))
		Expect(addressOf(ctx, ns, "global").Spec).To(And(HaveField("Address", "10.71.0.4"), HaveField("Gateway", "")))
		Expect(addressOf(ctx, ns, "prefix").Spec).To(And(
			HaveField("Address", "fd00:70:0:1::"), HaveField("Prefix", HaveValue(Equal(int32(64)))), HaveField("Gateway", "fe80::1")))
		Expect(addressOf(ctx, ns, "local").Spec).To(HaveField("Address", "10.71.1.1"))

		By("granting nothing from the mirror of a global pool that was copied here") // C52
		copied := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: ns + ".in-cluster"}}
		modify(ctx, copied, func(p *v1alpha1.GlobalNetworkPool) { p.Annotations[v1alpha1.ManagementClusterAnnotation] = "another" })
		expectCondition(ctx, copied, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.CopiedReason)
		create(ctx, claimOn(ns, "later", "GlobalInClusterIPPool", ns))
		Expect(refusalOf(ctx, ns, "later", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("was copied here from another management cluster"))
		modify(ctx, copied, func(p *v1alpha1.GlobalNetworkPool) { delete(p.Annotations, v1alpha1.ManagementClusterAnnotation) })
		Expect(addressOf(ctx, ns, "later").Spec.Address).To(Equal("10.71.0.5"))
		Expect(m.Stop()).To(Succeed())
	})

	It("without --serve-in-cluster-pools leaves pools, mirrors and their claims unchanged", func(ctx SpecContext) {
		makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.72.0.1-10.72.0.9"}, "prefix": int64(24)})
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "first", ipPool, "p"))
		addressOf(ctx, ns, "first")
		Expect(m.Stop()).To(Succeed())
		m = namespaceManager(ctx, ns)
		expectCondition(ctx, mirror("p.in-cluster"), v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.NotServedReason)
		create(ctx, claimOn(ns, "second", ipPool, "p"), framework.MakeClaim(ns, "direct").Pool("p.in-cluster").Obj())
		Expect(refusalOf(ctx, ns, "direct", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(flag))
		expectUntouched(ctx, ns, "second")
		Expect(k8s.Delete(ctx, getClaim(ctx, ns, "first"))).To(Succeed())
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, framework.MakePool("ours").Namespace(ns).CIDR("10.72.1.0/24").Obj(), framework.MakeClaim(ns, "ours").Pool("ours").Obj())
		addressOf(ctx, ns, "ours")
		Expect(getClaim(ctx, ns, "first").Finalizers).To(HaveLen(1))

		By("reporting that on a mirror that was copied without its status") // U86: as clusterctl move does
		create(ctx, framework.MakePool("moved.in-cluster").Namespace(ns).Addresses("10.72.2.1-10.72.2.9").Obj())
		Eventually(func() []metav1.Condition {
			current := mirror("moved.in-cluster")
			Expect(k8s.Get(ctx, keyOf(current), current)).To(Succeed())
			return current.Status.Conditions
		}).Should(ConsistOf(And(HaveField("Type", v1alpha1.ReadyCondition), HaveField("Status", metav1.ConditionFalse),
			HaveField("Reason", v1alpha1.NotServedReason), HaveField("Message", ContainSubstring("add the component in-cluster-pools")))))

		By("removing the finalizer of a mirror that is deleted, with its pool or its namespace")
		Expect(k8s.Delete(ctx, mirror("p.in-cluster"))).To(Succeed())
		expectGone(ctx, mirror("p.in-cluster"))
		Expect(m.Stop()).To(Succeed())
	})

	It("delays its grants after each run of the other provider, whose last request may be in flight", func(ctx SpecContext) { // R10
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.74.0.10-10.74.0.19"}, "prefix": int64(24)})
		other := &peer{ns: ns, pool: pool, first: netip.MustParseAddr("10.74.0.10"), last: netip.MustParseAddr("10.74.0.19")}
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "a", ipPool, "p"))
		Expect(addressOf(ctx, ns, "a").Spec.Address).To(Equal("10.74.0.10"))
		Expect(m.Stop()).To(Succeed())
		create(ctx, claimOn(ns, "b", ipPool, "p"), claimOn(ns, "c", ipPool, "p"))
		other.serveClaims(ctx)
		late := other.address(getClaim(ctx, ns, "b"), "10.74.0.11") // sent by the other provider, whose Pod ends then

		m = namespaceManager(ctx, ns, flag, rights)
		for _, name := range []string{"b", "c"} {
			Expect(refusalOf(ctx, ns, name, ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(v1alpha1.AdoptingReason))
		}
		create(ctx, late)
		Expect(addressOf(ctx, ns, "b").Spec.Address).To(Equal("10.74.0.11"))
		Expect(m.Kill()).To(Succeed())
		m = namespaceManager(ctx, ns, flag, rights) // it waits as long as the manager before it would have
		Expect(refusalOf(ctx, ns, "c", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(v1alpha1.AdoptingReason))
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, mirror("p.in-cluster"))
		m = namespaceManager(ctx, ns, flag, rights)
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.74.0.12"))
		Expect(m.Stop()).To(Succeed())
	})

	It("serves a pool with a gateway in another network, and reports why it cannot serve another pool", func(ctx SpecContext) {
		far := makeInClusterPool(ctx, ipPool, ns, "far", map[string]any{"addresses": []any{"10.76.0.10-10.76.0.19"}, "prefix": int64(24), "gateway": "10.99.0.1"})
		mapped := makeInClusterPool(ctx, ipPool, ns, "mapped", map[string]any{"addresses": []any{"::ffff:10.76.1.10-::ffff:10.76.1.19"}, "prefix": int64(120)})
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "far", ipPool, "far"), claimOn(ns, "mapped", ipPool, "mapped"), claimOn(ns, "none", ipPool, "none"))
		Expect(addressOf(ctx, ns, "far").Spec).To(And(HaveField("Address", "10.76.0.10"), HaveField("Gateway", "10.99.0.1"), HaveField("Prefix", HaveValue(Equal(int32(24))))))
		const why = "this pool is not served: spec.addresses"
		Expect(refusalOf(ctx, ns, "mapped", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("InClusterIPPool " + ns + "/mapped: " + why))
		Expect(refusalOf(ctx, ns, "none", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring("InClusterIPPool " + ns + "/none does not exist"))
		Eventually(func() []string { return eventReasons(ctx, ns, mapped.GetUID()) }).Should(ContainElement("NotServed"))
		expectRestMeanwhile(ctx, 1, m)

		By("granting nothing from a spec that the pool no longer has")
		counts(ctx, far, 10, 1, 0)
		modify(ctx, far, func(pool *unstructured.Unstructured) { pool.Object["spec"] = mapped.Object["spec"] })
		Expect(expectCondition(ctx, mirror("far.in-cluster"), v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)).To(ContainSubstring(why))
		create(ctx, claimOn(ns, "later", ipPool, "far"))
		Expect(refusalOf(ctx, ns, "later", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(why))
		Expect(k8s.Delete(ctx, getClaim(ctx, ns, "far"))).To(Succeed())
		counts(ctx, far, 10, 0, 0)
		modify(ctx, far, func(pool *unstructured.Unstructured) {
			pool.Object["spec"] = map[string]any{"addresses": []any{"10.76.0.10-10.76.0.19"}, "prefix": int64(24)}
		})
		Expect(addressOf(ctx, ns, "later").Spec.Gateway).To(BeEmpty())
		Expect(m.Stop()).To(Succeed())
	})

	It("grants nothing from a mirror that is created again in the middle of a move", func(ctx SpecContext) { // C53
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.78.0.10-10.78.0.19"}, "prefix": int64(24)})
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "a", ipPool, "p"), claimOn(ns, "b", ipPool, "p"))
		gone := addressOf(ctx, ns, "a")
		stays := addressOf(ctx, ns, "b").Spec.Address
		Eventually(func() map[string]string {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
			return pool.GetAnnotations()
		}).Should(HaveKey(incluster.MirrorAnnotation))
		before := mirror("p.in-cluster")
		Expect(k8s.Get(ctx, keyOf(before), before)).To(Succeed())
		Expect(m.Kill()).To(Succeed()) // so that it does not hold the moved addresses
		deleteForMove(ctx, getClaim(ctx, ns, "a"))
		deleteForMove(ctx, gone)
		deleteForMove(ctx, before)

		m = namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "new", ipPool, "p"))
		again := mirror("p.in-cluster")
		Eventually(func() error { return k8s.Get(ctx, keyOf(again), again) }).Should(Succeed())
		Expect(expectCondition(ctx, again, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)).To(ContainSubstring("was deleted by clusterctl move"))
		refusalOf(ctx, ns, "new", ipamv1.IPAddressClaimReadyPoolNotReadyReason)
		Expect(addressOf(ctx, ns, "b").Spec.Address).To(Equal(stays))
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, again)
		m = namespaceManager(ctx, ns, flag, rights)
		expectCondition(ctx, again, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.MovedReason)
		Eventually(func() string { // before that the condition has the message of the quarantine
			return refusalOf(ctx, ns, "new", ipamv1.IPAddressClaimReadyPoolNotReadyReason)
		}).Should(ContainSubstring(incluster.MovedFromAnnotation))
		modify(ctx, again, func(p *v1alpha1.NetworkPool) { delete(p.Annotations, incluster.MovedFromAnnotation) })
		Expect(addressOf(ctx, ns, "new").Spec.Address).NotTo(Equal(stays))
		Expect(m.Stop()).To(Succeed())
	})

	It("adopts an IPAddress that a user created for a claim", func(ctx SpecContext) {
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.77.0.10-10.77.0.19"}, "prefix": int64(24)})
		claim := claimOn(ns, "a", ipPool, "p")
		made := madeAddress(ns, "a", "10.77.0.10", 24)
		made.Spec.PoolRef, made.Finalizers = claim.Spec.PoolRef, nil
		create(ctx, made, claim, claimOn(ns, "b", ipPool, "p"))
		m := namespaceManager(ctx, ns, flag, rights)
		address := addressOf(ctx, ns, "a")
		other := &peer{ns: ns, pool: pool}
		Expect(address.UID).To(Equal(made.UID))
		Expect(address.OwnerReferences).To(Equal(other.address(getClaim(ctx, ns, "a"), "").OwnerReferences))
		Expect(address.Finalizers).To(Equal([]string{"ipam.cluster.x-k8s.io/ProtectAddress"}))
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, mirror("p.in-cluster")) // its addresses were in use
		m = namespaceManager(ctx, ns, flag, rights)
		Expect(addressOf(ctx, ns, "b").Spec.Address).To(Equal("10.77.0.11"))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("serves claims that name a mirror only after its pool was handed over", func(ctx SpecContext) {
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.75.0.10-10.75.0.19"}, "prefix": int64(24)})
		other := &peer{ns: ns, pool: pool, first: netip.MustParseAddr("10.75.0.10"), last: netip.MustParseAddr("10.75.0.19")}
		m := namespaceManager(ctx, ns, flag, rights)
		create(ctx, claimOn(ns, "a", ipPool, "p"), framework.MakeClaim(ns, "direct").Pool("p.in-cluster").Obj())
		Expect(addressOf(ctx, ns, "a").Spec.Address).To(Equal("10.75.0.10"))
		Expect(refusalOf(ctx, ns, "direct", ipamv1.IPAddressClaimReadyPoolNotReadyReason)).To(ContainSubstring(incluster.HandedOverAnnotation))
		Expect(m.Stop()).To(Succeed())

		create(ctx, claimOn(ns, "b", ipPool, "p"))
		other.serveClaims(ctx)
		other.serveClaims(ctx)
		Expect(addressNamed(ctx, ns, "b").Spec.Address).To(Equal("10.75.0.11"))

		By("handing it over")
		m = namespaceManager(ctx, ns, flag, rights)
		expectCondition(ctx, mirror("p.in-cluster"), v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
		modify(ctx, pool, handOver)
		Eventually(func() bool {
			current := mirror("p.in-cluster")
			Expect(k8s.Get(ctx, keyOf(current), current)).To(Succeed())
			return incluster.HasHandedOverAnnotation(current)
		}).Should(BeTrue())
		Expect(m.Kill()).To(Succeed())
		endQuarantine(ctx, mirror("p.in-cluster"))
		m = namespaceManager(ctx, ns, flag, rights)
		Expect(addressOf(ctx, ns, "direct").Spec.Address).To(Equal("10.75.0.12"))
		Expect(m.Stop()).To(Succeed())

		By("running the other provider again all the same")
		create(ctx, claimOn(ns, "c", ipPool, "p"))
		other.serveClaims(ctx)
		other.serveClaims(ctx)
		expectUntouched(ctx, ns, "c")
		m = namespaceManager(ctx, ns, flag, rights)
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.75.0.13"))
		expectNothingWrong(ctx, ns)
		Expect(m.Stop()).To(Succeed())
	})

	It("gives way to the other provider and takes its place again, under load, and no address changes", func(ctx SpecContext) {
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.73.0.1-10.73.3.254"}, "prefix": int64(22), "gateway": "10.73.0.1"})
		other := &peer{ns: ns, pool: pool, first: netip.MustParseAddr("10.73.0.1"), last: netip.MustParseAddr("10.73.3.254"), gateway: "10.73.0.1"}
		history := &invariants.History{}
		right := func(ctx context.Context) {
			GinkgoHelper()
			Expect(history.CheckMoment(objects(ctx, ns))).To(BeEmpty())
		}
		// back starts a manager. After the other provider has run, it first starts one that waits and is killed, and
		// ends the wait, as if everything in flight had landed.
		back := func(ctx context.Context, after bool) *framework.Manager {
			GinkgoHelper()
			if after {
				m := namespaceManager(ctx, ns, flag, rights)
				expectCondition(ctx, mirror("p.in-cluster"), v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.AdoptingReason)
				Expect(m.Kill()).To(Succeed())
				endQuarantine(ctx, mirror("p.in-cluster"))
			}
			return namespaceManager(ctx, ns, flag, rights)
		}
		const each, rounds = 40, 6
		for round := range rounds {
			for i := range each {
				create(ctx, claimOn(ns, fmt.Sprintf("c-%d-%d", round, i), ipPool, "p"))
				if round > 0 && i%4 == 0 { // some claims of the last round are deleted
					Expect(k8s.Delete(ctx, claimOn(ns, fmt.Sprintf("c-%d-%d", round-1, i), ipPool, "p"))).To(Succeed())
				}
			}
			if round%2 == 1 {
				stop := other.run(ctx)
				Eventually(func() int { return bound(ctx, ns) }).WithTimeout(framework.LongTimeout).Should(BeNumerically(">", round*each/2))
				stop()
			} else {
				m := back(ctx, round > 0)
				Eventually(func() int { return bound(ctx, ns) }).WithTimeout(framework.LongTimeout).Should(BeNumerically(">", round*each/2))
				Expect(m.Kill()).To(Succeed()) // killed in the middle of the round
			}
			right(ctx)
		}
		m := back(ctx, true)
		Eventually(func(g Gomega) {
			o := objects(ctx, ns)
			g.Expect(o.Claims).To(HaveLen(each*rounds - (rounds-1)*each/4))
			g.Expect(o.Addresses).To(HaveLen(len(o.Claims)))
			g.Expect(bound(ctx, ns)).To(Equal(len(o.Claims)))
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		right(ctx)
		counts(ctx, pool, 1021, each*rounds-(rounds-1)*each/4, 0)
		Expect(m.Stop()).To(Succeed())
	})
})

func handOver(pool *unstructured.Unstructured) {
	pool.SetAnnotations(map[string]string{incluster.HandedOverAnnotation: ""})
}

// addressNamed reads an IPAddress again.
func addressNamed(ctx context.Context, ns, name string) *ipamv1.IPAddress {
	GinkgoHelper()
	address := &ipamv1.IPAddress{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, address)).To(Succeed())
	return address
}

// bound returns the number of claims of a namespace that have an address.
func bound(ctx context.Context, ns string) (n int) {
	GinkgoHelper()
	claims := objects(ctx, ns).Claims
	for i := range claims {
		if claims[i].Status.AddressRef.Name != "" {
			n++
		}
	}
	return n
}
