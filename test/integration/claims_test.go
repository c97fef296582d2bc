package integration

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("Claims", Ordered, func() {
	var ns string
	var m *framework.Manager

	BeforeAll(func(ctx SpecContext) {
		emptyCluster(ctx)
		m = startManager(ctx, shortGrace)
	})
	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, map[string]string{"team": "a"}) })

	It("are fulfilled as the contract of Cluster API requires", func(ctx SpecContext) { // C1-C5, C9, C13, C29
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.0.0/29").Gateway("10.1.0.1").Obj(),
			framework.MakeClaim(ns, "c").Pool("p").ClusterLabel("").Obj())
		address := addressOf(ctx, ns, "c")
		claim := getClaim(ctx, ns, "c")
		pool := &v1alpha1.NetworkPool{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "p"}, pool)).To(Succeed())
		Expect(address.Name).To(Equal("c"))
		Expect(address.Spec).To(Equal(ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: "c"}, PoolRef: claim.Spec.PoolRef,
			Address: "10.1.0.2", Prefix: ptr.To[int32](29), Gateway: "10.1.0.1",
		}))
		Expect(address.Finalizers).To(ConsistOf("ipam.cluster.x-k8s.io/ProtectAddress"))
		Expect(address.OwnerReferences).To(ConsistOf(
			metav1.OwnerReference{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: "c", UID: claim.UID,
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)},
			metav1.OwnerReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NetworkPool", Name: "p", UID: pool.UID,
				Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true)}))
		Expect(claim.Finalizers).To(ConsistOf("ipam.cluster.x-k8s.io/ReleaseAddress"))
		Expect(claim.Annotations).To(HaveKeyWithValue(v1alpha1.AddressAnnotation, "10.1.0.2"))
		Expect(claim.GetV1Beta1Conditions()).To(ContainElement(HaveField("Status", BeEquivalentTo("True"))))
		Expect(readyOf(claim).Message).To(Equal("allocated 10.1.0.2"))
	})

	It("of other providers are ignored", func(ctx SpecContext) { // C2
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.1.0/29").Obj(),
			framework.MakeClaim(ns, "foreign").PoolRef("ipam.cluster.x-k8s.io", "NetworkPool", "p").Obj(),
			framework.MakeClaim(ns, "ours").Pool("p").Obj())
		addressOf(ctx, ns, "ours")
		foreign := getClaim(ctx, ns, "foreign")
		Expect(foreign.Finalizers).To(BeEmpty())
		Expect(foreign.Status.Conditions).To(BeEmpty())
	})

	It("wait for a pool that does not exist yet", func(ctx SpecContext) { // C24
		create(ctx, framework.MakeClaim(ns, "c").Pool("later").Obj())
		Expect(refusalOf(ctx, ns, "c", "PoolNotReady")).To(ContainSubstring("later does not exist"))
		expectRestMeanwhile(ctx, 1, m)
		create(ctx, framework.MakePool("later").Namespace(ns).CIDR("10.1.2.0/29").Obj())
		Expect(addressOf(ctx, ns, "c").Spec.Address).To(Equal("10.1.2.1"))
	})

	It("wait for addresses of a full pool, and the oldest is served first", func(ctx SpecContext) { // W6, C23, U5, U6
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.3.0/30").Obj())
		for i := range 2 {
			create(ctx, framework.MakeClaim(ns, fmt.Sprintf("a%d", i)).Pool("p").Obj())
			addressOf(ctx, ns, fmt.Sprintf("a%d", i))
		}
		create(ctx, framework.MakeClaim(ns, "w1").Pool("p").Obj())
		Expect(refusalOf(ctx, ns, "w1", "PoolExhausted")).To(ContainSubstring("all are allocated"))
		create(ctx, framework.MakeClaim(ns, "w2").Pool("p").Obj())
		refusalOf(ctx, ns, "w2", "PoolExhausted")
		expectRestMeanwhile(ctx, 1, m)
		deleteClaim(ctx, ns, "a1")
		Expect(addressOf(ctx, ns, "w1").Spec.Address).To(Equal("10.1.3.2"))
		Expect(readyOf(getClaim(ctx, ns, "w2")).Status).To(Equal(metav1.ConditionFalse))
		deleteClaim(ctx, ns, "a0")
		Expect(addressOf(ctx, ns, "w2").Spec.Address).To(Equal("10.1.3.1"))
	})

	It("get the address that they request, or that is preallocated for their name", func(ctx SpecContext) {
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.4.0/24").PreAllocate("pinned", "10.1.4.1").Obj(),
			framework.MakeClaim(ns, "asks").Pool("p").RequestAddress("10.1.4.77").Obj(),
			framework.MakeClaim(ns, "asks-pin").Pool("p").RequestAddress("10.1.4.1").Obj(),
			framework.MakeClaim(ns, "asks-outside").Pool("p").RequestAddress("10.9.9.9").Obj(),
			framework.MakeClaim(ns, "plain").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "asks").Spec.Address).To(Equal("10.1.4.77"))
		Expect(refusalOf(ctx, ns, "asks-pin", "AllocationFailed")).To(ContainSubstring("preAllocation for claims named pinned"))
		Expect(refusalOf(ctx, ns, "asks-outside", "AllocationFailed")).To(Equal("NetworkPool " + ns + "/p does not hand out the requested address 10.9.9.9: it is outside the pool; " +
			"ask for another, or remove the annotation butler.butlerlabs.dev/requested-address"))
		Expect(addressOf(ctx, ns, "plain").Spec.Address).NotTo(Equal("10.1.4.1"))
		create(ctx, framework.MakeClaim(ns, "pinned").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "pinned").Spec.Address).To(Equal("10.1.4.1"))
	})

	It("of IPv6 pools get addresses and prefixes", func(ctx SpecContext) { // C17
		create(ctx, framework.MakePool("six").Namespace(ns).CIDR("fd00:1::/64").Gateway("fd00:1::1").Obj(),
			framework.MakePool("prefixes").Namespace(ns).CIDR("fd00:2::/62").PrefixPerClaim(64).Obj(),
			framework.MakeClaim(ns, "six").Pool("six").Obj(), framework.MakeClaim(ns, "prefix").Pool("prefixes").Obj())
		Expect(addressOf(ctx, ns, "six").Spec).To(And(HaveField("Address", "fd00:1::2"), HaveField("Prefix", ptr.To[int32](64)), HaveField("Gateway", "fd00:1::1")))
		Expect(addressOf(ctx, ns, "prefix").Spec).To(And(HaveField("Address", "fd00:2::"), HaveField("Prefix", ptr.To[int32](64))))
		pool := &v1alpha1.NetworkPool{}
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: ns, Name: "prefixes"}, pool)).To(Succeed())
			g.Expect(pool.Status).To(And(HaveField("TotalIPs", int64(4)), HaveField("AllocatedIPs", int64(1)), HaveField("AvailableIPs", int64(3))))
		}).Should(Succeed())
	})

	It("wait while their Cluster is paused or missing", func(ctx SpecContext) { // C30, C31, W9
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.5.0/24").Obj())
		cluster := func(name string, paused bool, annotations map[string]string) *clusterv1.Cluster {
			return &clusterv1.Cluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations},
				Spec:       clusterv1.ClusterSpec{Paused: &paused, ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
			}
		}
		spec, annotated := cluster("spec", true, nil), cluster("annotated", false, map[string]string{clusterv1.PausedAnnotation: ""})
		create(ctx, spec, annotated,
			framework.MakeClaim(ns, "spec").Pool("p").Cluster("spec").Obj(),
			framework.MakeClaim(ns, "annotated").Pool("p").ClusterLabel("annotated").Obj(),
			framework.MakeClaim(ns, "missing").Pool("p").Cluster("missing").Obj(),
			framework.MakeClaim(ns, "free").Pool("p").Obj())
		addressOf(ctx, ns, "free")
		Expect(refusalOf(ctx, ns, "missing", "AllocationFailed")).To(ContainSubstring("waiting for Cluster"))
		expectRestMeanwhile(ctx, 1, m)
		for _, name := range []string{"spec", "annotated"} {
			Expect(getClaim(ctx, ns, name).Finalizers).To(BeEmpty(), name)
		}
		patch := client.MergeFrom(spec.DeepCopy())
		spec.Spec.Paused = ptr.To(false)
		Expect(k8s.Patch(ctx, spec, patch)).To(Succeed())
		patch = client.MergeFrom(annotated.DeepCopy())
		annotated.Annotations = nil
		Expect(k8s.Patch(ctx, annotated, patch)).To(Succeed())
		create(ctx, cluster("missing", false, nil))
		for _, name := range []string{"spec", "annotated", "missing"} {
			address := addressOf(ctx, ns, name)
			Expect(address.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, name))
		}
	})

	It("keep their address when the IPAddress is deleted by force", func(ctx SpecContext) { // C14, C15, I4
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.6.0/24").Obj(),
			framework.MakeClaim(ns, "a").Pool("p").Obj(), framework.MakeClaim(ns, "b").Pool("p").Obj())
		addressOf(ctx, ns, "a")
		before := addressOf(ctx, ns, "b")
		force(ctx, before.DeepCopy())
		after := recreated(ctx, before)
		Expect(after.Spec).To(Equal(before.Spec))
	})

	It("have a link-local gateway in IPv6, which two networks may share", func(ctx SpecContext) { // C9, U13
		create(ctx, framework.MakePool("rack-1").Namespace(ns).CIDR("fd00:1:1::/64").Gateway("fe80::1").Obj(),
			framework.MakePool("rack-2").Namespace(ns).CIDR("fd00:1:2::/48").Subnet("fd00:1:2:7::/64", "fe80::1").Obj(),
			framework.MakeClaim(ns, "a").Pool("rack-1").Obj(),
			framework.MakeClaim(ns, "b").Pool("rack-2").RequestAddress("fd00:1:2:7::5").Obj())
		Expect(addressOf(ctx, ns, "a").Spec).To(And(
			HaveField("Address", "fd00:1:1::1"), HaveField("Prefix", HaveValue(Equal(int32(64)))), HaveField("Gateway", "fe80::1")))
		Expect(addressOf(ctx, ns, "b").Spec).To(And(
			HaveField("Address", "fd00:1:2:7::5"), HaveField("Prefix", HaveValue(Equal(int32(64)))), HaveField("Gateway", "fe80::1")))
	})

	It("are released only when the finalizers of others are removed", func(ctx SpecContext) { // C13, C22
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.7.0/32").Obj())
		held := framework.MakeClaim(ns, "held").Pool("p").Obj()
		held.Finalizers = []string{"example.com/machine"}
		create(ctx, held)
		before := addressOf(ctx, ns, "held")
		deleteClaim(ctx, ns, "held")
		create(ctx, framework.MakeClaim(ns, "next").Pool("p").Obj())
		refusalOf(ctx, ns, "next", "PoolExhausted") // the machine may still use it
		expectRestMeanwhile(ctx, 1, m)
		claim := getClaim(ctx, ns, "held")
		Expect(claim.Finalizers).To(ConsistOf("example.com/machine", v1alpha1.ClaimFinalizer))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(before), before)).To(Succeed())
		Expect(before.DeletionTimestamp).To(BeNil())
		freed := claim.DeepCopy()
		freed.Finalizers = []string{v1alpha1.ClaimFinalizer}
		Expect(k8s.Patch(ctx, freed, client.MergeFrom(claim))).To(Succeed())
		Expect(addressOf(ctx, ns, "next").Spec.Address).To(Equal("10.1.7.0"))
	})

	It("get a cooling address only under the name that had it", func(ctx SpecContext) { // W15, U8
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.8.0/32").ReuseGracePeriod(3600).Obj(), framework.MakeClaim(ns, "one").Pool("p").Obj())
		addressOf(ctx, ns, "one")
		deleteClaim(ctx, ns, "one")
		expectGone(ctx, &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "one"}})
		create(ctx, framework.MakeClaim(ns, "two").Pool("p").Obj())
		refusalOf(ctx, ns, "two", "PoolExhausted")
		create(ctx, framework.MakeClaim(ns, "one").Pool("p").Obj())
		Expect(addressOf(ctx, ns, "one").Spec.Address).To(Equal("10.1.8.0"))
	})

	It("of namespaces that a global pool does not select are refused", func(ctx SpecContext) {
		other := newNamespace(ctx, nil)
		create(ctx, framework.MakeGlobalPool(ns).CIDR("10.1.9.0/24").ForNamespaces("team", "a").Obj(),
			framework.MakeClaim(ns, "in").GlobalPool(ns).Obj(), framework.MakeClaim(other, "out").GlobalPool(ns).Obj())
		addressOf(ctx, ns, "in")
		Expect(refusalOf(ctx, other, "out", "AllocationFailed")).To(ContainSubstring("does not serve namespace " + other))
	})

	It("block the deletion of their pool, which names them", func(ctx SpecContext) { // B71, W10
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.1.10.0/24").Obj()
		create(ctx, pool, framework.MakeClaim(ns, "user").Pool("p").Obj())
		addressOf(ctx, ns, "user")
		Expect(k8s.Delete(ctx, pool)).To(Succeed())
		create(ctx, framework.MakeClaim(ns, "late").Pool("p").Obj())
		Expect(refusalOf(ctx, ns, "late", "PoolNotReady")).To(ContainSubstring("use another pool"))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
			g.Expect(pool.Status.Conditions).To(ContainElement(And(HaveField("Type", "Ready"), HaveField("Reason", "Deleting"),
				HaveField("Message", ContainSubstring(ns+"/user")))))
		}).Should(Succeed())
		expectRestMeanwhile(ctx, 1, m)
		deleteClaim(ctx, ns, "user")
		expectGone(ctx, pool)
	})

	It("that are created and deleted at once leave nothing behind", func(ctx SpecContext) { // U24
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.1.11.0/24").Obj())
		for i := range 60 {
			name := fmt.Sprintf("c%d", i)
			create(ctx, framework.MakeClaim(ns, name).Pool("p").Obj())
			deleteClaim(ctx, ns, name)
		}
		expectAtRest(ctx, ns, 0)
	})
})
