package integration

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("The promise", func() {
	It("holds when the API server crashes in the middle of a burst", func(ctx SpecContext) { // L2
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.18.0.0/20").Obj())
		history := &invariants.History{}
		m := namespaceManager(ctx, ns, "--audit-interval=1s")
		claims := startFlood(ctx, ns)
		waitForAddressCount(ctx, ns, history, 75)
		Expect(cp.KillAPIServer()).To(Succeed())
		Expect(cp.StartAPIServer()).To(Succeed())
		waitForAddressCount(ctx, ns, history, len(objects(ctx, ns).Addresses)+2*flooders)
		expectAtRest(ctx, ns, claims.end())
		Expect(history.CheckAtRest(objects(ctx, ns))).To(BeEmpty())
		expectCleanAudit(ctx, m)
		Expect(m.Stop()).To(Succeed())
	})
})
