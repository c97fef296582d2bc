package main

import (
	"context"
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureDropIn adds the load of a manager that replaces the in-cluster provider, with n claims that have their
// addresses already: it must be zero.
func measureDropIn(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		if err := c.controlPlane.InstallInClusterPools(); err != nil {
			return err
		}
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error { return c.measureDropInAtRest(ctx, m, o.dropIn, t) }, "--serve-in-cluster-pools")
	})
}

func (c *clients) measureDropInAtRest(ctx context.Context, m *framework.Manager, n int, t *table) error {
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
	pool := incluster.PoolKind{Name: incluster.IPPoolKind}.NewPool()
	pool.SetNamespace(namespace)
	pool.SetName(poolName)
	pool.Object["spec"] = map[string]any{"addresses": []any{"10.0.0.0/16"}, "prefix": int64(16)}
	if err := c.Create(ctx, pool); err != nil {
		return err
	}
	if err := runEach(ctx, n, func(ctx context.Context, i int) error {
		return c.Create(ctx, framework.MakeClaim(namespace, claimName(i)).PoolRef(incluster.GroupVersion.Group, incluster.IPPoolKind, poolName).Obj())
	}); err != nil {
		return err
	}
	for i := range n {
		if err := c.waitForClaim(ctx, claimName(i)); err != nil {
			return err
		}
	}
	does, err := measureRest(ctx, m)
	t.add(fmt.Sprintf("%d claims served in the place of the in-cluster provider, at rest", n), fmt.Sprintf("%.2f s of CPU", does.CPU),
		fmt.Sprintf("in %s; %.0f reconciles, %.0f requests", idlePeriod, does.Reconciles, does.Requests))
	return err
}
