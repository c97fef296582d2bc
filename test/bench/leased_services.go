package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// measureLeasedServices adds the time until MetalLB has given a Service the address of its lease. All are in one
// namespace, which is the unit of work of the controller: first each on an existing lease of its own, then further
// ones on leases that have a Service, then each on a lease that is created for it.
func measureLeasedServices(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		if err := c.controlPlane.InstallMetalLB(ctx); err != nil {
			return err
		}
		metalLB, err := c.controlPlane.StartMetalLB(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = metalLB.Kill() }()
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error { return c.publishLeases(ctx, m, o.leasedServices, t) }, "--service-leases")
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
	if err := waitForMetric(ctx, m, leaseFulfilmentMetric, float64(n)); err != nil {
		return err
	}
	text := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", milliseconds(d)) }
	// each creates Services, one after the other, and returns the time that each takes.
	each := func(n int, number int32, lease func(i int) (string, error)) ([]time.Duration, error) {
		took := make([]time.Duration, n)
		for i := range took {
			name, err := lease(i)
			if err != nil {
				return nil, err
			}
			took[i], err = c.timeAnnotatedService(ctx, fmt.Sprintf("service-%d-%03d", number, i), number, map[string]string{v1alpha1.LeaseAnnotation: name})
			if err != nil {
				return nil, fmt.Errorf("%w\n%s", err, m.LogTail(20))
			}
		}
		return took, nil
	}
	took, err := each(n, 80, func(i int) (string, error) { return leaseName(i), nil })
	if err != nil {
		return err
	}
	part := max(1, n/10)
	first, last := median(took[:part]), median(took[n-part:])
	t.add("Service to the address of its lease, p50", text(median(took)), fmt.Sprintf("of %d; slowest %s", n, text(slices.Max(took))))
	t.add(fmt.Sprintf("the last %d of them, p50", part), text(last), fmt.Sprintf("%.2f times the first %d, %s", milliseconds(last)/milliseconds(first), part, text(first)))
	const few = 10 // each causes some updates of all Services
	if took, err = each(few, 81, func(i int) (string, error) { return leaseName(i), nil }); err != nil {
		return err
	}
	t.add("a second Service of a lease, p50", text(median(took)), fmt.Sprintf("of %d, beside %d Services: MetalLB writes all of them", few, n))
	took, err = each(few, 82, func(i int) (string, error) {
		if err := c.createLeases(ctx, n+i, n+i+1); err != nil {
			return "", err
		}
		return leaseName(n + i), waitForMetric(ctx, m, leaseFulfilmentMetric, float64(n+i+1))
	})
	if err != nil {
		return err
	}
	t.add("a Service whose lease has just been made, p50", text(median(took)), fmt.Sprintf("of %d, beside %d Services: each is a change of MetalLB's pools", few, n+few))
	_, err = measureRest(ctx, m)
	return err
}
