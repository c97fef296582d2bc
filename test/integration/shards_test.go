package integration

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// inShard reports whether a pool is in shard i of n.
func inShard(i, n int, ns, pool string) bool {
	GinkgoHelper()
	s, err := shard.Parse(fmt.Sprintf("%d/%d", i, n))
	Expect(err).NotTo(HaveOccurred())
	return s.Has(v1alpha1.NetworkPoolKind, ns, pool)
}

// poolOf returns a name for a pool in shard i of n.
func poolOf(i, n int, ns string) string {
	GinkgoHelper()
	for k := 0; ; k++ {
		if name := fmt.Sprintf("pool-%d", k); inShard(i, n, ns, name) {
			return name
		}
	}
}

// startShards starts a manager for each of n shards.
func startShards(ctx context.Context, ns string, n int) []*framework.Manager {
	GinkgoHelper()
	out := make([]*framework.Manager, n)
	for i := range out {
		out[i] = startShard(ctx, ns, i+1, n)
	}
	return out
}

func startShard(ctx context.Context, ns string, i, n int) *framework.Manager {
	GinkgoHelper()
	return namespaceManager(ctx, ns, fmt.Sprintf("--shard=%d/%d", i, n), shortGrace)
}

// churn creates claims c0 to c(n-1) in pools p0, p1 and so on, 16 at a time, and deletes every third again at once.
func churn(ctx context.Context, ns string, pools, n int) {
	GinkgoHelper()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error {
			claim := framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool(fmt.Sprintf("p%d", i%pools)).Obj()
			if err := k8s.Create(ctx, claim); err != nil || i%3 != 2 {
				return err
			}
			return k8s.Delete(ctx, claim)
		})
	}
	Expect(g.Wait()).To(Succeed())
}

var _ = Describe("Managers that share the pools by --shard", func() {
	It("keep the promise while their number grows and shrinks and some are killed", func(ctx SpecContext) {
		const pools = 6
		n := load(1200)
		ns := newNamespace(ctx, nil)
		for i := range pools {
			create(ctx, framework.MakePool(fmt.Sprintf("p%d", i)).Namespace(ns).CIDR(fmt.Sprintf("10.140.%d.0/24", i)).Obj())
		}
		history := &invariants.History{}
		done := make(chan struct{})
		go func() { defer close(done); defer GinkgoRecover(); churn(ctx, ns, pools, n) }()

		// As in a rollout: the new managers start before the old ones end. The share of the work that is done decides
		// when.
		managers := startShards(ctx, ns, 1)
		for step, shards := range []int{2, 3, 2} {
			waitForAddressCount(ctx, ns, history, (2*step+1)*n/12)
			old := managers
			managers = startShards(ctx, ns, shards)
			waitForAddressCount(ctx, ns, history, (2*step+2)*n/12)
			Expect(old[0].Kill()).To(Succeed())
			for _, m := range old[1:] {
				Expect(m.Stop()).To(Succeed())
			}
			Expect(managers[shards-1].Kill()).To(Succeed())
			managers[shards-1] = startShard(ctx, ns, shards, shards)
		}
		<-done
		expectAtRest(ctx, ns, n-n/3)

		By("expecting takeovers only of pools of their own shard")
		for i, m := range managers {
			takeovers, err := m.ReadCounter(ctx, "butler_ipam_takeovers_total")
			Expect(err).NotTo(HaveOccurred())
			for p := range pools {
				name := fmt.Sprintf("p%d", p)
				label := fmt.Sprintf(`{kind=%q,namespace=%q,pool=%q}`, v1alpha1.NetworkPoolKind, ns, name)
				if inShard(i+1, len(managers), ns, name) {
					Expect(takeovers).To(HaveKey(label))
				} else {
					Expect(takeovers).NotTo(HaveKey(label))
				}
			}
			Expect(m.Stop()).To(Succeed())
		}
	})

	It("do not serve the pools of other shards, and grant none of their addresses", func(ctx SpecContext) { // R11
		ns := newNamespace(ctx, nil)
		mine, otherPool := poolOf(1, 2, ns), poolOf(2, 2, ns)
		createPair(ctx,
			framework.MakePool(otherPool).Namespace(ns).CIDR("10.141.0.0/28").Obj(), framework.MakePool(mine).Namespace(ns).CIDR("10.141.0.0/29").Obj())
		m := startShard(ctx, ns, 1, 2)
		create(ctx, framework.MakeClaim(ns, "theirs").Pool(otherPool).Obj(), framework.MakeClaim(ns, "mine").Pool(mine).Obj())
		Expect(refusalOf(ctx, ns, "mine", "PoolNotReady")).To(ContainSubstring(otherPool))
		younger := framework.MakePool(mine).Namespace(ns).Obj()
		expectCondition(ctx, younger, v1alpha1.OverlapCondition, metav1.ConditionTrue, v1alpha1.OverlapReason)
		modify(ctx, younger, func(p *v1alpha1.NetworkPool) { p.Spec.CIDR = "10.141.1.0/29" })
		addressOf(ctx, ns, "mine")
		expectUntouched(ctx, ns, "theirs")

		other := startShard(ctx, ns, 2, 2)
		addressOf(ctx, ns, "theirs")
		Expect(m.Stop()).To(Succeed())
		Expect(other.Stop()).To(Succeed())
	})
})
