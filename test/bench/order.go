package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureOrder adds the cost of a claim in a pool that hands out the address that was released longest ago, after n
// releases, every second address first, so that as many are on record as fit. All addresses of the pool have been
// used before.
func measureOrder(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error {
			for _, pool := range []client.Object{
				framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").TenantRange("10.0.0.1", lastAddress(o.order)).AllocationOrder(v1alpha1.LeastRecentlyUsedOrder).Obj(),
				framework.MakePool(plainPool).Namespace(namespace).CIDR("10.1.0.0/16").Obj(),
			} {
				if err := c.Create(ctx, pool); err != nil {
					return err
				}
			}
			if err := c.watchClaims(ctx); err != nil {
				return err
			}
			return c.measureClaimsByRelease(ctx, m, o.order, t)
		})
	})
}

// lastAddress returns the last of n addresses of the pool.
func lastAddress(n int) string { return fmt.Sprintf("10.0.%d.%d", n>>8, n&0xff) }

func (c *clients) measureClaimsByRelease(ctx context.Context, m *framework.Manager, n int, t *table) error {
	if err := runEach(ctx, n, func(ctx context.Context, i int) error { return c.createClaim(ctx, claimName(i)) }); err != nil {
		return err
	}
	if err := waitForMetric(ctx, m, fulfilmentMetric, float64(n)); err != nil {
		return err
	}
	order, err := c.evenAddressesFirst(ctx, n)
	if err != nil {
		return err
	}
	for _, half := range [][]string{order[:n/2], order[n/2:]} {
		if err := runEach(ctx, len(half), func(ctx context.Context, i int) error { return c.deleteClaim(ctx, half[i]) }); err != nil {
			return err
		}
		if _, err := c.waitUntilClaimsSettle(ctx); err != nil {
			return err
		}
	}
	size, err := c.poolSize(ctx)
	if err != nil {
		return err
	}
	byRelease, bestFit, err := c.compareSingleClaims(ctx, poolName, plainPool)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("one claim at a time, of what was released longest ago of %d, p50", n), fmt.Sprintf("%.1f ms", milliseconds(byRelease)),
		fmt.Sprintf("%.2f of a pool that gives by best fit, by turns: %.1f ms; the pool has %.0f KB", float64(byRelease)/float64(bestFit), milliseconds(bestFit), float64(size)/1e3))
	return nil
}
