package integration

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("The allocator of kube-controller-manager", Ordered, func() {
	w := newNodeWorld()

	// allocates starts kube-controller-manager with --allocate-node-cidrs.
	allocates := func(clusterCIDR string, length int) *framework.NodeIPAM {
		GinkgoHelper()
		kcm, err := cp.StartNodeIPAM(clusterCIDR, length)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(kcm.Kill()).To(Succeed()) })
		return kcm
	}
	// served waits until all Nodes of the spec have CIDRs, and returns the Nodes.
	served := func(ctx context.Context) (out []corev1.Node) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			var all corev1.NodeList
			g.Expect(k8s.List(ctx, &all, client.MatchingLabels{"spec": w.labelValue})).To(Succeed())
			g.Expect(all.Items).To(HaveEach(HaveField("Spec.PodCIDRs", HaveLen(1))))
			out = all.Items
		}).Should(Succeed())
		return out
	}
	isOurs := func(n *corev1.Node) bool { return n.Annotations[v1alpha1.ClusterCIDRAnnotation] != "" }
	// expectReported expects an event on each of two Nodes with overlapping CIDRs, and that this provider has not set
	// both.
	expectReported := func(ctx context.Context, nodes []corev1.Node) {
		GinkgoHelper()
		for i := range nodes {
			for j := range nodes[:i] {
				a, b := &nodes[i], &nodes[j]
				if !netip.MustParsePrefix(a.Spec.PodCIDR).Overlaps(netip.MustParsePrefix(b.Spec.PodCIDR)) {
					continue
				}
				Expect(isOurs(a) && isOurs(b)).To(BeFalse(), "%s and %s were both given %s", a.Name, b.Name, a.Spec.PodCIDR)
				for _, n := range []*corev1.Node{a, b} {
					Eventually(w.eventsOf(ctx, n.Name[len(w.labelValue)+1:], "PodCIDRConflict")).ShouldNot(BeEmpty())
				}
			}
		}
	}

	It("is distinguished by the CIDRs that it sets from a range of its own", func(ctx SpecContext) { // K28, K34
		create(ctx, w.clusterCIDR("c", 8, "10.1.0.0/21", "", "both"), w.node("theirs"))
		kcm := allocates("10.200.0.0/16", 24)
		w.skipAdoptionWait(ctx)
		w.cidrsOf(ctx, "theirs") // an existing CIDR outside of its range at its start would end kube-controller-manager
		w.nodes(ctx)
		Expect(kcm.Signal(syscall.SIGSTOP)).To(Succeed())
		create(ctx, w.node("ours", "both"))
		Expect(w.cidrsOf(ctx, "ours")).To(ConsistOf(HavePrefix("10.1.")))
		Expect(kcm.Signal(syscall.SIGCONT)).To(Succeed())
		for i := range 6 {
			create(ctx, w.node(fmt.Sprint("both", i), "both"))
		}
		all := served(ctx)
		expectReported(ctx, all)
		Expect(w.read(ctx, "theirs").Spec.PodCIDR).To(HavePrefix("10.200."))
		taken := map[string]bool{}
		for i := range all {
			n := &all[i]
			Expect(taken).NotTo(HaveKey(n.Spec.PodCIDR))
			taken[n.Spec.PodCIDR] = true
			if isOurs(n) {
				Expect(n.Spec.PodCIDR).To(HavePrefix("10.1."))
				continue
			}
			Expect(n.Spec.PodCIDR).To(HavePrefix("10.200."))
			Eventually(w.eventsOf(ctx, n.Name[len(w.labelValue)+1:], "PodCIDRForeign")).Should(ConsistOf(ContainSubstring("it stays")))
		}
	})

	It("does not make the manager set a CIDR twice while it uses the same range", func(ctx SpecContext) { // K36
		create(ctx, w.clusterCIDR("c", 4, "10.1.0.0/24", ""))
		w.nodes(ctx)
		kcm := allocates("10.1.0.0/24", 28)
		for i := range 30 {
			create(ctx, w.node(fmt.Sprint("n", i)))
			switch i % 10 {
			case 3:
				Expect(kcm.Signal(syscall.SIGSTOP)).To(Succeed())
			case 5: // set by this provider, unless kube-controller-manager was first
				w.cidrsOf(ctx, fmt.Sprint("n", i))
				Expect(kcm.Signal(syscall.SIGCONT)).To(Succeed())
			}
			if i >= 8 {
				w.remove(ctx, w.node(fmt.Sprint("n", i-8)))
			}
		}
		expectReported(ctx, served(ctx))
	})

	It("takes over from the manager and the manager from it, and neither changes existing CIDRs", func(ctx SpecContext) { // K47, K48
		c := w.clusterCIDR("c", 8, "10.1.0.0/22", "")
		create(ctx, c, w.node("a"), w.node("b"))
		m := w.nodes(ctx)
		w.cidrsOf(ctx, "a")
		w.cidrsOf(ctx, "b")
		Eventually(w.readyOf(ctx, "c")).Should(HaveField("Message", "2 of 4 node CIDRs are free"))
		Expect(m.Stop()).To(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(c), c)).To(Succeed())
		a, b := w.read(ctx, "a"), w.read(ctx, "b")

		By("allocating with kube-controller-manager")
		kcm := allocates("10.1.0.0/22", 24)
		create(ctx, w.node("c"))
		cidrs := w.cidrsOf(ctx, "c")
		Expect(cidrs).NotTo(Or(Equal(a.Spec.PodCIDRs), Equal(b.Spec.PodCIDRs)))
		Expect(kcm.Kill()).To(Succeed())
		untouched := func() {
			GinkgoHelper()
			Expect(w.read(ctx, "a")).To(Equal(a))
			Expect(w.read(ctx, "b")).To(Equal(b))
		}
		untouched()
		still := &v1alpha1.ClusterCIDR{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(c), still)).To(Succeed())
		Expect(still).To(Equal(c))

		By("allocating with the manager again")
		again := w.nodes(ctx)
		create(ctx, w.node("d"))
		Expect(w.cidrsOf(ctx, "d")).NotTo(Or(Equal(cidrs), Equal(a.Spec.PodCIDRs), Equal(b.Spec.PodCIDRs)))
		untouched()
		Expect(w.read(ctx, "c").Spec.PodCIDRs).To(Equal(cidrs))

		By("removing the ClusterCIDR by hand when no manager will run again")
		Expect(again.Stop()).To(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(c), c)).To(Succeed())
		w.remove(ctx, c)
		Expect(k8s.Patch(ctx, c, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		Expect(w.goneOf(ctx, c)()).To(BeTrue())
		untouched()
	})
})
