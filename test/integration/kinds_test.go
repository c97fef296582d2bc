package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("A claim whose poolRef names a kind that our group does not have", func() {
	It("has a condition that names the right kind, and no finalizer", func(ctx SpecContext) { // C2
		ns := newNamespace(ctx, nil)
		m := namespaceManager(ctx, ns)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.126.0.0/28").Obj(),
			framework.MakeClaim(ns, "c").PoolRef(v1alpha1.GroupVersion.Group, "Networkpool", "p").Obj(),
			framework.MakeClaim(ns, "foreign").PoolRef("example.com", "NetworkPool", "p").Obj())
		Expect(refusalOf(ctx, ns, "c", "PoolNotReady")).To(ContainSubstring("names kind Networkpool, which the group butler.butlerlabs.dev does not have; poolRef is immutable, so create the claim again with kind NetworkPool"))
		Expect(getClaim(ctx, ns, "c").Finalizers).To(BeEmpty())
		expectUntouched(ctx, ns, "foreign")
		deleteClaim(ctx, ns, "c")
		expectGone(ctx, framework.MakeClaim(ns, "c").Obj())
		create(ctx, framework.MakeClaim(ns, "c").Pool("p").Obj())
		addressOf(ctx, ns, "c")
		Expect(m.Stop()).To(Succeed())
	})
})
