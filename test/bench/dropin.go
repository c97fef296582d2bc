package main

import (
	"context"
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureDropIn adds what a manager in the place of the in-cluster provider does with n claims that have their address:
// nothing.
func measureDropIn(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		if err := c.cp.InstallInClusterPools(); err != nil {
			return err
		}
		return c.managed(ctx, o.manager, func(m *framework.Manager) error { return c.dropInAtRest(ctx, m, o.dropIn, t) }, "--serve-in-cluster-pools")
	})
}

func (c *clients) dropInAtRest(ctx context.Context, m *framework.Manager, n int, t *table) error {
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
	pool := incluster.Kind{Name: incluster.IPPool}.New()
	pool.SetNamespace(namespace)
	pool.SetName(poolName)
	pool.Object["spec"] = map[string]any{"addresses": []any{"10.0.0.0/16"}, "prefix": int64(16)}
	if err := c.Create(ctx, pool); err != nil {
		return err
	}
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		return c.Create(ctx, framework.MakeClaim(namespace, claimName(i)).PoolRef(incluster.GroupVersion.Group, incluster.IPPool, poolName).Obj())
	}); err != nil {
		return err
	}
	for i := range n {
		if err := c.waitReady(ctx, claimName(i)); err != nil {
			return err
		}
	}
	does, err := rested(ctx, m)
	t.add(fmt.Sprintf("%d claims served in the place of the in-cluster provider, at rest", n), fmt.Sprintf("%.2f s of CPU", does.CPU),
		fmt.Sprintf("in %s; %.0f reconciles, %.0f requests", idle, does.Reconciled, does.Requests))
	return err
}
