package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// adviceStep is a step that a message suggests, and the code that carries it out.
type adviceStep struct {
	// setup returns the objects that exist before the claim "c" of the namespace, which is refused.
	setup func(ns string) []client.Object
	// claim changes the claim, which names the pool p.
	claim func(*ipamv1.IPAddressClaim)
	// wantMessage is the step in the message of the claim.
	wantMessage string
	do          func(ctx context.Context, ns string)
	// recreate, if set, changes the claim, which is created again.
	recreate func(*ipamv1.IPAddressClaim)
}

// waitForLaterSecond waits until the API server would create an object in a later second than another one: for users,
// neither of two pools of the same second is younger.
func waitForLaterSecond(ctx context.Context, o client.Object, than metav1.Time) {
	GinkgoHelper()
	Eventually(func() bool {
		would := o.DeepCopyObject().(client.Object)
		Expect(k8s.Create(ctx, would, client.DryRunAll)).To(Succeed())
		created := would.GetCreationTimestamp()
		return than.Before(&created)
	}).Should(BeTrue())
}

var _ = Describe("The next step in a message helps:", Ordered, func() {
	var m *framework.Manager
	BeforeAll(func(ctx SpecContext) { m = startManager(ctx) })
	AfterAll(func() { Expect(m.Stop()).To(Succeed()) })

	nets := 0
	net := func() string { return fmt.Sprintf("10.210.%d.", nets) }
	poolOf := func(ns, name, addresses string) *v1alpha1.NetworkPool {
		return framework.MakePool(name).Namespace(ns).Addresses(addresses).Obj()
	}
	full := func(ns string) []client.Object {
		return []client.Object{poolOf(ns, "p", net()+"10"), framework.MakeClaim(ns, "first").Pool("p").Obj()}
	}
	onPool := func(name string, change func(*v1alpha1.NetworkPool)) func(context.Context, string) {
		return func(ctx context.Context, ns string) {
			modify(ctx, &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}, change)
		}
	}
	onClaim := func(change func(*ipamv1.IPAddressClaim)) func(context.Context, string) {
		return func(ctx context.Context, ns string) { modify(ctx, getClaim(ctx, ns, "c"), change) }
	}
	request := func(address string) func(*ipamv1.IPAddressClaim) {
		return func(c *ipamv1.IPAddressClaim) {
			c.Annotations = map[string]string{v1alpha1.RequestedAddressAnnotation: address}
		}
	}
	twins := func(ns string) []client.Object {
		return []client.Object{poolOf(ns, "elder", net()+"10-"+net()+"19"), poolOf(ns, "p", net()+"10-"+net()+"19")}
	}

	DescribeTable("a claim is served after", func(ctx SpecContext, s adviceStep) {
		ns := newNamespace(ctx, nil)
		nets++
		var last metav1.Time
		for _, o := range s.setup(ns) {
			if _, ok := o.(*v1alpha1.NetworkPool); ok {
				waitForLaterSecond(ctx, o, last)
			}
			create(ctx, o)
			last = o.GetCreationTimestamp()
			if pool, ok := o.(*v1alpha1.NetworkPool); ok {
				Eventually(func() int64 { return statusOf(ctx, pool).ObservedGeneration }).ShouldNot(BeZero())
			}
			if claim, ok := o.(*ipamv1.IPAddressClaim); ok {
				addressOf(ctx, ns, claim.Name)
			}
			if _, ok := o.(*ipamv1.IPAddress); ok { // a claim that is granted another address first gets another message
				expectNumbers(ctx, poolOf(ns, "p", ""), map[string]int64{"allocatedIPs": 1})
			}
		}
		claim := framework.MakeClaim(ns, "c").Pool("p").Obj()
		if s.claim != nil {
			s.claim(claim)
		}
		create(ctx, claim)
		Eventually(func(g Gomega) {
			claim := getClaim(ctx, ns, "c")
			g.Expect(claim.Status.AddressRef.Name).To(BeEmpty())
			message := readyOf(claim).Message
			for _, c := range claim.Status.Conditions {
				message += c.Message
			}
			g.Expect(message).To(ContainSubstring(s.wantMessage))
		}).Should(Succeed())
		if s.do != nil {
			s.do(ctx, ns)
		}
		if s.recreate != nil {
			Expect(k8s.Delete(ctx, claim)).To(Succeed())
			expectGone(ctx, claim)
			next := framework.MakeClaim(ns, "c").Pool("p").Obj()
			s.recreate(next)
			create(ctx, next)
		}
		addressOf(ctx, ns, "c")
	},
		Entry("addresses are added to a full pool", adviceStep{setup: full, wantMessage: "add addresses to the pool",
			do: onPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = append(p.Spec.Addresses, net()+"20") })}),
		Entry("another claim of a full pool is deleted", adviceStep{setup: full, wantMessage: "or delete machines or claims",
			do: func(ctx context.Context, ns string) { deleteClaim(ctx, ns, "first") }}),
		Entry("fewer addresses are reserved", adviceStep{wantMessage: "or reserve fewer",
			setup: func(ns string) []client.Object {
				return []client.Object{framework.MakePool("p").Namespace(ns).Addresses(net() + "10").Reserved(net() + "10").Obj()}
			},
			do: onPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Reserved = nil })}),
		Entry("the pool is created", adviceStep{wantMessage: "does not exist; create it",
			setup: func(string) []client.Object { return nil },
			do:    func(ctx context.Context, ns string) { create(ctx, poolOf(ns, "p", net()+"10")) }}),
		Entry("the claim is created again with the right poolRef", adviceStep{wantMessage: "or create this object again with the right poolRef",
			setup:    func(ns string) []client.Object { return []client.Object{poolOf(ns, "right", net()+"10")} },
			recreate: func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef.Name = "right" }}),
		Entry("the requested address is released", adviceStep{setup: full, wantMessage: "wait until it is released",
			claim: func(c *ipamv1.IPAddressClaim) { request(net() + "10")(c) },
			do:    func(ctx context.Context, ns string) { deleteClaim(ctx, ns, "first") }}),
		Entry("the request is removed", adviceStep{wantMessage: "or remove the annotation",
			setup: func(ns string) []client.Object { return []client.Object{poolOf(ns, "p", net()+"10")} },
			claim: func(c *ipamv1.IPAddressClaim) { request(net() + "200")(c) },
			do:    onClaim(func(c *ipamv1.IPAddressClaim) { delete(c.Annotations, v1alpha1.RequestedAddressAnnotation) })}),
		Entry("the request is corrected", adviceStep{wantMessage: "correct the annotation",
			setup: func(ns string) []client.Object { return []client.Object{poolOf(ns, "p", net()+"10")} },
			claim: request("ten"), do: onClaim(func(c *ipamv1.IPAddressClaim) { request(net() + "10")(c) })}),
		Entry("the address of an IPAddress without owners is recorded on the claim", adviceStep{wantMessage: "set the annotation",
			setup: func(ns string) []client.Object {
				return []client.Object{poolOf(ns, "p", net()+"10-"+net()+"19"), madeAddress(ns, "c", net()+"15", 24)}
			},
			do: onClaim(func(c *ipamv1.IPAddressClaim) {
				c.Annotations = map[string]string{v1alpha1.AddressAnnotation: net() + "15"}
			})}),
		Entry("the IPAddress of its name, which has no owner, is deleted", adviceStep{wantMessage: "else delete the IPAddress if nothing uses it",
			setup: func(ns string) []client.Object {
				return []client.Object{poolOf(ns, "p", net()+"10-"+net()+"19"), madeAddress(ns, "c", net()+"15", 24)}
			},
			do: func(ctx context.Context, ns string) {
				Expect(k8s.Delete(ctx, madeAddress(ns, "c", net()+"15", 24))).To(Succeed())
			}}),
		Entry("the Cluster is created", adviceStep{wantMessage: "create the Cluster",
			setup: func(ns string) []client.Object { return []client.Object{poolOf(ns, "p", net()+"10")} },
			claim: func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = "tenant" },
			do: func(ctx context.Context, ns string) {
				create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tenant"}, Spec: clusterv1.ClusterSpec{
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "DockerCluster", Name: "tenant"},
				}})
			}}),
		Entry("the pool is unpaused", adviceStep{wantMessage: "remove its annotation " + clusterv1.PausedAnnotation,
			setup: func(ns string) []client.Object {
				p := poolOf(ns, "p", net()+"10")
				p.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
				return []client.Object{p}
			},
			do: onPool("p", func(p *v1alpha1.NetworkPool) { delete(p.Annotations, clusterv1.PausedAnnotation) })}),
		Entry("the claim is unpaused", adviceStep{wantMessage: "remove it to resume",
			setup: func(ns string) []client.Object { return []client.Object{poolOf(ns, "p", net()+"10")} },
			claim: func(c *ipamv1.IPAddressClaim) { c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
			do:    onClaim(func(c *ipamv1.IPAddressClaim) { delete(c.Annotations, clusterv1.PausedAnnotation) })}),
		Entry("the younger of two pools has other addresses", adviceStep{setup: twins, wantMessage: "use different addresses",
			do: onPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{net() + "30"} })}),
		Entry("the younger of two pools is in another network", adviceStep{setup: twins, wantMessage: "or different values of spec.network",
			do: onPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.Network = "another" })}),
		Entry("the younger of two pools may overlap", adviceStep{setup: twins, wantMessage: "spec.allowOverlap is set, after which both may give the same address",
			do: onPool("p", func(p *v1alpha1.NetworkPool) { p.Spec.AllowOverlap = true })}),
		Entry("it is created again with another pool than the one that is being deleted", adviceStep{wantMessage: "the pool is being deleted; use another pool",
			setup: func(ns string) []client.Object {
				return append(full(ns), poolOf(ns, "other", net()+"30"))
			},
			claim: func(c *ipamv1.IPAddressClaim) {
				Expect(k8s.Delete(context.Background(), &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "p"}})).To(Succeed())
			},
			recreate: func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef.Name = "other" }}),
		Entry("the namespace is labelled", adviceStep{wantMessage: "label the namespace to match",
			setup: func(ns string) []client.Object {
				return []client.Object{framework.MakeGlobalPool(ns).Addresses(net()+"10").ForNamespaces("team", ns).Obj()}
			},
			claim: func(c *ipamv1.IPAddressClaim) {
				c.Spec.PoolRef.Kind, c.Spec.PoolRef.Name = v1alpha1.GlobalNetworkPoolKind, c.Namespace
			},
			do: func(ctx context.Context, ns string) {
				modify(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, func(n *corev1.Namespace) { n.Labels = map[string]string{"team": ns} })
			}}),
	)
})

