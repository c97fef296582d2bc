package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// mixed is a load of claims and allocations; three in ten of them are replaced by others.
type mixed struct {
	ns string
	n  int
}

// size returns a size of 1 to 64 addresses; the sizes are distributed evenly.
func (mixed) size(i int) int32 { return int32(1 + i*37%64) }

func (mixed) replaced(i int) bool { return i%10 < 3 }

func (m mixed) block(name string, i int) *v1alpha1.IPAllocation {
	return framework.MakeAllocation(m.ns, fmt.Sprintf("%s%d", name, i)).Count(m.size(i)).Obj()
}

func (m mixed) claim(name string, i int) client.Object {
	return framework.MakeClaim(m.ns, fmt.Sprintf("%s%d", name, i)).Pool("p").Obj()
}

// run creates n of each, then replaces some, many at a time. It does not wait until they are served.
func (m mixed) run(ctx context.Context) error {
	for _, step := range []func(context.Context, int) error{
		func(ctx context.Context, i int) error {
			if err := k8s.Create(ctx, m.block("block", i)); err != nil {
				return err
			}
			return k8s.Create(ctx, m.claim("claim", i))
		},
		func(ctx context.Context, i int) error {
			if !m.replaced(i) {
				return nil
			}
			for _, o := range []client.Object{m.block("block", i), m.claim("claim", i)} {
				if err := k8s.Delete(ctx, o); err != nil {
					return err
				}
			}
			if err := k8s.Create(ctx, m.claim("again", i)); err != nil {
				return err
			}
			return k8s.Create(ctx, m.block("again", i+1))
		},
	} {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(16)
		for i := range m.n {
			g.Go(func() error { return step(ctx, i) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

var _ = Describe("The promise", func() {
	It("holds for claims and allocations that come and go, with two active managers, each killed now and then", func(ctx SpecContext) {
		emptyCluster(ctx)
		load := mixed{ns: newNamespace(ctx, nil), n: load(1000)}
		// Without its Cluster an allocation would be an orphan.
		create(ctx, framework.MakePool("p").Namespace(load.ns).CIDR("10.121.0.0/16").Obj(), makeCluster(load.ns, "tenant", false))
		history := &invariants.History{}
		managers := []*framework.Manager{startManager(ctx, shortGrace), startManager(ctx, shortGrace)}
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer GinkgoRecover()
			Expect(load.run(ctx)).To(Succeed())
		}()
		// The number of served objects, including replaced ones, decides when a manager is killed. No name is used
		// twice here.
		served := map[string]struct{}{}
		for kill := range 6 {
			Eventually(func() int {
				o := objects(ctx, load.ns)
				Expect(history.CheckMoment(o)).To(BeEmpty())
				for i := range o.Addresses {
					served["IPAddress/"+o.Addresses[i].Name] = struct{}{}
				}
				for i := range o.Allocations {
					if o.Allocations[i].Status.Phase == v1alpha1.AllocationAllocated {
						served[o.Allocations[i].Name] = struct{}{}
					}
				}
				return len(served)
			}).WithTimeout(framework.LongTimeout).WithPolling(500e6).Should(BeNumerically(">=", (kill+1)*2*load.n/6))
			Expect(managers[kill%2].Kill()).To(Succeed())
			managers[kill%2] = startManager(ctx, shortGrace)
		}
		<-done
		expectAtRest(ctx, load.ns, load.n)
		By("releasing the last of the allocations that were deleted")
		Eventually(func() int { return len(objects(ctx, load.ns).Allocations) }).WithTimeout(framework.LongTimeout).WithPolling(500e6).Should(Equal(load.n))
		for _, block := range objects(ctx, load.ns).Allocations {
			Expect(block.Status.AllocatedCount).To(Equal(int64(*block.Spec.Count)), block.Name)
		}
		for _, m := range managers {
			Expect(m.Stop()).To(Succeed())
		}
	})
})
