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
	trunk = "trunk"
	// carvedTurns are the turns of a plain and of a carved pool, carvedBurst the claims of each.
	carvedTurns, carvedBurst = 4, 500
)

// measureCarved adds what a pool costs that takes its addresses from another: a claim that makes one grow beside a claim
// of a plain pool, bursts in turns with a plain pool, and many that have nothing to do.
func measureCarved(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		return c.managed(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.watchClaims(ctx); err != nil {
				return err
			}
			for _, pool := range []*framework.PoolBuilder{
				framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16"),
				framework.MakePool(trunk).Namespace(namespace).CIDR("10.16.0.0/12").AllocateReserved().Carvable(),
			} {
				if err := c.Create(ctx, pool.Obj()); err != nil {
					return err
				}
			}
			for _, step := range []func(context.Context, int, *table) error{c.growing, c.carvedBursts} {
				if err := step(ctx, o.carved, t); err != nil {
					return err
				}
			}
			return c.carvedAtRest(ctx, m, o.carved, t)
		})
	})
}

// served creates a claim of a pool and returns how long it waits.
func (c *clients) served(ctx context.Context, pool, name string) (time.Duration, error) {
	if err := c.Create(ctx, framework.MakeClaim(namespace, name).Pool(pool).Obj()); err != nil {
		return 0, err
	}
	created := time.Now()
	err := c.waitReady(ctx, name)
	return time.Since(created), err
}

// growing takes claims of a plain pool and of pools that have no block yet by turns.
func (c *clients) growing(ctx context.Context, n int, t *table) error {
	n = min(n, 100)
	for i := range n {
		if err := c.Create(ctx, framework.MakePool(fmt.Sprintf("grows-%d", i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, trunk, 28, 0, 1).Obj()); err != nil {
			return err
		}
	}
	if err := c.poolsReady(ctx, 0); err != nil {
		return err
	}
	var plain, grown []time.Duration
	for i := range n {
		one, err := c.served(ctx, poolName, fmt.Sprintf("plain-%d", i))
		if err != nil {
			return err
		}
		other, err := c.served(ctx, fmt.Sprintf("grows-%d", i), fmt.Sprintf("grown-%d", i))
		if err != nil {
			return err
		}
		plain, grown = append(plain, one), append(grown, other)
	}
	slices.Sort(plain)
	slices.Sort(grown)
	t.add("a claim that makes its pool grow, p50", fmt.Sprintf("%.1f ms", ms(grown[n/2])),
		fmt.Sprintf("%.1f times a claim of a plain pool, by turns: %.1f ms; slowest of %d %.1f ms", float64(grown[n/2])/float64(plain[n/2]), ms(plain[n/2]), n, ms(grown[n-1])))
	return nil
}

// carvedBursts takes bursts of a plain pool and of a carved one by turns.
func (c *clients) carvedBursts(ctx context.Context, _ int, t *table) error {
	const carved = "carved"
	if err := c.Create(ctx, framework.MakePool(carved).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, trunk, 20, 1, 1).Obj()); err != nil {
		return err
	}
	if err := c.poolsReady(ctx, 1); err != nil {
		return err
	}
	took := map[string]time.Duration{}
	for turn := range carvedTurns {
		for _, pool := range []string{poolName, carved} {
			start := time.Now()
			name := func(i int) string { return fmt.Sprintf("burst-%s-%d-%d", pool, turn, i) }
			if err := each(ctx, carvedBurst, func(ctx context.Context, i int) error {
				return c.Create(ctx, framework.MakeClaim(namespace, name(i)).Pool(pool).Obj())
			}); err != nil {
				return err
			}
			for i := range carvedBurst {
				if err := c.waitReady(ctx, name(i)); err != nil {
					return err
				}
			}
			took[pool] += time.Since(start)
		}
	}
	n := carvedTurns * carvedBurst
	t.add(fmt.Sprintf("%d claims of a carved pool, created and served", n), fmt.Sprintf("%.0f/s", float64(n)/took[carved].Seconds()),
		fmt.Sprintf("%.2f of a plain pool, by turns of %d", took[poolName].Seconds()/took[carved].Seconds(), carvedBurst))
	return nil
}

// carvedAtRest watches many carved pools that have nothing to do.
func (c *clients) carvedAtRest(ctx context.Context, m *framework.Manager, n int, t *table) error {
	for i := range n {
		if err := c.Create(ctx, framework.MakePool(fmt.Sprintf("rests-%d", i)).Namespace(namespace).Carve(v1alpha1.NetworkPoolKind, trunk, 28, 1, 4).Obj()); err != nil {
			return err
		}
	}
	if err := c.poolsReady(ctx, n); err != nil {
		return err
	}
	does, err := restedBut(ctx, m, float64(n))
	t.add(fmt.Sprintf("%d carved pools at rest", n), fmt.Sprintf("%.0f requests", does.Requests),
		fmt.Sprintf("in %s; %.2f s of CPU, %.0f reconciles, as each pool is looked at once a minute", idle, does.CPU, does.Reconciled))
	return err
}

// poolsReady waits until every pool is served, and so many have a block open.
func (c *clients) poolsReady(ctx context.Context, open int) error {
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
