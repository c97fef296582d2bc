package consumers

import (
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A few machines at a time are created before as many old ones are deleted, as in a MachineDeployment with maxSurge.
var _ = Describe("A rolling upgrade of 50 machines", func() {
	const machines, surge = 50, 3

	upgrade := func(ctx SpecContext, c *consumer, pool *framework.PoolBuilder, ns string) {
		create(ctx, pool.Obj())
		watch := record(ctx, ns)
		old := make(chan *machine, machines)
		each := func(work func(i int)) {
			var running sync.WaitGroup
			turn := make(chan int, machines)
			for i := range machines {
				turn <- i
			}
			close(turn)
			for range surge {
				running.Go(func() {
					defer GinkgoRecover()
					for i := range turn {
						work(i)
					}
				})
			}
			running.Wait()
		}
		each(func(i int) {
			m := c.newMachine(ctx, ns, fmt.Sprintf("old-%02d", i), "p")
			m.waitUntilBound(ctx)
			old <- m
		})
		expectAtRest(ctx, ns, machines)
		each(func(i int) {
			// If no address is free the new machine waits for one that is cooling down or being released.
			c.newMachine(ctx, ns, fmt.Sprintf("new-%02d", i), "p").waitUntilBound(ctx)
			(<-old).destroy(ctx) // without a wait until its claim is gone
		})
		expectAtRest(ctx, ns, machines)
		Expect(watch.wrong(ctx, ns)).To(BeEmpty())
	}

	It("needs no more addresses than machines exist at a time", func(ctx SpecContext) { // C23, U5: by the garbage collector
		ns := newNamespace(ctx)
		// The pool has exactly as many addresses as there are machines at a time.
		upgrade(ctx, named("CAPV"), makePool(ns, "p").Addresses("10.30.0.1-10.30.0.53").Prefix(24).Gateway("10.30.0.254"), ns)
	})

	It("waits for addresses that are cooling", func(ctx SpecContext) { // W15
		ns := newNamespace(ctx)
		upgrade(ctx, named("CAPM3"), makePool(ns, "p").Addresses("10.31.0.1-10.31.0.65").Prefix(24).Gateway("10.31.0.254").ReuseGracePeriod(1), ns)
	})
})
