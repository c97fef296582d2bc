package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A manager of one namespace", func() {
	It("serves that namespace, and reports why it serves no global pool", func(ctx SpecContext) { // W8, U33
		ns, other := newNamespace(ctx, nil), newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakeGlobalPool(ns).CIDR("10.23.0.0/24").Obj(),
			framework.MakePool("p").Namespace(other).CIDR("10.23.1.0/24").Obj(), framework.MakeClaim(other, "theirs").Pool("p").Obj(),
			framework.MakePool("p").Namespace(ns).CIDR("10.23.2.0/24").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj(),
			framework.MakeClaim(ns, "global").GlobalPool(ns).Obj())
		addressOf(ctx, ns, "c")
		Expect(refusalOf(ctx, ns, "global", "PoolNotReady")).To(ContainSubstring("without --namespace"))
		expectUntouched(ctx, other, "theirs")
		expectRestMeanwhile(ctx, 1, m)
		// A manager of all namespaces serves the global pool.
		all := startManager(ctx)
		addressOf(ctx, ns, "global")
		addressOf(ctx, other, "theirs")
		// The claim of the global pool stays: only the manager that serves that pool releases its address.
		Expect(all.Stop()).To(Succeed())
		deleteClaim(ctx, ns, "global")
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		Expect(getClaim(ctx, ns, "global").Finalizers).NotTo(BeEmpty())
		Expect(m.Stop()).To(Succeed())
	})

	It("becomes ready although global pools exist, which it does not serve", func(ctx SpecContext) { // W8
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakeGlobalPool(ns).CIDR("10.23.3.0/24").Obj(),
			framework.MakePool("p").Namespace(ns).CIDR("10.23.4.0/24").Obj(), framework.MakeClaim(ns, "c").Pool("p").Obj())
		m := namespaceManager(ctx, ns)
		addressOf(ctx, ns, "c")
		Expect(m.Stop()).To(Succeed())
	})
})
