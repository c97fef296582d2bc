package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	parentPool = "trunk"
	// carvedRounds is how often a plain and a carved pool alternate, carvedBurst the number of claims in each burst.
	carvedRounds, carvedBurst = 4, 500
)

// measureCarved adds the cost of a pool that takes its addresses from another pool: claims that make a pool grow,
// compared with claims of a plain pool; bursts that alternate with a plain pool; and many pools at rest.
func measureCarved(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.watchClaims(ctx); err != nil {
				return err
			}
			for _, pool := range []*framework.PoolBuilder{
				framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16"),
				framework.MakePool(parentPool).Namespace(namespace).CIDR("10.16.0.0/12").AllocateReservedAddresses().Carvable(),
			} {
				if err := c.Create(ctx, pool.Obj()); err != nil {
					return err
				}
			}
			for _, step := range []func(context.Context, int, *table) error{c.compareGrowth, c.compareCarvedBursts} {
				if err := step(ctx, o.carved, t); err != nil {
					return err
				}
			}
			return c.measureCarvedAtRest(ctx, m, o.carved, t)
		})
	})
}

// timeClaim creates a claim of a pool and returns the time until it is served.
func (c *clients) timeClaim(ctx context.Context, pool, name string) (time.Duration, error) {
	if err := c.Create(ctx, framework.MakeClaim(namespace, name).Pool(pool).Obj()); err != nil {
		return 0, err
	}
	created := time.Now()
	err := c.waitForClaim(ctx, name)
	return time.Since(created), err
}

// compareGrowth alternates between claims of a plain pool and claims of pools that have no block yet.
func (c *clients) compareGrowth(ctx context.Context, n int, t *table) error {
	n = min(n, 100)
	for i := range n {
		if err := c.Create(ctx, framework.MakePool(fmt.Sprintf("grows-%d", i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, parentPool, 28, 0, 1).Obj()); err != nil {
			return err
		}
	}
	if err := c.waitForPools(ctx, 0); err != nil {
		return err
	}
	var plain, grown []time.Duration
	for i := range n {
		one, err := c.timeClaim(ctx, poolName, fmt.Sprintf("plain-%d", i))
		if err != nil {
			return err
		}
		other, err := c.timeClaim(ctx, fmt.Sprintf("grows-%d", i), fmt.Sprintf("grown-%d", i))
		if err != nil {
			return err
		}
		plain, grown = append(plain, one), append(grown, other)
	}
	slices.Sort(plain)
	slices.Sort(grown)
	t.add("a claim that makes its pool grow, p50", fmt.Sprintf("%.1f ms", milliseconds(grown[n/2])),
		fmt.Sprintf("%.1f times a claim of a plain pool, by turns: %.1f ms; slowest of %d %.1f ms", float64(grown[n/2])/float64(plain[n/2]), milliseconds(plain[n/2]), n, milliseconds(grown[n-1])))
	return nil
}

// compareCarvedBursts alternates between bursts of a plain pool and of a carved pool.
func (c *clients) compareCarvedBursts(ctx context.Context, _ int, t *table) error {
	const carved = "carved"
	if err := c.Create(ctx, framework.MakePool(carved).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, parentPool, 20, 1, 1).Obj()); err != nil {
		return err
	}
	if err := c.waitForPools(ctx, 1); err != nil {
		return err
	}
	took := map[string]time.Duration{}
	for turn := range carvedRounds {
		for _, pool := range []string{poolName, carved} {
			start := time.Now()
			name := func(i int) string { return fmt.Sprintf("burst-%s-%d-%d", pool, turn, i) }
			if err := runEach(ctx, carvedBurst, func(ctx context.Context, i int) error {
				return c.Create(ctx, framework.MakeClaim(namespace, name(i)).Pool(pool).Obj())
			}); err != nil {
				return err
			}
			for i := range carvedBurst {
				if err := c.waitForClaim(ctx, name(i)); err != nil {
					return err
				}
			}
			took[pool] += time.Since(start)
		}
	}
	n := carvedRounds * carvedBurst
	t.add(fmt.Sprintf("%d claims of a carved pool, created and served", n), fmt.Sprintf("%.0f/s", float64(n)/took[carved].Seconds()),
		fmt.Sprintf("%.2f of a plain pool, by turns of %d", took[poolName].Seconds()/took[carved].Seconds(), carvedBurst))
	return nil
}

// measureCarvedAtRest measures many carved pools that have nothing to do.
func (c *clients) measureCarvedAtRest(ctx context.Context, m *framework.Manager, n int, t *table) error {
	for i := range n {
		if err := c.Create(ctx, framework.MakePool(fmt.Sprintf("rests-%d", i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, parentPool, 28, 1, 4).Obj()); err != nil {
			return err
		}
	}
	if err := c.waitForPools(ctx, n); err != nil {
		return err
	}
	does, err := measureRestWithin(ctx, m, float64(n))
	t.add(fmt.Sprintf("%d carved pools at rest", n), fmt.Sprintf("%.0f requests", does.Requests),
		fmt.Sprintf("in %s; %.2f s of CPU, %.0f reconciles, as each pool is looked at once a minute", idlePeriod, does.CPU, does.Reconciles))
	return err
}

// waitForPools waits until every pool is served, and the given number of pools have a block open.
func (c *clients) waitForPools(ctx context.Context, open int) error {
	return wait.PollUntilContextTimeout(ctx, metricsPeriod, 5*time.Minute, true, func(ctx context.Context) (bool, error) {
		all := &v1alpha1.NetworkPoolList{}
		if err := c.List(ctx, all, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		ready, opened := 0, 0
		for _, p := range all.Items {
			if meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ReadyCondition) {
				ready++
			}
			if len(p.Status.Blocks) > 0 {
				opened++
			}
		}
		return ready == len(all.Items) && opened >= open, nil
	})
}
