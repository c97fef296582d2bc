package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A manager with a watch filter", func() {
	var ns string

	BeforeEach(func(ctx SpecContext) { ns = newNamespace(ctx, nil) })

	It("serves the claims with its label and no others", func(ctx SpecContext) { // peers 33, W7
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
		theirs := namespaceManager(ctx, ns, "--watch-filter=theirs")
		addressOf(ctx, ns, "theirs")
		Expect(theirs.Stop()).To(Succeed())
		deleteClaim(ctx, ns, "theirs")
		deleteClaim(ctx, ns, "mine")
		expectGone(ctx, framework.MakeClaim(ns, "mine").Obj())
		Expect(getClaim(ctx, ns, "theirs").Finalizers).NotTo(BeEmpty())
		theirs = namespaceManager(ctx, ns, "--watch-filter=theirs")
		expectAtRest(ctx, ns, 0)
		Expect(theirs.Stop()).To(Succeed())
		Expect(mine.Stop()).To(Succeed())
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
