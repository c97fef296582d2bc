package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A manager with a watch filter", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("serves the claims with its label and no others", func(ctx SpecContext) { // U33, W7
		m := namespaceManager(ctx, ns, "--watch-filter=mine")
		bare := framework.MakeClaim(ns, "bare").Pool("p").Obj()
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.11.0.0/24").Obj(), bare,
			framework.MakeClaim(ns, "theirs").Pool("p").Label(clusterv1.WatchLabel, "theirs").Obj(),
			framework.MakeClaim(ns, "mine").Pool("p").Label(clusterv1.WatchLabel, "mine").Obj())
		addressOf(ctx, ns, "mine")
		expectUntouched(ctx, ns, "bare")
		expectUntouched(ctx, ns, "theirs")
		modify(ctx, bare, func(c *ipamv1.IPAddressClaim) { c.Labels = map[string]string{clusterv1.WatchLabel: "mine"} })
		addressOf(ctx, ns, "bare")
		expectUntouched(ctx, ns, "theirs")
		Expect(m.Stop()).To(Succeed())
	})

	It("leaves the release of other claims to their manager", func(ctx SpecContext) { // W7
		mine := namespaceManager(ctx, ns, "--watch-filter=mine")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.11.1.0/24").Obj(),
			framework.MakeClaim(ns, "mine").Pool("p").Label(clusterv1.WatchLabel, "mine").Obj(),
			framework.MakeClaim(ns, "theirs").Pool("p").Label(clusterv1.WatchLabel, "theirs").Obj())
		addressOf(ctx, ns, "mine")
		other := namespaceManager(ctx, ns, "--watch-filter=theirs")
		addressOf(ctx, ns, "theirs")
		Expect(other.Stop()).To(Succeed())
		deleteClaim(ctx, ns, "theirs")
		deleteClaim(ctx, ns, "mine")
		expectGone(ctx, framework.MakeClaim(ns, "mine").Obj())
		Expect(getClaim(ctx, ns, "theirs").Finalizers).NotTo(BeEmpty())
		other = namespaceManager(ctx, ns, "--watch-filter=theirs")
		expectAtRest(ctx, ns, 0)
		Expect(other.Stop()).To(Succeed())
		Expect(mine.Stop()).To(Succeed())
	})

	It("serves the blocks that it requests for its Clusters", func(ctx SpecContext) { // W7
		config, mine, other := provider(ns, "config", "p"), tenant(ns, "mine", "config"), tenant(ns, "theirs", "config")
		mine.Labels[clusterv1.WatchLabel], other.Labels[clusterv1.WatchLabel] = "mine", "theirs"
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.11.3.0/24").Obj(), config, mine, other)
		m := namespaceManager(ctx, ns, "--watch-filter=mine")
		expectNetwork(ctx, mine, metav1.ConditionTrue, v1alpha1.ReadyReason)
		blocks := allocationsIn(ctx, ns)
		Expect(blocks).To(HaveExactElements(HaveField("Labels", HaveKeyWithValue(clusterv1.WatchLabel, "mine"))))
		Expect(k8s.Get(ctx, keyOf(other), other)).To(Succeed())
		Expect(other.Status.Conditions).To(BeEmpty())
		Expect(k8s.Delete(ctx, mine)).To(Succeed())
		expectGone(ctx, mine)
		Expect(allocationsIn(ctx, ns)).To(BeEmpty())
		Expect(m.Stop()).To(Succeed())
	})

	It("sees IPAddresses that have no label", func(ctx SpecContext) { // W7: a filter over all kinds would hide them
		m := namespaceManager(ctx, ns, "--watch-filter=mine")
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.11.2.0/24").Obj(),
			framework.MakeClaim(ns, "mine").Pool("p").Label(clusterv1.WatchLabel, "mine").Obj())
		before := addressOf(ctx, ns, "mine")
		modify(ctx, before, func(a *ipamv1.IPAddress) { a.Labels = nil })
		force(ctx, before.DeepCopy())
		after := recreated(ctx, before)
		Expect(after.Spec).To(Equal(before.Spec))
		Expect(m.Stop()).To(Succeed())
	})
})
