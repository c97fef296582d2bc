package integration

import (
	"context"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// expectCleanAudit waits until a manager has audited twice from now on, and expects no findings. The manager must
// audit every second.
func expectCleanAudit(ctx context.Context, m *framework.Manager) {
	GinkgoHelper()
	last := 0.0
	for range 3 { // the first may have begun before
		Eventually(func(g Gomega) {
			at, err := m.ReadMetric(ctx, "butler_ipam_last_audit_timestamp_seconds")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(at).To(BeNumerically(">", last))
			last = at
		}).Should(Succeed())
	}
	for _, name := range []string{"duplicate_addresses", "orphaned_addresses", "drift"} {
		Expect(m.ReadMetric(ctx, "butler_ipam_audit_"+name)).To(BeZero(), name)
	}
}

var _ = Describe("The promise", func() {
	It("holds when a frozen manager wakes up after another has taken over", func(ctx SpecContext) { // W3, L2
		ns := newNamespace(ctx, nil)
		pool := framework.MakePool("p").Namespace(ns).CIDR("10.19.0.0/20").Obj()
		create(ctx, pool)
		history := &invariants.History{}
		first := namespaceManager(ctx, ns, "--audit-interval=1s")
		claims := startFlood(ctx, ns)
		waitForAddressCount(ctx, ns, history, 60)
		Expect(first.Signal(syscall.SIGSTOP)).To(Succeed())
		frozen := statusOf(ctx, pool).Allocator
		n := len(objects(ctx, ns).Addresses)
		second := namespaceManager(ctx, ns, "--audit-interval=1s")
		// Grants that are in flight when the manager freezes may land without another manager.
		waitForAddressCount(ctx, ns, history, n+2*flooders)
		Expect(first.Signal(syscall.SIGCONT)).To(Succeed())
		waitForAddressCount(ctx, ns, history, n+4*flooders)
		expectAtRest(ctx, ns, claims.end())
		Expect(history.CheckAtRest(objects(ctx, ns))).To(BeEmpty())
		state := statusOf(ctx, pool).Allocator
		Expect(state.Term).To(BeNumerically(">", frozen.Term))
		for _, m := range []*framework.Manager{first, second} {
			expectCleanAudit(ctx, m)
		}
		// The manager that was frozen serves again when it is the only one.
		Expect(second.Stop()).To(Succeed())
		deleteClaims(ctx, ns)
		expectAtRest(ctx, ns, 0)
		expectCleanAudit(ctx, first)
		Expect(first.Stop()).To(Succeed())
	})
})
