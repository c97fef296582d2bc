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
	// graceSingles is how many claims are timed on a pool with all its rests on record, and alternately on one without
	// any.
	graceSingles = 200
	// plainPool is a pool without a grace.
	plainPool = "plain"
)

// measureGrace adds what n releases cost of a pool whose addresses rest for an hour. Every second address is released
// first: no two rests touch, and as many are on record as fit.
func measureGrace(ctx context.Context, o options, t *table) error {
	return bed(ctx, func(c *clients) error {
		return c.managed(ctx, o.manager, func(m *framework.Manager) error {
			if err := c.releasesWithGrace(ctx, m, o.grace, t); err != nil {
				return err
			}
			_, err := rested(ctx, m)
			return err
		})
	})
}

func (c *clients) releasesWithGrace(ctx context.Context, m *framework.Manager, n int, t *table) error {
	pools := []client.Object{
		framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Reuse(int64(time.Hour / time.Second)).Obj(),
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
	if err := each(ctx, n, func(ctx context.Context, i int) error { return c.create(ctx, claimName(i)) }); err != nil {
		return err
	}
	if err := metric(ctx, m, fulfilment, float64(n)); err != nil {
		return err
	}
	order, err := c.everySecondFirst(ctx, n)
	if err != nil {
		return err
	}
	if err := each(ctx, n/2, func(ctx context.Context, i int) error { return c.deleteClaim(ctx, order[i]) }); err != nil {
		return err
	}
	left, err := c.settled(ctx)
	if err != nil {
		return err
	}
	size, err := c.poolSize(ctx)
	if err != nil {
		return err
	}
	t.add("a pool with as many rests on record as fit", fmt.Sprintf("%.0f KB", float64(size)/1e3),
		fmt.Sprintf("of %d releases of addresses that do not touch, %d wait", n/2, left-(n-n/2)))
	if err := c.compareGrace(ctx, t); err != nil {
		return err
	}
	return c.restOfReleases(ctx, n, order[n/2:], t)
}

// compareGrace takes the time of single claims of both pools, by turns.
func (c *clients) compareGrace(ctx context.Context, t *table) error {
	full, plain, err := c.byTurns(ctx, poolName, plainPool)
	if err != nil {
		return err
	}
	t.add("one claim at a time, of that pool, p50", fmt.Sprintf("%.1f ms", ms(full)),
		fmt.Sprintf("%.2f of a pool without rests, by turns: %.1f ms", float64(full)/float64(plain), ms(plain)))
	return nil
}

// byTurns returns the p50 of single claims of two pools.
func (c *clients) byTurns(ctx context.Context, one, other string) (ofOne, ofOther time.Duration, err error) {
	took := map[string][]time.Duration{}
	for i := range graceSingles {
		for _, pool := range []string{other, one} {
			d, err := c.serve(ctx, framework.MakeClaim(namespace, fmt.Sprintf("%s-single-%03d", pool, i)).Pool(pool).Obj())
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

// restOfReleases releases the addresses between those that rest, and takes the time until every release has ended. New
// claims come meanwhile.
func (c *clients) restOfReleases(ctx context.Context, n int, names []string, t *table) error {
	start := time.Now()
	deleting := make(chan error, 1)
	go func() {
		deleting <- each(ctx, len(names), func(ctx context.Context, i int) error { return c.deleteClaim(ctx, names[i]) })
	}()
	served, err := c.serve(ctx, framework.MakeClaim(namespace, "meanwhile").Pool(poolName).Obj())
	if err := errors.Join(err, <-deleting); err != nil {
		return err
	}
	err = c.until(ctx, func(claims map[string]*ipamv1.IPAddressClaim) bool { return len(claims) == 2*graceSingles+1 })
	if err != nil {
		return err
	}
	took := time.Since(start)
	size, err := c.poolSize(ctx)
	t.add(fmt.Sprintf("%d releases with a grace of an hour end", n), fmt.Sprintf("%.1f s", took.Seconds()),
		fmt.Sprintf("after the last %d were asked for; a claim that came meanwhile was served in %.0f ms; the pool has %.0f KB then", len(names), ms(served), float64(size)/1e3))
	return err
}

// everySecondFirst returns the claims, first those of the even addresses.
func (c *clients) everySecondFirst(ctx context.Context, n int) ([]string, error) {
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

// settled waits until no claim has gone for a while, and returns how many there are.
func (c *clients) settled(ctx context.Context) (int, error) {
	return quiet(ctx, 5*time.Second, func() (int, error) {
		c.watched.mu.Lock()
		defer c.watched.mu.Unlock()
		return len(c.watched.claims), nil
	})
}

// poolSize is the length of the pool, as the API server writes it.
func (c *clients) poolSize(ctx context.Context) (int, error) {
	var text bytes.Buffer
	err := c.get(ctx, "/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+namespace+"/networkpools/"+poolName, &text)
	return text.Len(), err
}
