package main

import (
	"context"
	"fmt"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// idle is how long a manager is watched that has nothing to do.
const idle = 10 * time.Second

// measureDropIn adds what a manager in the place of the in-cluster provider does with n claims that have their address: nothing.
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
	// The counts of the pool follow the last claim.
	if err := pause(ctx, idle/2); err != nil {
		return err
	}
	before, err := activityOf(ctx, m)
	if err != nil {
		return err
	}
	if err := pause(ctx, idle); err != nil {
		return err
	}
	after, err := activityOf(ctx, m)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("%d claims served in the place of the in-cluster provider, at rest", n), fmt.Sprintf("%.2f s of CPU", after.cpu-before.cpu),
		fmt.Sprintf("in %s; %.0f reconciliations, %.0f requests", idle, after.reconciled-before.reconciled, after.requests-before.requests))
	return nil
}

// activity is what a manager has done since its start.
type activity struct{ cpu, reconciled, requests float64 }

func activityOf(ctx context.Context, m *framework.Manager) (out activity, err error) {
	if out.cpu, err = m.Metric(ctx, "process_cpu_seconds_total"); err != nil {
		return out, err
	}
	if out.reconciled, err = sum(ctx, m, "controller_runtime_reconcile_total"); err != nil {
		return out, err
	}
	out.requests, err = sum(ctx, m, "rest_client_requests_total")
	return out, err
}

// sum adds the values of a counter, over all its labels.
func sum(ctx context.Context, m *framework.Manager, counter string) (total float64, err error) {
	all, err := m.Counts(ctx, counter)
	for _, n := range all {
		total += float64(n)
	}
	return total, err
}
