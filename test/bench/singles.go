package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureSingles creates claims one after the other and waits for each. Before each, a bare client does the same four
// writes, one after the other and with the same watches open: on a shared machine only alternating measurements can
// be compared.
func (c *clients) measureSingles(ctx context.Context, foreign *v1alpha1.NetworkPool, n, allocated int, t *table) error {
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
	var bare, took []time.Duration
	for i := range n {
		four, err := c.timeBareClaim(ctx, foreign, fmt.Sprintf("write-%04d", i), i)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("single-%04d", i)
		if err := c.createClaim(ctx, name); err != nil {
			return err
		}
		created := time.Now()
		if err := c.waitForClaim(ctx, name); err != nil {
			return err
		}
		bare, took = append(bare, four), append(took, time.Since(created))
	}
	foreign.Status.Allocator.InFlight = nil // else the manager would find pending work
	if err := c.Status().Update(ctx, foreign); err != nil {
		return err
	}
	slices.Sort(bare)
	slices.Sort(took)
	p50, worst, four := took[n/2], took[n-1], bare[n/2]
	t.add("the four writes of a claim, bare client, p50", fmt.Sprintf("%.1f ms", milliseconds(four)), "alternating with single claims")
	t.add(fmt.Sprintf("one claim at a time, %d allocated, p50", allocated), fmt.Sprintf("%.1f ms", milliseconds(p50)),
		fmt.Sprintf("%.1f API writes of %.1f ms", 4*float64(p50)/float64(four), milliseconds(four)/4))
	t.add("one claim at a time, slowest", fmt.Sprintf("%.1f ms", milliseconds(worst)), fmt.Sprintf("of %d", n))
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// createForeignPool creates a pool whose status is like that of the measured pool, but which the manager does not
// reconcile: it has another holder, and no pending work.
func (c *clients) createForeignPool(ctx context.Context) (*v1alpha1.NetworkPool, error) {
	pool := framework.MakePool("foreign").Namespace(namespace).CIDR("10.1.0.0/16").Obj()
	if err := c.Create(ctx, pool); err != nil {
		return nil, err
	}
	err := wait.PollUntilContextTimeout(ctx, metricsPeriod, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool)
		return len(pool.Finalizers) > 0 && meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ReadyCondition), err
	})
	if err != nil {
		return nil, fmt.Errorf("the manager did not take the pool %s: %w", pool.Name, err)
	}
	return pool, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return err
		}
		pool.Status.Allocator.Holder = reporter
		pool.Status.Allocator.Term++
		return c.Status().Update(ctx, pool)
	})
}

// timeBareClaim creates a claim of a pool without a provider, and returns the time of the four writes that a manager
// does for one: the grant in the pool's status, and the three on the claim and its address.
func (c *clients) timeBareClaim(ctx context.Context, pool *v1alpha1.NetworkPool, name string, i int) (time.Duration, error) {
	claim := framework.MakeClaim(namespace, name).PoolRef("bench.example.com", "None", "none").Obj()
	if err := c.Create(ctx, claim); err != nil {
		return 0, err
	}
	start := time.Now()
	pool.ManagedFields = nil
	pool.Status.AllocatedIPs++
	pool.Status.Allocator.InFlight = []v1alpha1.Grant{{
		Kind: "IPAddressClaim", Namespace: namespace, Name: name, UID: string(claim.UID), First: "10.1.0.1", Last: "10.1.0.1",
	}}
	if err := c.Status().Update(ctx, pool); err != nil {
		return 0, err
	}
	err := c.writeClaim(ctx, name, benchPool, i)
	return time.Since(start), err
}
