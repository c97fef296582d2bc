package integration

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// load returns the number of claims for a spec that tests the promise under load: n, or a fifth of n with -short.
func load(n int) int {
	if testing.Short() {
		return n / 5
	}
	return n
}

// burst creates claims named c0 to c(n-1), 16 at a time.
func burst(ctx context.Context, ns string, n int) {
	GinkgoHelper()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() error { return k8s.Create(ctx, framework.MakeClaim(ns, fmt.Sprintf("c%d", i)).Pool("p").Obj()) })
	}
	Expect(g.Wait()).To(Succeed())
}

// addresses counts the existing IPAddresses, and expects that no two hold the same address.
func addresses(ctx context.Context, ns string, history *invariants.History) func() int {
	return func() int {
		o := objects(ctx, ns)
		Expect(history.CheckMoment(o)).To(BeEmpty())
		return len(o.Addresses)
	}
}

// waitForAddressCount waits until at least `to` IPAddresses exist.
func waitForAddressCount(ctx context.Context, ns string, history *invariants.History, to int) {
	GinkgoHelper()
	Eventually(addresses(ctx, ns, history)).WithTimeout(framework.LongTimeout).Should(BeNumerically(">=", to))
}

func ready(o pools.Objects) int {
	n := 0
	for i := range o.Claims {
		if readyOf(&o.Claims[i]).Status == metav1.ConditionTrue {
			n++
		}
	}
	return n
}

// expectAtRest waits until the given number of claims is Ready, and no address is lost or held twice.
func expectAtRest(ctx context.Context, ns string, claims int) {
	GinkgoHelper()
	history := &invariants.History{}
	Eventually(func(g Gomega) {
		o := objects(ctx, ns)
		Expect(history.CheckMoment(o)).To(BeEmpty())
		g.Expect(o.Claims).To(HaveLen(claims))
		g.Expect(ready(o)).To(Equal(claims))
		g.Expect(history.CheckAtRest(o)).To(BeEmpty())
	}).WithTimeout(framework.LongTimeout).WithPolling(500e6).Should(Succeed())
}

var _ = Describe("The promise", func() {
	It("holds when the manager dies in the middle of a burst", func(ctx SpecContext) {
		const kills = 5
		n := load(600)
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.2.0.0/20").Obj())
		history := &invariants.History{}
		m := startManager(ctx)
		done := make(chan struct{})
		go func() { defer close(done); defer GinkgoRecover(); burst(ctx, ns, n) }()
		for kill := 1; kill <= kills; kill++ {
			// The share of the work that is done decides when the manager dies, not time.
			waitForAddressCount(ctx, ns, history, kill*n/(kills+2))
			Expect(m.Kill()).To(Succeed())
			m = startManager(ctx)
		}
		<-done
		expectAtRest(ctx, ns, n)
		Expect(m.Stop()).To(Succeed())
	})

	It("holds with two active managers, each killed now and then", func(ctx SpecContext) { // W1-W3
		n := load(2000)
		ns := newNamespace(ctx, nil)
		create(ctx, framework.MakePool("p").Namespace(ns).CIDR("10.3.0.0/20").Obj())
		history := &invariants.History{}
		managers := []*framework.Manager{startManager(ctx), startManager(ctx)}
		done := make(chan struct{})
		go func() { defer close(done); defer GinkgoRecover(); burst(ctx, ns, n) }()
		for kill := range 4 {
			Eventually(addresses(ctx, ns, history)).WithTimeout(framework.LongTimeout).WithPolling(200e6).Should(BeNumerically(">=", (kill+1)*n/8))
			Expect(managers[kill%2].Kill()).To(Succeed())
			managers[kill%2] = startManager(ctx)
		}
		<-done
		expectAtRest(ctx, ns, n)
		// The release of all claims.
		deleteClaims(ctx, ns)
		expectAtRest(ctx, ns, 0)
		for _, m := range managers {
			Expect(m.Stop()).To(Succeed())
		}
	})
})
