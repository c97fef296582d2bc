package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// graceSingles is the number of claims that are timed in a pool whose record of cooling addresses is full,
	// alternating with a pool without any.
	graceSingles = 200
	// plainPool is a pool without a reuse grace period.
	plainPool = "plain"
)

// measureGrace adds the cost of n releases in a pool whose addresses cool down for an hour. Every second address is
// released first, so that no two cooling ranges touch, and as many are on record as fit.
func measureGrace(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		return c.withManager(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.measureGraceReleases(ctx, m, o.grace, t); err != nil {
				return err
			}
			_, err := measureRest(ctx, m)
			return err
		})
	})
}

func (c *clients) measureGraceReleases(ctx context.Context, m *framework.Manager, n int, t *table) error {
	pools := []client.Object{
		framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").ReuseGracePeriod(int64(time.Hour / time.Second)).Obj(),
		framework.MakePool(plainPool).Namespace(namespace).CIDR("10.1.0.0/16").Obj(),
	}
	for _, pool := range pools {
		if err := c.Create(ctx, pool); err != nil {
			return err
		}
	}
	if err := c.watchClaims(ctx); err != nil {
		return err
	}
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
	if err := runEach(ctx, n/2, func(ctx context.Context, i int) error { return c.deleteClaim(ctx, order[i]) }); err != nil {
		return err
	}
	left, err := c.waitUntilClaimsSettle(ctx)
	if err != nil {
		return err
	}
	size, err := c.poolSize(ctx)
	if err != nil {
		return err
	}
	t.add("a pool with as many rests on record as fit", fmt.Sprintf("%.0f KB", float64(size)/1e3),
		fmt.Sprintf("of %d releases of addresses that do not touch, %d wait", n/2, left-(n-n/2)))
	if err := c.compareGraceClaims(ctx, t); err != nil {
		return err
	}
	return c.measureRemainingReleases(ctx, n, order[n/2:], t)
}

// compareGraceClaims measures single claims of both pools, alternately.
func (c *clients) compareGraceClaims(ctx context.Context, t *table) error {
	full, plain, err := c.compareSingleClaims(ctx, poolName, plainPool)
	if err != nil {
		return err
	}
	t.add("one claim at a time, of that pool, p50", fmt.Sprintf("%.1f ms", milliseconds(full)),
		fmt.Sprintf("%.2f of a pool without rests, by turns: %.1f ms", float64(full)/float64(plain), milliseconds(plain)))
	return nil
}

// compareSingleClaims returns the p50 of the time until single claims of two pools are served.
func (c *clients) compareSingleClaims(ctx context.Context, one, other string) (ofOne, ofOther time.Duration, err error) {
	took := map[string][]time.Duration{}
	for i := range graceSingles {
		for _, pool := range []string{other, one} {
			d, err := c.timeNewClaim(ctx, framework.MakeClaim(namespace, fmt.Sprintf("%s-single-%03d", pool, i)).Pool(pool).Obj())
			if err != nil {
				return 0, 0, err
			}
			took[pool] = append(took[pool], d)
		}
	}
	for _, d := range took {
		slices.Sort(d)
	}
	return took[one][graceSingles/2], took[other][graceSingles/2], nil
}

// measureRemainingReleases releases the addresses between the cooling ones, and measures the time until every release
// has ended. New claims are created meanwhile.
func (c *clients) measureRemainingReleases(ctx context.Context, n int, names []string, t *table) error {
	start := time.Now()
	deleting := make(chan error, 1)
	go func() {
		deleting <- runEach(ctx, len(names), func(ctx context.Context, i int) error { return c.deleteClaim(ctx, names[i]) })
	}()
	served, err := c.timeNewClaim(ctx, framework.MakeClaim(namespace, "meanwhile").Pool(poolName).Obj())
	if err := errors.Join(err, <-deleting); err != nil {
		return err
	}
	err = c.waitForClaims(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool { return len(claims) == 2*graceSingles+1 })
	if err != nil {
		return err
	}
	took := time.Since(start)
	size, err := c.poolSize(ctx)
	t.add(fmt.Sprintf("%d releases with a grace of an hour end", n), fmt.Sprintf("%.1f s", took.Seconds()),
		fmt.Sprintf("after the last %d were asked for; a claim that came meanwhile was served in %.0f ms; the pool has %.0f KB then", len(names), milliseconds(served), float64(size)/1e3))
	return err
}

// evenAddressesFirst returns the names of the claims, those with even addresses first.
func (c *clients) evenAddressesFirst(ctx context.Context, n int) ([]string, error) {
	list := &ipamv1.IPAddressList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if len(list.Items) != n {
		return nil, fmt.Errorf("%d IPAddresses, not %d", len(list.Items), n)
	}
	var even, odd []string
	for i := range list.Items {
		address, err := netip.ParseAddr(list.Items[i].Spec.Address)
		if err != nil {
			return nil, err
		}
		if name := list.Items[i].Spec.ClaimRef.Name; address.As16()[15]%2 == 0 {
			even = append(even, name)
		} else {
			odd = append(odd, name)
		}
	}
	return append(even, odd...), nil
}

func (c *clients) deleteClaim(ctx context.Context, name string) error {
	return c.Delete(ctx, &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
}

// waitUntilClaimsSettle waits until the number of claims does not change for a while, and returns it.
func (c *clients) waitUntilClaimsSettle(ctx context.Context) (int, error) {
	return waitUntilStable(ctx, 5*time.Second, func() (int, error) {
		c.claimWatch.mu.Lock()
		defer c.claimWatch.mu.Unlock()
		return len(c.claimWatch.claims), nil
	})
}

// poolSize returns the size of the pool in bytes, as the API server encodes it.
func (c *clients) poolSize(ctx context.Context) (int, error) {
	var text bytes.Buffer
	err := c.getRaw(ctx, "/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+namespace+"/networkpools/"+poolName, &text)
	return text.Len(), err
}
