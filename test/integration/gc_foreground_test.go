package integration

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The garbage collector of Kubernetes runs. Argo CD prunes in the foreground: the objects that an object owns are
// deleted first, or lose the owner reference if they have another owner too.
var _ = Describe("Foreground deletion", Ordered, func() {
	const flag = "--serve-in-cluster-pools"
	var rights string
	BeforeAll(func(ctx SpecContext) {
		rights = startCollectorOfInClusterPools(ctx)
	})

	// prompt bounds the time until a Cluster whose machines are gone is gone.
	const prompt = 30 * time.Second
	// changesOf returns how often each of the IPAddresses of a namespace changes from now on until all of them are
	// gone, including their deletions.
	changesOf := func(ctx context.Context, ns string) func() map[string]int {
		GinkgoHelper()
		now := &ipamv1.IPAddressList{}
		Expect(k8s.List(ctx, now, client.InNamespace(ns))).To(Succeed())
		w, err := k8s.Watch(ctx, &ipamv1.IPAddressList{}, client.InNamespace(ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: now.ResourceVersion}})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		return func() map[string]int {
			GinkgoHelper()
			out := map[string]int{}
			for left := len(now.Items); left > 0; {
				var e watch.Event
				Eventually(w.ResultChan()).Should(Receive(&e))
				if out[e.Object.(client.Object).GetName()]++; e.Type == watch.Deleted {
					left--
				}
			}
			AddReportEntry("changes of each IPAddress until its end", out)
			return out
		}
	}
	foreground := client.PropagationPolicy(metav1.DeletePropagationForeground)
	gone := func(ctx context.Context, o client.Object) {
		GinkgoHelper()
		Eventually(func() error { return k8s.Get(ctx, keyOf(o), o) }).WithTimeout(framework.LongTimeout).Should(Satisfy(apierrors.IsNotFound))
	}

	DescribeTable("causes no repeated writes while the object is in use:", func(ctx SpecContext, behindMirror bool) {
		const n = 20
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns, flag, rights)
		pool, kind := client.Object(framework.MakePool("p").Namespace(ns).CIDR("10.152.78.0/24").Obj()), v1alpha1.NetworkPoolKind
		if behindMirror {
			kind = ipPool
			pool = makeInClusterPool(ctx, kind, ns, "p", map[string]any{"addresses": []any{"10.152.79.10-10.152.79.99"}, "prefix": int64(24)})
		} else {
			create(ctx, pool)
		}
		name := func(i int) string { return fmt.Sprintf("c%02d", i) }
		for i := range n {
			c := framework.MakeClaim(ns, name(i)).Pool("p").Obj()
			if behindMirror {
				c = claimOn(ns, name(i), kind, "p")
			}
			create(ctx, c)
		}
		for i := range n {
			addressOf(ctx, ns, name(i))
		}
		comesToRest(ctx, m)
		changes := changesOf(ctx, ns)
		Expect(k8s.Delete(ctx, pool, foreground)).To(Succeed())
		versions := func() map[string]string {
			out := map[string]string{}
			for _, a := range objects(ctx, ns).Addresses {
				out[a.Name] = a.ResourceVersion
			}
			return out
		}
		withoutPool := HaveEach(HaveField("OwnerReferences", HaveExactElements(HaveField("Kind", "IPAddressClaim"))))
		Eventually(func() []ipamv1.IPAddress { return objects(ctx, ns).Addresses }).WithTimeout(framework.LongTimeout).Should(withoutPool, "the garbage collector has taken the pool off")
		comesToRest(ctx, m)
		Expect(objects(ctx, ns).Addresses).To(withoutPool, "put back, while the garbage collector waits longer and longer between its tries")
		rested := versions()
		comesToRest(ctx, m)
		Expect(versions()).To(Equal(rested))
		for i := range n {
			Expect(k8s.Delete(ctx, getClaim(ctx, ns, name(i)))).To(Succeed())
		}
		gone(ctx, pool)
		Expect(objects(ctx, ns).Addresses).To(BeEmpty())
		Expect(changes()).To(HaveEach(BeNumerically("<", 5)), "they are written again and again")
		Expect(m.Stop()).To(Succeed())
	},
		Entry("a pool of ours", false),
		Entry("a pool of the in-cluster provider, with its mirror", true),
	)

	It("of a Cluster ends with the claim of its own address", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		cluster := makeCluster(ns, "c", false)
		cluster.Finalizers = []string{clusterv1.ClusterFinalizer} // as long as it has machines
		create(ctx, framework.MakePool("vips").Namespace(ns).CIDR("10.152.80.0/28").Obj(), cluster)
		claim := framework.MakeClaim(ns, "vip-cp-c").Pool("vips").Cluster("c").Obj()
		claim.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "c", UID: cluster.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
		}}
		create(ctx, claim)
		address := addressOf(ctx, ns, claim.Name)
		comesToRest(ctx, m)
		changes := changesOf(ctx, ns)
		Expect(k8s.Delete(ctx, cluster, foreground)).To(Succeed())
		Eventually(func() *metav1.Time { return getClaim(ctx, ns, claim.Name).DeletionTimestamp }).ShouldNot(BeNil())
		comesToRest(ctx, m)
		Expect(addressNamed(ctx, ns, claim.Name).Spec.Address).To(Equal(address.Spec.Address))
		expectNothingWrong(ctx, ns)
		modify(ctx, cluster, func(c *clusterv1.Cluster) { controllerutil.RemoveFinalizer(c, clusterv1.ClusterFinalizer) })
		left := time.Now()
		Eventually(func() error { return k8s.Get(ctx, keyOf(cluster), cluster) }).WithTimeout(prompt).Should(Satisfy(apierrors.IsNotFound), "events bring about all of it")
		AddReportEntry("the Cluster goes after its machines in", time.Since(left))
		expectGone(ctx, claim)
		expectGone(ctx, address)
		Expect(changes()).To(HaveEach(BeNumerically("<", 5)), "it is written again and again")
		Expect(m.Stop()).To(Succeed())
	})

	It("of a claim keeps its address until nothing uses it, and counts it once", func(ctx SpecContext) {
		const protects = "infrastructure.example.com/protects-the-claim"
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.152.81.0/28").Obj()
		vm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "vm"}}
		create(ctx, pool, vm)
		claim := framework.MakeClaim(ns, "vm-0-0").Pool("p").Obj()
		claim.Finalizers = []string{protects}
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "vm", UID: vm.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
		create(ctx, claim)
		address := addressOf(ctx, ns, claim.Name)
		Expect(k8s.Delete(ctx, vm, foreground)).To(Succeed())
		Eventually(func() []metav1.OwnerReference { return addressNamed(ctx, ns, claim.Name).OwnerReferences }).Should(
			HaveExactElements(HaveField("Kind", v1alpha1.NetworkPoolKind)), "the garbage collector has taken the claim off")
		comesToRest(ctx, m)
		expectNumbers(ctx, pool, map[string]int64{"allocatedIPs": 1, "allocationCount": 1})
		Expect((&invariants.History{}).CheckAtRest(objects(ctx, ns))).To(BeEmpty())
		modify(ctx, getClaim(ctx, ns, claim.Name), func(c *ipamv1.IPAddressClaim) { controllerutil.RemoveFinalizer(c, protects) })
		expectGone(ctx, claim)
		expectGone(ctx, address)
		gone(ctx, vm)
		Expect(m.Stop()).To(Succeed())
	})
})
