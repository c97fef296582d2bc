package integration

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var _ = Describe("A ClusterCIDR from flags", Ordered, func() {
	w := newNodeWorld()

	// fromFlags returns the ClusterCIDRs that were created from flags: those that are not in deletion, and those that
	// are.
	fromFlags := func(ctx context.Context) (there, going []v1alpha1.ClusterCIDR) {
		GinkgoHelper()
		var all v1alpha1.ClusterCIDRList
		Expect(k8s.List(ctx, &all)).To(Succeed())
		for _, c := range all.Items {
			switch {
			case !strings.HasPrefix(c.Name, "created-from-flags-"):
			case c.DeletionTimestamp != nil:
				going = append(going, c)
			default:
				there = append(there, c)
			}
		}
		return there, going
	}
	// only waits until exactly one such ClusterCIDR exists, with the given range, and returns it.
	only := func(ctx context.Context, ipv4 string) v1alpha1.ClusterCIDR {
		GinkgoHelper()
		var out v1alpha1.ClusterCIDR
		Eventually(func(g Gomega) {
			there, _ := fromFlags(ctx)
			g.Expect(there).To(HaveLen(1))
			g.Expect(there[0].Spec.IPv4).To(Equal(ipv4))
			out = there[0]
		}).Should(Succeed())
		return out
	}

	It("serves Nodes, and follows the flags of the next manager when no Node uses it", func(ctx SpecContext) { // K24, K25, K26
		first := w.nodes(ctx, "--cluster-cidr=10.1.0.0/22,fd00:1::/48")
		create(ctx, w.node("a"))
		Expect(w.cidrsOf(ctx, "a")).To(Equal([]string{"10.1.0.0/24", "fd00:1::/64"}))
		old := only(ctx, "10.1.0.0/22")
		Expect(old.Name).To(MatchRegexp("^created-from-flags-[0-9a-f]{8}$"))
		Expect(first.Kill()).To(Succeed())

		By("leaving it unchanged with the same flags, and with none")
		for _, args := range [][]string{{"--cluster-cidr=10.1.0.0/22,fd00:1::/48"}, nil} {
			again := w.nodes(ctx, args...)
			next := w.node("n" + strings.Repeat("x", len(args)))
			create(ctx, next)
			w.cidrsOf(ctx, strings.TrimPrefix(next.Name, w.labelValue+"-"))
			Expect(only(ctx, "10.1.0.0/22").UID).To(Equal(old.UID))
			w.remove(ctx, next)
			Expect(again.Kill()).To(Succeed())
		}

		By("replacing it with other flags")
		w.nodes(ctx, "--cluster-cidr=10.2.0.0/22", "--node-cidr-mask-size=25")
		only(ctx, "10.2.0.0/22")
		Eventually(func(g Gomega) { // until its deletion is observed, it is still in use for new Nodes
			g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&old), &old)).To(Succeed())
			g.Expect(old.Status.Conditions).To(ContainElement(HaveField("Reason", v1alpha1.DeletingReason)))
		}).Should(Succeed())
		create(ctx, w.node("b"))
		Expect(w.cidrsOf(ctx, "b")).To(Equal([]string{"10.2.0.0/25"}))
		_, going := fromFlags(ctx)
		Expect(going).To(ConsistOf(HaveField("UID", old.UID)), "Node a uses it")
		w.remove(ctx, w.node("a"))
		Eventually(w.goneOf(ctx, &old)).Should(BeTrue())
		Expect(w.read(ctx, "b").Spec.PodCIDRs).To(Equal([]string{"10.2.0.0/25"}))
	})

	It("is that of the manager that took over last, and the managers do not replace it in turns", func(ctx SpecContext) { // K25
		w.nodes(ctx, "--cluster-cidr=10.1.0.0/22")
		first := only(ctx, "10.1.0.0/22")
		w.nodes(ctx, "--cluster-cidr=10.2.0.0/22") // the end of the spec checks that both managers become idle
		uid := only(ctx, "10.2.0.0/22").UID
		Eventually(w.goneOf(ctx, &first)).Should(BeTrue())
		for _, name := range []string{"a", "b", "c"} {
			create(ctx, w.node(name))
			Expect(w.cidrsOf(ctx, name)).To(ConsistOf(HavePrefix("10.2.")))
		}
		Expect(only(ctx, "10.2.0.0/22").UID).To(Equal(uid))
	})

	It("is created again under another name while Nodes use the deleted one", func(ctx SpecContext) { // K26
		m := w.nodes(ctx, "--cluster-cidr=10.1.0.0/24", "--node-cidr-mask-size=25")
		create(ctx, w.node("a"))
		had := w.cidrsOf(ctx, "a")
		old := only(ctx, "10.1.0.0/24")
		Expect(m.Kill()).To(Succeed())
		w.remove(ctx, &old)
		w.nodes(ctx, "--cluster-cidr=10.1.0.0/24", "--node-cidr-mask-size=25")
		Expect(only(ctx, "10.1.0.0/24").Name).NotTo(Equal(old.Name))
		create(ctx, w.node("b"))
		Expect(w.cidrsOf(ctx, "b")).NotTo(Equal(had))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(&old), &old)).To(Succeed())
		w.remove(ctx, w.node("a"))
		Eventually(w.goneOf(ctx, &old)).Should(BeTrue())
	})
})
