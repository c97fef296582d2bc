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

// refusedSingles is the number of claims that are timed before another namespace is refused, and again while it is.
const refusedSingles = 100

// measureRefused adds the time that claims of one namespace take while n claims of another namespace wait, whose
// IPAddresses a quota refuses.
func measureRefused(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.measureBesideRefused(ctx, o.refused, t); err != nil {
				return err
			}
			_, err := measureRest(ctx, m)
			return err
		})
	})
}

func (c *clients) measureBesideRefused(ctx context.Context, n int, t *table) error {
	const refused = "refused"
	if err := c.Create(ctx, framework.MakeGlobalPool(poolName).CIDR("10.0.0.0/16").Obj()); err != nil {
		return err
	}
	quota, err := c.createRefusedNamespace(ctx, refused)
	if err != nil {
		return err
	}
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
	some := func(prefix string) (took []time.Duration, err error) {
		for i := range refusedSingles {
			d, err := c.timeNewClaim(ctx, framework.MakeClaim(namespace, fmt.Sprintf("%s-%03d", prefix, i)).GlobalPool(poolName).Obj())
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
	t.add(fmt.Sprintf("first claim of a namespace, behind %d of another that a quota refuses", n), fmt.Sprintf("%.1f ms", milliseconds(first)),
		fmt.Sprintf("p50 of the next %d: %.1f ms, slowest %.1f ms; without those that are refused %.1f ms", refusedSingles, milliseconds(p50), milliseconds(beside[len(beside)-1]), milliseconds(was)))
	return c.measureAfterQuota(ctx, quota, n, t)
}

// measureAfterQuota deletes the quota, and adds the time until the n claims of its namespace are served.
func (c *clients) measureAfterQuota(ctx context.Context, quota *corev1.ResourceQuota, n int, t *table) error {
	start := time.Now()
	if err := c.Delete(ctx, quota); err != nil {
		return err
	}
	err := c.waitForClaims(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool {
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

// createRefusedNamespace creates a namespace with a quota that allows no IPAddress.
func (c *clients) createRefusedNamespace(ctx context.Context, name string) (*corev1.ResourceQuota, error) {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return nil, err
	}
	quota, err := framework.DenyAddressesByQuota(ctx, c, name)
	if err != nil {
		return nil, err
	}
	// The API server enforces the quota after a moment.
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
		if err := sleepContext(ctx, metricsPeriod); err != nil {
			return nil, err
		}
	}
}
