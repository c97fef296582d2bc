package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureLeasedServices adds how long a Service waits until MetalLB has given it the address of its lease: each has a lease
// of its own, and all are of one namespace, which is the unit of work of the controller.
func measureLeasedServices(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		if err := c.cp.InstallMetalLB(ctx); err != nil {
			return err
		}
		metalLB, err := c.cp.StartMetalLB(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = metalLB.Kill() }()
		return c.managed(ctx, o.manager, func(m *framework.Manager) error { return c.publishLeases(ctx, m, o.leasedServices, t) }, "--service-leases")
	})
}

func (c *clients) publishLeases(ctx context.Context, m *framework.Manager, n int, t *table) error {
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Obj()
	pool.Spec.Leases = &v1alpha1.Leases{}
	if err := c.Create(ctx, pool); err != nil {
		return err
	}
	if err := c.createLeases(ctx, 0, n); err != nil {
		return err
	}
	if err := metric(ctx, m, leaseFulfilment, float64(n)); err != nil {
		return err
	}
	took := make([]time.Duration, n)
	for i := range took {
		var err error
		if took[i], err = c.annotatedService(ctx, fmt.Sprintf("service-%03d", i), map[string]string{v1alpha1.LeaseAnnotation: leaseName(i)}); err != nil {
			return fmt.Errorf("%w\n%s", err, m.LogTail(20))
		}
	}
	part := max(1, n/10)
	text := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", ms(d)) }
	first, last := median(took[:part]), median(took[n-part:])
	t.add("Service to the address of its lease, p50", text(median(took)), fmt.Sprintf("of %d; slowest %s", n, text(slices.Max(took))))
	t.add(fmt.Sprintf("the last %d of them, p50", part), text(last), fmt.Sprintf("%.2f times the first %d, %s", ms(last)/ms(first), part, text(first)))
	_, err := rested(ctx, m)
	return err
}
