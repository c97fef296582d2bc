package integration

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// stubbornBurst is burst against an API server that may be away for a while.
func stubbornBurst(ctx context.Context, ns string, n int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
				err := k8s.Create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("p").Obj())
				return err == nil || apierrors.IsAlreadyExists(err), nil
			})
		})
	}
	return g.Wait()
}

var _ = Describe("The promise", func() {
	It("holds when the API server crashes in the middle of a burst", func(ctx SpecContext) { // L2
		const n = 300
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.18.0.0/22").Obj())
		history := &invariants.History{}
		m := namespaceManager(ctx, ns, "--audit-interval=1s")
		done := make(chan error, 1)
		go func() { done <- stubbornBurst(ctx, ns, n) }()
		Eventually(func() int {
			o := objects(ctx, ns)
			Expect(history.Moment(o)).To(BeEmpty())
			return len(o.Addresses)
		}).Should(BeNumerically(">=", n/4))
		Expect(cp.KillAPIServer()).To(Succeed())
		Expect(cp.StartAPIServer()).To(Succeed())
		before := objects(ctx, ns)
		Expect(len(before.Addresses)).To(BeNumerically("<", n), "the burst was over before the restart")
		Expect(history.Moment(before)).To(BeEmpty())
		Eventually(done).Should(Receive(BeNil()))
		expectAtRest(ctx, ns, n)
		Expect(history.AtRest(objects(ctx, ns))).To(BeEmpty())
		expectCleanAudit(ctx, m)
		Expect(m.Stop()).To(Succeed())
	})
})
