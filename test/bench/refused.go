package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// refusedSingles is how many claims are timed before a namespace is refused, and again beside it.
const refusedSingles = 100

// measureRefused adds how long the claims of one namespace take beside n of another one, whose IPAddresses a quota
// refuses.
func measureRefused(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		return c.managed(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.besideRefused(ctx, o.refused, t); err != nil {
				return err
			}
			_, err := rested(ctx, m)
			return err
		})
	})
}

func (c *clients) besideRefused(ctx context.Context, n int, t *table) error {
	const refused = "refused"
	if err := c.Create(ctx, framework.MakeGlobalPool(poolName).CIDR("10.0.0.0/16").Obj()); err != nil {
		return err
	}
	quota, err := c.noAddresses(ctx, refused)
	if err != nil {
		return err
	}
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
	some := func(prefix string) (took []time.Duration, err error) {
		for i := range refusedSingles {
			d, err := c.serve(ctx, framework.MakeClaim(namespace, fmt.Sprintf("%s-%03d", prefix, i)).GlobalPool(poolName).Obj())
			if err != nil {
				return nil, err
			}
			took = append(took, d)
		}
		return took, nil
	}
	before, err := some("before")
	if err != nil {
		return err
	}
	for i := range n {
		if err := c.Create(ctx, framework.MakeClaim(refused, fmt.Sprintf("refused-%03d", i)).GlobalPool(poolName).Obj()); err != nil {
			return err
		}
	}
	beside, err := some("beside")
	if err != nil {
		return err
	}
	first := beside[0]
	slices.Sort(before)
	slices.Sort(beside)
	p50, was := beside[len(beside)/2], before[len(before)/2]
	t.add(fmt.Sprintf("first claim of a namespace, behind %d of another that a quota refuses", n), fmt.Sprintf("%.1f ms", ms(first)),
		fmt.Sprintf("p50 of the next %d: %.1f ms, slowest %.1f ms; without those that are refused %.1f ms", refusedSingles, ms(p50), ms(beside[len(beside)-1]), ms(was)))
	return c.allowed(ctx, quota, n, t)
}

// allowed takes the quota away, and adds how long it takes until the n claims of its namespace are served.
func (c *clients) allowed(ctx context.Context, quota *corev1.ResourceQuota, n int, t *table) error {
	start := time.Now()
	if err := c.Delete(ctx, quota); err != nil {
		return err
	}
	err := c.until(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool {
		served := 0
		for _, claim := range claims {
			if claim.Namespace == quota.Namespace && isReady(claim) {
				served++
			}
		}
		return served == n
	})
	t.add("those have their addresses when the quota is taken away", fmt.Sprintf("%.1f s", time.Since(start).Seconds()), "")
	return err
}

// noAddresses makes a namespace that may have no IPAddress.
func (c *clients) noAddresses(ctx context.Context, name string) (*corev1.ResourceQuota, error) {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return nil, err
	}
	quota, err := framework.RefuseAddresses(ctx, c, name)
	if err != nil {
		return nil, err
	}
	// The API server takes a moment to know it.
	for {
		err := c.Create(ctx, &ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "tried"},
			Spec: ipamv1.IPAddressSpec{
				ClaimRef: ipamv1.IPAddressClaimReference{Name: "tried"}, PoolRef: benchPool, Address: "10.0.0.1", Prefix: ptr.To[int32](16),
			},
		}, client.DryRunAll)
		if apierrors.IsForbidden(err) {
			return quota, nil
		}
		if err != nil {
			return nil, err
		}
		if err := pause(ctx, metricsPeriod); err != nil {
			return nil, err
		}
	}
}
