package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// awaitsNumbers reports whether specs wait for numbers in the status of a ClusterCIDR that change alone, which are
// written once a minute; not with -short. With a condition that changes, they are written at once.
func awaitsNumbers() bool { return !testing.Short() }

// haveNodes matches the number of Nodes of each Cluster that uses a ClusterCIDR, or with -short only the Clusters.
func haveNodes(numbers map[string]int64) types.GomegaMatcher {
	if awaitsNumbers() {
		return Equal(numbers)
	}
	clusters := func(all map[string]int64) []string { return slices.Sorted(maps.Keys(all)) }
	return WithTransform(clusters, Equal(clusters(numbers)))
}

// These specs share two workload clusters, so each leaves no Node behind. No kubelet runs: a Node is only an object.
// The manager has the rights of config/rbac/role.yaml alone, and in the workload clusters those of
// config/tenant/node_cidrs_role.yaml, restricted by the policy for Nodes.
var _ = Describe("Pod CIDRs of the Nodes of workload clusters", Ordered, startsEarly, func() {
	var a, b []byte // kubeconfigs
	var inA, inB client.Client
	var ns, kubeconfig string
	var manager *framework.Manager
	var ofB *framework.ControlPlane
	// serve starts a manager that runs until the objects of the spec are cleaned up.
	serve := func(ctx context.Context) {
		GinkgoHelper()
		manager = startManagerAs(ctx, kubeconfig, "--node-cidrs=fleet", "--shrink-grace=3s")
		DeferCleanup(func(ctx context.Context) {
			for _, c := range []client.Client{inA, inB} {
				Expect(c.DeleteAllOf(ctx, &corev1.Node{})).To(Succeed())
			}
			Expect(k8s.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(ns))).To(Succeed())
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.ClusterCIDR{})).To(Succeed())
			Eventually(func(g Gomega) {
				var left v1alpha1.ClusterCIDRList
				g.Expect(k8s.List(ctx, &left)).To(Succeed())
				g.Expect(left.Items).To(BeEmpty())
			}).WithTimeout(framework.LongTimeout).Should(Succeed())
		})
	}

	BeforeAll(func(ctx context.Context) {
		start := func() (*framework.ControlPlane, []byte, client.Client) {
			server, err := framework.StartControlPlane(framework.Options{})
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
			admin, err := server.NewClient()
			Expect(err).NotTo(HaveOccurred())
			applyPolicy(ctx, admin, "nodes.yaml")
			credentials, err := server.NodesTenantKubeconfig(ctx)
			Expect(err).NotTo(HaveOccurred())
			return server, credentials, admin
		}
		_, a, inA = start()
		ofB, b, inB = start()
	})
	BeforeEach(func(ctx context.Context) {
		ns = newNamespace(ctx, nil)
		var err error
		kubeconfig, err = cp.FleetManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		serve(ctx)
	})

	cluster := func(ctx context.Context, of []byte, name string, labels map[string]string) *clusterv1.Cluster {
		GinkgoHelper()
		out, err := framework.CreateClusterWithKubeconfig(ctx, k8s, of, metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels})
		Expect(err).NotTo(HaveOccurred())
		return out
	}
	served := map[string]string{v1alpha1.NodeCIDRsLabel: "", "net": "edge"}
	ranged := func(ctx context.Context, selects map[string]string, ipv4 string) *v1alpha1.ClusterCIDR {
		GinkgoHelper()
		c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fleet-%d", names.Add(1))}}
		c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: ipv4, ClusterSelector: &metav1.LabelSelector{MatchLabels: selects}}
		create(ctx, c)
		return c
	}
	join := func(ctx context.Context, c client.Client, names ...string) {
		GinkgoHelper()
		for _, name := range names {
			Expect(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
		}
	}
	cidrsOf := func(ctx context.Context, c client.Client, name string) func(Gomega) []string {
		return func(g Gomega) []string {
			n := &corev1.Node{}
			g.Expect(c.Get(ctx, client.ObjectKey{Name: name}, n)).To(Succeed())
			return n.Spec.PodCIDRs
		}
	}
	statusOf := func(ctx context.Context, c *v1alpha1.ClusterCIDR) func(Gomega) v1alpha1.ClusterCIDRStatus {
		return func(g Gomega) v1alpha1.ClusterCIDRStatus {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(c), c)).To(Succeed())
			return c.Status
		}
	}
	conditionText := func(ctx context.Context, c *clusterv1.Cluster) func(Gomega) string {
		return func(g Gomega) string {
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(c), c)).To(Succeed())
			condition := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, v1alpha1.PodCIDRsReadyCondition), metav1.Condition{})
			return fmt.Sprint(condition.Status, " ", condition.Reason, " ", condition.Message)
		}
	}
	used := func(s v1alpha1.ClusterCIDRStatus) map[string]int64 {
		out := map[string]int64{}
		for _, e := range s.Clusters {
			out[e.Name] = e.Nodes
		}
		return out
	}
	gone := func(ctx context.Context, o client.Object) func() bool {
		return func() bool { return apierrors.IsNotFound(k8s.Get(ctx, client.ObjectKeyFromObject(o), o)) }
	}

	It("are unique within each Cluster, and all Clusters use one range", func(ctx context.Context) {
		range1 := ranged(ctx, map[string]string{"net": "edge"}, "10.8.0.0/22")
		one, two := cluster(ctx, a, "one", served), cluster(ctx, b, "two", served)
		other := cluster(ctx, b, "other", map[string]string{"net": "edge"}) // without the label that enables it
		join(ctx, inA, "w1", "w2")
		join(ctx, inB, "w1")
		for _, c := range []client.Client{inA, inB} {
			Eventually(cidrsOf(ctx, c, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		}
		Eventually(cidrsOf(ctx, inA, "w2")).Should(HaveLen(1))
		Eventually(conditionText(ctx, one)).Should(HavePrefix("True Ready"))
		Eventually(conditionText(ctx, two)).Should(HavePrefix("True Ready"))
		Eventually(func(g Gomega) {
			s := statusOf(ctx, range1)(g)
			g.Expect(used(s)).To(haveNodes(map[string]int64{"one": 2, "two": 1}))
			if awaitsNumbers() {
				g.Expect([]int64{s.Capacity, s.Allocated, s.Free}).To(Equal([]int64{4, 3, 2}))
			}
			g.Expect(meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ReadyCondition)).To(BeTrue())
		}).WithTimeout(framework.LongTimeout).Should(Succeed())
		Expect(conditionText(ctx, other)(NewWithT(GinkgoT()))).NotTo(ContainSubstring("Ready"))

		By("reporting the Nodes that wait when the range is full, and serving them when another range is added")
		join(ctx, inA, "w3", "w4", "w5")
		Eventually(conditionText(ctx, one)).WithTimeout(framework.LongTimeout).Should(And(HavePrefix("False Exhausted"), ContainSubstring("1 of 5 Nodes")))
		Eventually(func(g Gomega) {
			s := statusOf(ctx, range1)(g)
			g.Expect(used(s)).To(HaveKeyWithValue("one", int64(4)))
			g.Expect([]int64{s.Capacity, s.Free}).To(Equal([]int64{4, 0}))
		}).WithTimeout(framework.LongTimeout).Should(Succeed(), "with a condition that changes, the numbers are written at once")
		Eventually(func(g Gomega) []eventsv1.Event {
			var all eventsv1.EventList
			g.Expect(inA.List(ctx, &all)).To(Succeed())
			return all.Items
		}).Should(ContainElement(HaveField("Reason", "CIDRNotAvailable")), "the Node has an event in its own cluster")
		expectRestMeanwhile(ctx, 2, manager)
		ranged(ctx, map[string]string{}, "10.9.0.0/22")
		for _, name := range []string{"w3", "w4", "w5"} {
			Eventually(cidrsOf(ctx, inA, name)).Should(HaveLen(1))
		}
		Eventually(conditionText(ctx, one)).WithTimeout(framework.LongTimeout).Should(HavePrefix("True Ready"))
	})

	It("block the deletion of a ClusterCIDR until no Cluster uses it", func(ctx context.Context) { // K18, K19, N3
		c := ranged(ctx, map[string]string{}, "10.8.0.0/22")
		cluster(ctx, a, "one", served)
		two := cluster(ctx, b, "two", served)
		join(ctx, inA, "w1")
		join(ctx, inB, "w1")
		Eventually(cidrsOf(ctx, inA, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		Eventually(cidrsOf(ctx, inB, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))

		Expect(k8s.Delete(ctx, c)).To(Succeed())
		deleted := And(HavePrefix("is being deleted; "), ContainSubstring(ns+"/one ("), ContainSubstring(ns+"/two ("))
		if awaitsNumbers() {
			deleted = And(HavePrefix("is being deleted; 2 Nodes use it"), ContainSubstring(ns+"/one (1 Node)"))
		}
		Eventually(func(g Gomega) string {
			return ptr.Deref(meta.FindStatusCondition(statusOf(ctx, c)(g).Conditions, v1alpha1.ReadyCondition), metav1.Condition{}).Message
		}).WithTimeout(framework.LongTimeout).Should(deleted)
		expectRestMeanwhile(ctx, 2, manager)
		join(ctx, inA, "late")
		Eventually(conditionText(ctx, two)).WithTimeout(framework.LongTimeout).Should(HavePrefix("True"))
		Expect(inA.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}})).To(Succeed())
		Eventually(func(g Gomega) map[string]int64 { return used(statusOf(ctx, c)(g)) }).WithTimeout(framework.LongTimeout).Should(haveNodes(map[string]int64{"two": 1}))
		Expect(cidrsOf(ctx, inA, "late")(NewWithT(GinkgoT()))).To(BeEmpty(), "nothing more is given of it")

		By("keeping it, and the CIDRs that Nodes have of it, over a restart")
		cidrs := cidrsOf(ctx, inB, "w1")(NewWithT(GinkgoT()))
		Expect(manager.Kill()).To(Succeed())
		serve(ctx)
		ranged(ctx, map[string]string{}, "10.9.0.0/22")
		Eventually(cidrsOf(ctx, inA, "late")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		Expect(used(statusOf(ctx, c)(NewWithT(GinkgoT())))).To(haveNodes(map[string]int64{"two": 1}))
		Expect(cidrsOf(ctx, inB, "w1")(NewWithT(GinkgoT()))).To(Equal(cidrs))
		w1 := &corev1.Node{}
		Expect(inB.Get(ctx, client.ObjectKey{Name: "w1"}, w1)).To(Succeed())
		w1.Spec.PodCIDR, w1.Spec.PodCIDRs = "10.99.0.0/24", []string{"10.99.0.0/24"}
		Expect(apierrors.IsInvalid(inB.Update(ctx, w1))).To(BeTrue(), "no other Cluster can change them")

		By("deleting the last Cluster that uses it")
		Expect(k8s.Delete(ctx, two)).To(Succeed())
		Eventually(gone(ctx, c)).WithTimeout(framework.LongTimeout).Should(BeTrue())
	})

	It("come from blocks that no other Cluster has when the ClusterCIDR names a pool", func(ctx context.Context) {
		pool := framework.MakeGlobalPool(ns + "-pods").Addresses("100.64.0.0/22").Obj()
		pool.Spec.AllocateReservedIPAddresses = true
		create(ctx, pool)
		c := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fleet-%d", names.Add(1))}}
		c.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 6, ClusterSelector: &metav1.LabelSelector{}, IPv4Pool: &v1alpha1.PodPool{Name: pool.Name, NodesPerBlock: 4}}
		create(ctx, c)
		one := cluster(ctx, a, "one", served)
		cluster(ctx, b, "two", served)
		join(ctx, inA, "w1", "w2", "w3", "w4", "w5")
		join(ctx, inB, "w1", "w2")
		var all []string
		for _, node := range []struct {
			in   client.Client
			name string
		}{{inA, "w1"}, {inA, "w2"}, {inA, "w3"}, {inA, "w4"}, {inA, "w5"}, {inB, "w1"}, {inB, "w2"}} {
			Eventually(cidrsOf(ctx, node.in, node.name)).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
			cidr := cidrsOf(ctx, node.in, node.name)(NewWithT(GinkgoT()))[0]
			Expect(all).NotTo(ContainElement(cidr))
			all = append(all, cidr)
		}
		blocks := func(g Gomega) map[string]int {
			var list v1alpha1.IPAllocationList
			g.Expect(k8s.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
			out := map[string]int{}
			for i := range list.Items {
				out[list.Items[i].Spec.TenantClusterRef.Name]++
			}
			return out
		}
		Expect(blocks(NewWithT(GinkgoT()))).To(Equal(map[string]int{"one": 2, "two": 1}))
		if awaitsNumbers() {
			Eventually(func(g Gomega) []int64 {
				s := statusOf(ctx, c)(g)
				return []int64{s.Capacity, s.Allocated, s.Free}
			}).WithTimeout(framework.LongTimeout).Should(Equal([]int64{12, 7, 5}))
		}

		By("reporting the Nodes that wait when the pool is exhausted")
		join(ctx, inA, "w6", "w7", "w8", "w9", "w10", "w11", "w12", "w13")
		Eventually(conditionText(ctx, one)).WithTimeout(framework.LongTimeout).Should(And(HavePrefix("False Exhausted"), ContainSubstring("1 of 13 Nodes")))
		Eventually(func(g Gomega) string {
			condition := ptr.Deref(meta.FindStatusCondition(statusOf(ctx, c)(g).Conditions, v1alpha1.ExhaustedCondition), metav1.Condition{})
			return condition.Reason + " " + condition.Message
		}).WithTimeout(framework.LongTimeout).Should(And(HavePrefix("PoolExhausted"), ContainSubstring("has no free prefix of /24")))

		By("releasing a block that no Node uses, which the other Cluster gets")
		for _, name := range []string{"w1", "w2"} {
			Expect(inB.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
		}
		Eventually(cidrsOf(ctx, inA, "w9")).Should(HaveLen(1), "the last by age and name")
		Eventually(blocks).WithTimeout(framework.LongTimeout).Should(Equal(map[string]int{"one": 4}))

		By("releasing all blocks with the Cluster")
		Expect(inA.DeleteAllOf(ctx, &corev1.Node{})).To(Succeed())
		Expect(k8s.Delete(ctx, one)).To(Succeed())
		Eventually(gone(ctx, one)).WithTimeout(framework.LongTimeout).Should(BeTrue())
		Eventually(blocks).WithTimeout(framework.LongTimeout).Should(BeEmpty())
	})

	It("stay unchanged while the API server of their Cluster is down, and new Nodes get theirs when it is back", func(ctx context.Context) { // K49
		c := ranged(ctx, map[string]string{}, "10.8.0.0/22")
		cluster(ctx, a, "one", served)
		cluster(ctx, b, "two", served)
		join(ctx, inA, "w1")
		join(ctx, inB, "w1")
		Eventually(cidrsOf(ctx, inA, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		Eventually(cidrsOf(ctx, inB, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		cidrs := cidrsOf(ctx, inB, "w1")(NewWithT(GinkgoT()))
		Eventually(func(g Gomega) map[string]int64 { return used(statusOf(ctx, c)(g)) }).WithTimeout(framework.LongTimeout).Should(haveNodes(map[string]int64{"one": 1, "two": 1}))

		Expect(ofB.KillAPIServer()).To(Succeed())
		join(ctx, inA, "w2")
		Eventually(cidrsOf(ctx, inA, "w2")).Should(HaveLen(1), "the other Cluster is served")
		expectRestMeanwhile(ctx, 2, manager)
		kept := used(statusOf(ctx, c)(NewWithT(GinkgoT())))
		Expect(kept).To(HaveKey("two"))
		if awaitsNumbers() {
			Expect(kept).To(HaveKeyWithValue("two", int64(1)))
		}

		Expect(ofB.StartAPIServer()).To(Succeed())
		join(ctx, inB, "w2")
		Eventually(cidrsOf(ctx, inB, "w2")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
		Expect(cidrsOf(ctx, inB, "w1")(NewWithT(GinkgoT()))).To(Equal(cidrs))
	})

	It("are counted by the audit when two Nodes of a Cluster have the same one", func(ctx context.Context) { // K45
		cluster(ctx, a, "one", served)
		cluster(ctx, b, "two", served)
		for _, name := range []string{"x", "y"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.77.0.0/24", []string{"10.77.0.0/24"}
			Expect(inA.Create(ctx, n)).To(Succeed())
		}
		auditor := startManagerAs(ctx, kubeconfig, "--node-cidrs=fleet", "--audit-interval=1s")
		of := func(name string) string {
			return fmt.Sprintf(`butler_ipam_audit_duplicate_node_cidrs{cluster_name=%q,cluster_namespace=%q}`, name, ns)
		}
		Eventually(auditor.ReadGauge).WithArguments(ctx, of("one")).WithTimeout(framework.LongTimeout).Should(BeEquivalentTo(2))
		Eventually(auditor.ReadGauge).WithArguments(ctx, of("two")).WithTimeout(framework.LongTimeout).Should(BeZero())
		Expect(auditor.Kill()).To(Succeed()) // it is never idle
	})

	It("are not set without the label on the Cluster, and are set again with it", func(ctx context.Context) {
		c := ranged(ctx, map[string]string{}, "10.8.0.0/22")
		one := cluster(ctx, a, "one", served)
		join(ctx, inA, "w1")
		Eventually(cidrsOf(ctx, inA, "w1")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))

		relabel := func(labels map[string]string) {
			GinkgoHelper()
			Eventually(func() error {
				if err := k8s.Get(ctx, client.ObjectKeyFromObject(one), one); err != nil {
					return err
				}
				one.Labels = labels
				return k8s.Update(ctx, one)
			}).Should(Succeed())
		}
		relabel(nil)
		Expect(inA.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}})).To(Succeed())
		Eventually(func(g Gomega) map[string]int64 { return used(statusOf(ctx, c)(g)) }).WithTimeout(framework.LongTimeout).Should(BeEmpty())
		Eventually(conditionText(ctx, one)).WithTimeout(framework.LongTimeout).Should(Equal("  "))
		join(ctx, inA, "w2")
		relabel(served)
		Eventually(cidrsOf(ctx, inA, "w2")).WithTimeout(framework.LongTimeout).Should(HaveLen(1))
	})
})
