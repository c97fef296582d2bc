package integration

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

var _ = Describe("Pod CIDRs of Nodes", Ordered, startsEarly, func() {
	w := newNodeWorld()
	nodes, node, clusterCIDR, read, cidrsOf := w.nodes, w.node, w.clusterCIDR, w.read, w.cidrsOf
	readyOf, remove, goneOf, eventsOf := w.readyOf, w.remove, w.goneOf, w.eventsOf

	It("are allocated, released and allocated again", func(ctx SpecContext) { // K43: Allocate, Release
		m := nodes(ctx)
		create(ctx, clusterCIDR("c", 8, "10.1.0.0/23", ""), node("a"), node("b"))
		got := []string{cidrsOf(ctx, "a")[0], cidrsOf(ctx, "b")[0]}
		Expect(got).To(ConsistOf("10.1.0.0/24", "10.1.1.0/24"))
		Expect(read(ctx, "a").Spec.PodCIDR).To(Equal(got[0]))
		Expect(read(ctx, "a").Annotations).To(HaveKeyWithValue(v1alpha1.ClusterCIDRAnnotation, w.labelValue+"-c"))

		By("refusing the third, with a reason") // K32
		create(ctx, node("x"))
		Eventually(eventsOf(ctx, "x", "CIDRNotAvailable")).Should(ConsistOf(ContainSubstring("all ClusterCIDRs that match are full: %s-c (2 Nodes)", w.labelValue)))
		Eventually(func(g Gomega) {
			c := &v1alpha1.ClusterCIDR{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Name: w.labelValue + "-c"}, c)).To(Succeed())
			exhausted := ptr.Deref(meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ExhaustedCondition), metav1.Condition{})
			g.Expect(exhausted.Message).To(Equal("all 2 node CIDRs are taken and 1 Node waits: add a ClusterCIDR for more"))
			g.Expect([]int64{c.Status.Capacity, c.Status.Allocated, c.Status.Free}).To(Equal([]int64{2, 2, 0}))
		}).Should(Succeed())
		expectRestMeanwhile(ctx, 1, m)

		By("allocating the CIDR of a deleted Node") // K37
		remove(ctx, node("a"))
		Expect(cidrsOf(ctx, "x")).To(Equal(got[:1]))
	})

	It("are kept while a finalizer keeps a deleted Node", func(ctx SpecContext) {
		m := nodes(ctx)
		a := node("a")
		a.Finalizers = []string{"karpenter.sh/termination"}
		create(ctx, clusterCIDR("c", 8, "10.1.0.0/24", ""), a)
		had := cidrsOf(ctx, "a")
		remove(ctx, a)
		create(ctx, node("b"))
		Eventually(eventsOf(ctx, "b", "CIDRNotAvailable")).ShouldNot(BeEmpty())
		expectRestMeanwhile(ctx, 1, m)
		Expect(read(ctx, "b").Spec.PodCIDRs).To(BeEmpty())
		draining := read(ctx, "a")
		draining.Finalizers = nil
		Expect(k8s.Update(ctx, draining)).To(Succeed())
		Expect(cidrsOf(ctx, "b")).To(Equal(had))
	})

	It("block the deletion of the ClusterCIDR that they are from", func(ctx SpecContext) { // K43: Delete, Terminate
		m := nodes(ctx)
		unused, used := clusterCIDR("unused", 8, "10.2.0.0/24", "", "never"), clusterCIDR("used", 8, "10.1.0.0/23", "")
		create(ctx, unused, used, node("a"))
		cidrsOf(ctx, "a")
		remove(ctx, unused)
		Eventually(goneOf(ctx, unused)).Should(BeTrue())

		remove(ctx, used)
		Eventually(readyOf(ctx, "used")).Should(And(
			HaveField("Reason", v1alpha1.DeletingReason), HaveField("Message", Equal(fmt.Sprintf("is being deleted; 1 Node uses it: %s-a", w.labelValue)))))
		create(ctx, node("b")) // K41
		Eventually(eventsOf(ctx, "b", "CIDRNotAvailable")).Should(ConsistOf(ContainSubstring("there is no ClusterCIDR")))
		expectRestMeanwhile(ctx, 1, m)
		remove(ctx, node("a")) // K38
		Eventually(goneOf(ctx, used)).Should(BeTrue())
		create(ctx, clusterCIDR("more", 8, "10.3.0.0/24", "")) // K39
		Expect(cidrsOf(ctx, "b")).To(Equal([]string{"10.3.0.0/24"}))
	})

	It("are from the range that fits best", func(ctx SpecContext) { // K43: TieBreak
		nodes(ctx)
		create(ctx,
			clusterCIDR("wide", 8, "10.1.0.0/16", ""), clusterCIDR("narrow", 8, "10.2.0.0/20", ""),
			clusterCIDR("big", 9, "10.3.0.0/16", "", "big"), node("plain"), node("big", "big"))
		Expect(cidrsOf(ctx, "plain")).To(Equal([]string{"10.2.0.0/24"}))
		Expect(cidrsOf(ctx, "big")).To(Equal([]string{"10.3.0.0/23"}))
	})

	It("come from another ClusterCIDR when one is full, also from ranges that are not adjacent", func(ctx SpecContext) { // K40, K44
		nodes(ctx)
		create(ctx, clusterCIDR("first", 6, "10.1.0.0/25", ""), node("a"), node("b"), node("x"))
		Eventually(func(g Gomega) {
			g.Expect(eventsOf(ctx, "x", "CIDRNotAvailable")()).NotTo(BeEmpty())
		}).Should(Succeed())
		create(ctx, clusterCIDR("second", 6, "10.200.0.0/26", ""))
		Expect(cidrsOf(ctx, "x")).To(Equal([]string{"10.200.0.0/26"}))

		By("serving 32 Nodes from four ranges of eight CIDRs")
		for i := range 4 {
			create(ctx, clusterCIDR(fmt.Sprint("part", i), 8, fmt.Sprintf("10.%d.8.0/21", 10+i), "", "many"))
		}
		for i := range 32 {
			create(ctx, node(fmt.Sprint("m", i), "many"))
		}
		taken := map[string]bool{}
		for i := range 32 {
			taken[cidrsOf(ctx, fmt.Sprint("m", i))[0]] = true
		}
		Expect(taken).To(HaveLen(32))
	})

	// services creates a ServiceCIDR for a range of Services. No controller runs that would finalize it on deletion.
	services := func(ctx context.Context, cidr string) *networkingv1.ServiceCIDR {
		GinkgoHelper()
		serviceCIDR := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: w.labelValue}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
		create(ctx, serviceCIDR)
		DeferCleanup(force, serviceCIDR)
		return serviceCIDR
	}

	It("are of both families or of none, and outside the ranges of Services", func(ctx SpecContext) { // N1, K4, K21, K22, K23
		services(ctx, "10.1.0.0/24")
		nodes(ctx)
		create(ctx, clusterCIDR("both", 8, "10.1.0.0/22", "fd00:1::/119"), node("a"), node("b"), node("x"))
		a, b := cidrsOf(ctx, "a"), cidrsOf(ctx, "b")
		Expect([][]string{a, b}).To(ConsistOf([]string{"10.1.1.0/24", "fd00:1::/120"}, []string{"10.1.2.0/24", "fd00:1::100/120"}))
		Eventually(eventsOf(ctx, "x", "CIDRNotAvailable")).ShouldNot(BeEmpty())
		Expect(read(ctx, "x").Spec.PodCIDRs).To(BeEmpty())
		create(ctx, clusterCIDR("one", 8, "10.9.0.0/24", ""))
		Expect(cidrsOf(ctx, "x")).To(Equal([]string{"10.9.0.0/24"}))
	})

	It("exclude a ServiceCIDR that is created while the manager runs, and include its range again when it is deleted", func(ctx SpecContext) { // K23
		m := nodes(ctx)
		create(ctx, clusterCIDR("c", 8, "10.1.0.0/22", ""), node("a"))
		Expect(cidrsOf(ctx, "a")).To(Equal([]string{"10.1.0.0/24"}))
		Eventually(readyOf(ctx, "c")).Should(HaveField("Message", "3 of 4 node CIDRs are free"))
		comesToRest(ctx, m)
		serviceCIDR := services(ctx, "10.1.1.0/24")
		// No other event wakes a manager at rest: the watch of ServiceCIDRs triggers this.
		Eventually(readyOf(ctx, "c")).Should(HaveField("Message", "2 of 4 node CIDRs are free"))
		create(ctx, node("b"), node("x"))
		Expect([][]string{cidrsOf(ctx, "b"), cidrsOf(ctx, "x")}).To(ConsistOf([]string{"10.1.2.0/24"}, []string{"10.1.3.0/24"}))
		create(ctx, node("y"))
		Eventually(eventsOf(ctx, "y", "CIDRNotAvailable")).ShouldNot(BeEmpty())
		Expect(read(ctx, "y").Spec.PodCIDRs).To(BeEmpty())

		By("deleting the ServiceCIDR")
		comesToRest(ctx, m)
		force(ctx, serviceCIDR)
		Expect(cidrsOf(ctx, "y")).To(Equal([]string{"10.1.1.0/24"}))
	})

	It("are adopted by address, whichever allocator set them", func(ctx SpecContext) { // K27, K28, K29, K31, K34, K35, K36, N2, N4
		nodeWithCIDR := func(name, cidr string, labels ...string) *corev1.Node {
			n := node(name, labels...)
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
			return n
		}
		create(ctx, clusterCIDR("c", 8, "10.1.0.0/22", ""), nodeWithCIDR("a", "10.1.0.0/24"), nodeWithCIDR("foreign", "192.168.7.0/24"), nodeWithCIDR("twice", "10.1.0.0/25"))
		relabelled := nodeWithCIDR("relabelled", "10.1.1.0/24")
		relabelled.Labels = map[string]string{"other": "label"}
		create(ctx, relabelled)
		DeferCleanup(func(ctx context.Context) { remove(ctx, relabelled) })
		create(ctx, node("new"))
		m := nodes(ctx, "--audit-interval=1s")
		Eventually(readyOf(ctx, "c")).Should(And(HaveField("Status", metav1.ConditionUnknown), HaveField("Reason", v1alpha1.AdoptingReason)))
		Eventually(eventsOf(ctx, "foreign", "PodCIDRForeign")).Should(ConsistOf("its pod CIDR 192.168.7.0/24 is in no ClusterCIDR; it stays"))
		Eventually(eventsOf(ctx, "twice", "PodCIDRConflict")).Should(ConsistOf(ContainSubstring("overlap those of Node %s-a", w.labelValue)))
		Eventually(eventsOf(ctx, "a", "PodCIDRConflict")).Should(HaveLen(1))
		Eventually(m.ReadGauge).WithArguments(ctx, `butler_ipam_audit_duplicate_node_cidrs{cluster_name="",cluster_namespace=""}`).Should(BeEquivalentTo(2)) // K45
		Expect(read(ctx, "new").Spec.PodCIDRs).To(BeEmpty(), "what the former allocator wrote may still be on its way")

		By("ending the wait by hand")
		Expect(m.Kill()).To(Succeed())
		w.skipAdoptionWait(ctx)
		nodes(ctx)
		Expect(cidrsOf(ctx, "new")).To(Equal([]string{"10.1.2.0/24"}))
	})

	It("are counted like others when the ClusterCIDR of a Node has no range of their family", func(ctx SpecContext) { // N4, K28
		nodeWithCIDRs := func(name string, cidrs ...string) *corev1.Node {
			n := node(name, "six")
			n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
			return n
		}
		// The only ClusterCIDR that selects these Nodes is for IPv6: one has a CIDR of IPv4, one has CIDRs of both
		// families. A third Node waits for its CIDR, because a manager without an election takes over only if a Node
		// waits.
		create(ctx, clusterCIDR("six", 8, "", "fd00:6::/119", "six"), nodeWithCIDRs("four", "10.66.0.0/24"), nodeWithCIDRs("dual", "10.66.1.0/24", "fd00:6::/120"), node("new", "six"))
		m := nodes(ctx, "--audit-interval=1s")
		Eventually(eventsOf(ctx, "four", "PodCIDRForeign")).Should(ConsistOf("its pod CIDR 10.66.0.0/24 is in no ClusterCIDR; it stays"))
		Eventually(eventsOf(ctx, "dual", "PodCIDRForeign")).Should(ConsistOf("its pod CIDR 10.66.1.0/24 is in no ClusterCIDR; it stays"))
		for range 2 { // the process keeps running, and does so after a restart: existing CIDRs are adopted at each start
			Expect(m.Kill()).To(Succeed())
			w.skipAdoptionWait(ctx)
			m = nodes(ctx)
		}

		By("allocating what is left of the range, and none of the CIDRs that Nodes have")
		create(ctx, clusterCIDR("any", 8, "10.66.0.0/23", ""), node("plain"))
		Expect(cidrsOf(ctx, "new")).To(Equal([]string{"fd00:6::100/120"}))
		Eventually(eventsOf(ctx, "plain", "CIDRNotAvailable")).Should(ConsistOf(ContainSubstring("all ClusterCIDRs that match are full")))
		Expect(read(ctx, "plain").Spec.PodCIDRs).To(BeEmpty())

		By("counting each CIDR once, in a range that contains it, and releasing it with its Node")
		Eventually(func(g Gomega) {
			c := &v1alpha1.ClusterCIDR{}
			g.Expect(k8s.Get(ctx, client.ObjectKey{Name: w.labelValue + "-six"}, c)).To(Succeed())
			g.Expect([]int64{c.Status.Capacity, c.Status.Allocated, c.Status.Free}).To(Equal([]int64{2, 1, 0}))
		}).Should(Succeed())
		remove(ctx, nodeWithCIDRs("four", "10.66.0.0/24"))
		Expect(cidrsOf(ctx, "plain")).To(Equal([]string{"10.66.0.0/24"}))
		Expect(read(ctx, "dual").Spec.PodCIDRs).To(Equal([]string{"10.66.1.0/24", "fd00:6::/120"}))
	})

	It("are not retried continuously while a policy refuses them", func(ctx SpecContext) { // W30
		m := nodes(ctx)
		create(ctx, node("tried"))
		refusal := refuseIn(ctx, k8s, w.labelValue, "", "no Node is changed here", admissionv1.Update, "", "nodes")
		Eventually(func() error { // the policy takes a moment to become effective
			n := read(ctx, "tried")
			n.Labels["tried"] = ""
			return k8s.Update(ctx, n, client.DryRunAll)
		}).Should(MatchError(ContainSubstring("no Node is changed here")))
		create(ctx, clusterCIDR("c", 8, "10.1.0.0/16", ""))
		for i := range 2 * term.SerialRetryThreshold {
			create(ctx, node(fmt.Sprint("r", i)))
		}
		Eventually(readyOf(ctx, "c")).Should(And(HaveField("Reason", v1alpha1.NodesRefusedReason), HaveField("Message", ContainSubstring("no Node is changed here"))))
		expectRestMeanwhile(ctx, 1, m)
		remove(ctx, refusal)
		cidrsOf(ctx, "tried")
		for i := range 2 * term.SerialRetryThreshold {
			cidrsOf(ctx, fmt.Sprint("r", i))
		}
	})

	It("are not allocated while the ConfigMap cannot be read, and a condition reports that", func(ctx SpecContext) {
		create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "butler-node-cidrs"}, Data: map[string]string{"state": "{"},
		}, clusterCIDR("c", 8, "10.1.0.0/24", ""), node("a"))
		m := nodes(ctx)
		Eventually(readyOf(ctx, "c")).Should(And(HaveField("Reason", v1alpha1.FenceDamagedReason), HaveField("Message", ContainSubstring("unexpected EOF; delete it, and take its finalizer off"))))
		expectRestMeanwhile(ctx, 1, m)
		Expect(read(ctx, "a").Spec.PodCIDRs).To(BeEmpty())
		remove(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "butler-node-cidrs"}})
	})

	It("are set only once by two managers, of which one is killed and one is paused", func(ctx SpecContext) { // K20
		create(ctx, clusterCIDR("c", 4, "10.1.0.0/24", ""))
		first, second := nodes(ctx), nodes(ctx)
		seen := map[string]string{}
		for i := range 40 {
			create(ctx, node(fmt.Sprint("r", i)))
			switch i {
			case 10:
				Expect(first.Signal(syscall.SIGSTOP)).To(Succeed())
			case 20:
				Expect(first.Signal(syscall.SIGCONT)).To(Succeed())
			case 30:
				Expect(second.Kill()).To(Succeed())
			}
			if i >= 8 {
				remove(ctx, node(fmt.Sprint("r", i-8)))
			}
			var all corev1.NodeList
			Expect(k8s.List(ctx, &all, client.MatchingLabels{"spec": w.labelValue})).To(Succeed())
			clear(seen)
			for _, n := range all.Items {
				for _, cidr := range n.Spec.PodCIDRs {
					Expect(seen).NotTo(HaveKey(cidr), "%s and %s", n.Name, seen[cidr])
					Expect(netip.MustParsePrefix(cidr).Bits()).To(Equal(28))
					seen[cidr] = n.Name
				}
			}
		}
		for i := 33; i < 40; i++ {
			cidrsOf(ctx, fmt.Sprint("r", i))
		}
	})
})
