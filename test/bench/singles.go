package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// singleClaims is the number of claims that are created one after the other.
const singleClaims = 200

// measureSingles creates claims one after the other and waits for each. Before each, a bare client does the same four
// writes, one after the other: on a shared machine only alternating measurements can be compared.
func (f *claimFleet) measureSingles(ctx context.Context, t *table) error {
	foreign, err := f.createForeignPool(ctx)
	if err != nil {
		return err
	}
	var bare, took []time.Duration
	for i := range singleClaims {
		four, err := f.timeBareClaim(ctx, foreign, fmt.Sprintf("write-%04d", i), i)
		if err != nil {
			return err
		}
		claim := framework.MakeClaim(namespace, fmt.Sprintf("single-%04d", i)).Pool(f.pool(0)).Obj()
		f.singleCount++
		_, served, err := timeUntil(ctx, f.clients, &ipamv1.IPAddressClaimList{}, claim, doNothing, isReady)
		if err != nil {
			return err
		}
		bare, took = append(bare, four), append(took, served)
	}
	foreign.Status.Allocator.InFlight = nil // else the manager would find pending work
	if err := f.Status().Update(ctx, foreign); err != nil {
		return err
	}
	four, p50 := median(bare), median(took)
	t.add("the four writes of a claim, bare client, p50", formatMillis(four), "alternating with single claims")
	t.addShare(fmt.Sprintf("one claim at a time, %d allocated, p50", f.claimCount), formatMillis(p50), four.Seconds()/p50.Seconds(), singlesLimit,
		fmt.Sprintf("slowest of %d %s", singleClaims, formatMillis(slices.Max(took))))
	return nil
}

// createForeignPool creates a pool whose status is like that of a measured pool, but which the manager does not
// write: it is paused, has another holder, and no pending work.
func (f *claimFleet) createForeignPool(ctx context.Context) (*v1alpha1.NetworkPool, error) {
	pool := framework.MakePool("foreign").Namespace(namespace).CIDR("10.255.0.0/16").Obj()
	err := watchUntil(ctx, f.clients, &v1alpha1.NetworkPoolList{}, pool, func() error { return f.Create(ctx, pool) }, func(seen *v1alpha1.NetworkPool) bool {
		return len(seen.Finalizers) > 0 && meta.IsStatusConditionTrue(seen.Status.Conditions, v1alpha1.ReadyCondition)
	})
	if err != nil {
		return nil, err
	}
	if err := f.Patch(ctx, pool, metadataPatch(map[string]any{annotationsField: map[string]any{clusterv1.PausedAnnotation: ""}})); err != nil {
		return nil, err
	}
	if err := waitUntilSettled(ctx, f.manager, time.Second); err != nil {
		return nil, err
	}
	if err := f.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return nil, err
	}
	pool.Status.Allocator.Holder = reporter
	pool.Status.Allocator.Term++
	return pool, f.Status().Update(ctx, pool)
}

// timeBareClaim creates a claim of a pool without a provider, and returns the time of the four writes that a manager
// does for one: the grant in the pool's status, and the three on the claim and its address.
func (f *claimFleet) timeBareClaim(ctx context.Context, pool *v1alpha1.NetworkPool, name string, i int) (time.Duration, error) {
	claim := framework.MakeClaim(namespace, name).PoolRef(unservedPool.APIGroup, unservedPool.Kind, unservedPool.Name).Obj()
	if err := f.Create(ctx, claim); err != nil {
		return 0, err
	}
	start := time.Now()
	pool.ManagedFields = nil
	pool.Status.AllocatedIPs++
	pool.Status.Allocator.InFlight = []v1alpha1.Grant{{
		Kind: "IPAddressClaim", Namespace: namespace, Name: name, UID: string(claim.UID), First: "10.255.0.1", Last: "10.255.0.1",
	}}
	if err := f.Status().Update(ctx, pool); err != nil {
		return 0, err
	}
	err := f.writeClaim(ctx, name, i)
	return time.Since(start), err
}
