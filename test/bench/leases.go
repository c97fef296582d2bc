package main

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// leasesLimit is the limit of the share of the bare client's pace.
const leasesLimit = 0.8

var leaseKind = claimantKind{
	kind: v1alpha1.IPLeaseKind, finalizer: v1alpha1.IPLeaseFinalizer, eventReason: "LeaseAllocated", list: &v1alpha1.IPLeaseList{},
	counter: "butler_ipam_lease_fulfilment_seconds_count", check: checkLeases,
	newObject: func(i int) client.Object {
		return framework.MakeLease(namespace, fmt.Sprintf("lease-%05d", i)).Pool(poolName).Obj()
	},
	newStatus: func(i int) (map[string]any, string) {
		address := fmt.Sprintf("10.0.%d.%d", i/256, i%256)
		ready := newCondition("Ready", "True", "Allocated", "allocated "+address)
		return map[string]any{"address": address, "observedGeneration": 1, conditionsField: []any{ready}}, address
	},
}

// checkLeases returns an error unless there are n leases, each has an address, and no two have the same.
func checkLeases(ctx context.Context, c *clients, n int) error {
	list := &v1alpha1.IPLeaseList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if l := &list.Items[i]; l.Status.Address == "" {
			return fmt.Errorf("IPLease %s has no address", l.Name)
		}
	}
	if len(list.Items) != n {
		return fmt.Errorf("there are %d leases, not %d", len(list.Items), n)
	}
	return checkUnique(pools.Objects{Leases: list.Items})
}

// measureLeases adds the pace at which n leases are served.
func measureLeases(ctx context.Context, o options, t *table) error {
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Obj()
	pool.Spec.Leases = &v1alpha1.Leases{}
	return compareClaimants(ctx, o, leaseKind, pool, o.leases, "leases", leasesLimit, t, nil)
}