var _ = Describe("The next step in a message of a mirror helps, and an edit of the mirror does no harm:", Ordered, func() {
	It("the message names the pool of the in-cluster provider, and a change of that pool serves the waiting claims", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		Expect(cp.InstallInClusterPools()).To(Succeed())
		pool := makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.211.0.10"}, "prefix": int64(24)})
		m := namespaceManager(ctx, ns, "--serve-in-cluster-pools")
		create(ctx, claimOn(ns, "a", ipPool, "p"))
		addressOf(ctx, ns, "a")
		create(ctx, claimOn(ns, "b", ipPool, "p"))
		Expect(refusalOf(ctx, ns, "b", ipamv1.IPAddressClaimReadyPoolExhaustedReason)).To(ContainSubstring("add addresses to InClusterIPPool " + ns + "/p"))

		By("widening the mirror instead of its pool, while the manager cannot write the spec of the mirror")
		mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p.in-cluster"}}
		narrow := refuseUnless(ctx, k8s, ns, fmt.Sprintf("request.namespace != %q || object.spec.addresses.size() > 1", ns), "the mirror stays wide",
			admissionv1.Update, v1alpha1.GroupVersion.Group, "networkpools")
		Eventually(func() error {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(mirror), mirror)).To(Succeed())
			return k8s.Update(ctx, mirror, client.DryRunAll)
		}).Should(MatchError(ContainSubstring("the mirror stays wide")))
		modify(ctx, mirror, func(p *v1alpha1.NetworkPool) { p.Spec.Addresses = []string{"10.211.0.10", "10.211.0.200"} })
		Expect(expectCondition(ctx, mirror, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ValidationFailedReason)).To(
			ContainSubstring("change InClusterIPPool " + ns + "/p"))
		Expect(getClaim(ctx, ns, "b").Status.AddressRef.Name).To(BeEmpty())
		Expect(k8s.Delete(ctx, narrow)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(mirror), mirror)).To(Succeed())
			g.Expect(mirror.Spec.Addresses).To(Equal([]string{"10.211.0.10"}))
			g.Expect(mirror.Status.ObservedGeneration).To(Equal(mirror.Generation))
		}).Should(Succeed())
		Expect(incluster.IsSpecSealed(mirror)).To(BeTrue())
		Expect(getClaim(ctx, ns, "b").Status.AddressRef.Name).To(BeEmpty())

		By("changing the pool as the message suggests")
		modify(ctx, pool, func(p *unstructured.Unstructured) {
			Expect(unstructured.SetNestedStringSlice(p.Object, []string{"10.211.0.10", "10.211.0.20"}, "spec", "addresses")).To(Succeed())
		})
		Expect(addressOf(ctx, ns, "b").Spec.Address).To(Equal("10.211.0.20"))

		By("reporting a second pool of the range on both, until that is changed")
		twin := makeInClusterPool(ctx, ipPool, ns, "q", map[string]any{"addresses": []any{"10.211.0.10-10.211.0.30"}, "prefix": int64(24)})
		for _, object := range []*unstructured.Unstructured{pool, twin} {
			Eventually(func() []string { return eventReasons(ctx, ns, object.GetUID()) }).Should(ContainElement(v1alpha1.OverlapReason))
		}
		Expect(expectCondition(ctx, mirror, v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.OverlapReason)).To(
			And(ContainSubstring("InClusterIPPool "+ns+"/q"), ContainSubstring("change spec.addresses of InClusterIPPool "+ns+"/p")))
		modify(ctx, twin, func(p *unstructured.Unstructured) {
			Expect(unstructured.SetNestedStringSlice(p.Object, []string{"10.211.0.11-10.211.0.19"}, "spec", "addresses")).To(Succeed())
		})
		expectCondition(ctx, mirror, v1alpha1.OverlapCondition, metav1.ConditionFalse, v1alpha1.NoOverlapReason)

		By("pausing and unpausing a pool")
		modify(ctx, twin, func(p *unstructured.Unstructured) {
			p.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
		})
		twinMirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "q.in-cluster"}}
		Expect(expectCondition(ctx, twinMirror, v1alpha1.ReadyCondition, metav1.ConditionFalse, clusterv1.PausedReason)).To(
			ContainSubstring("remove the annotation from InClusterIPPool " + ns + "/q"))
		create(ctx, claimOn(ns, "c", ipPool, "q"))
		modify(ctx, twin, func(p *unstructured.Unstructured) { p.SetAnnotations(nil) })
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.211.0.11"))
		Expect(m.Stop()).To(Succeed())
	})
})
