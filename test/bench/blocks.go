package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Limits of the share of the bare client's pace, for allocations and for their replacement.
const (
	blocksLimit       = 0.7
	replacementsLimit = 0.6
)

// blockKind are the allocations of the benchmark. Their sizes are 1 to 64 addresses, distributed evenly.
var blockKind = claimantKind{
	kind: v1alpha1.IPAllocationKind, finalizer: v1alpha1.IPAllocationFinalizer, eventReason: "IPsAllocated", list: &v1alpha1.IPAllocationList{},
	counter: "butler_ipam_allocation_fulfilment_seconds_count", check: checkBlocks,
	newObject: func(i int) client.Object { return newAllocation(i, fmt.Sprintf("block-%05d", i)) },
	newStatus: func(i int) (map[string]any, string) {
		first, from := fmt.Sprintf("10.%d.%d.", i/1024, i/4%256), i%4*64
		r, err := poolutil.ParseRange(fmt.Sprintf("%s%d-%s%d", first, from, first, from+int(blockSize(i))-1))
		if err != nil {
			panic(err) // its last address is x.y.z.255 at most
		}
		return map[string]any{
			"phase": v1alpha1.AllocationAllocated, "cidr": poolutil.FormatRange(r), "startAddress": r.From().String(), "endAddress": r.To().String(),
			"addresses": poolutil.Enumerate(r), "allocatedCount": poolutil.Size(r), "allocatedAt": metav1.Now().UTC().Format(time.RFC3339), "allocatedBy": v1alpha1.AllocatedBy,
			"observedGeneration": 1, conditionsField: []any{
				newCondition("Ready", "True", "Ready", "allocated "+r.String()),
				newCondition("Overlap", "False", "NoOverlap", "no other claimant has any of these addresses"),
			},
		}, poolutil.FormatRange(r)
	},
}

// leastBlocks is the smallest number of allocations of which some are replaced in each turn.
const leastBlocks = 4 * turns

// replacedBlocks returns how many of n allocations are replaced: 30 %.
func replacedBlocks(n int) int { return n * 3 / 10 }

func blockSize(i int) int32 { return int32(1 + i*37%64) }

func newAllocation(i int, name string) *v1alpha1.IPAllocation {
	return framework.MakeAllocation(namespace, name).Pool(poolName).Count(blockSize(i)).Cluster(namespace, "tenant").Obj()
}

// newReplacement returns the allocation that replaces allocation i.
func newReplacement(i int) *v1alpha1.IPAllocation {
	return newAllocation(i+1, fmt.Sprintf("again-%05d", i))
}

// measureBlocks adds the pace at which n allocations are served, and at which 30 % of them are replaced by others.
func measureBlocks(ctx context.Context, o options, t *table) error {
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/12").Obj()
	return compareClaimants(ctx, o, blockKind, pool, o.blocks, "allocations of 1 to 64 addresses", blocksLimit, t, func(bare, managed *clients, m *framework.Manager) error {
		if err := managed.pausePools(ctx, false); err != nil {
			return err
		}
		replaced := replacedBlocks(o.blocks)
		return compareTurns(t, fmt.Sprintf("%d of them replaced", replaced), replaced, turns, replacementsLimit,
			func(from, to int) (pace, error) {
				return bare.measureBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return bare.replaceBlock(ctx, from+i) })
			},
			func(from, to int) (pace, error) {
				return managed.measureRequestedTurn(ctx, m, to-from, func() error { return managed.requestReplacements(ctx, m, o.blocks, from, to) })
			})
	})
}

// checkBlocks returns an error unless there are n allocations, each has as many addresses as it asked for, and no two
// have the same address.
func checkBlocks(ctx context.Context, c *clients, n int) error {
	list := &v1alpha1.IPAllocationList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if a := &list.Items[i]; a.Status.Phase != v1alpha1.AllocationAllocated || a.Status.AllocatedCount != int64(*a.Spec.Count) {
			return fmt.Errorf("IPAllocation %s is %s with %d addresses", a.Name, a.Status.Phase, a.Status.AllocatedCount)
		}
	}
	if len(list.Items) != n {
		return fmt.Errorf("there are %d allocations, not %d", len(list.Items), n)
	}
	return checkUnique(pools.Objects{Allocations: list.Items})
}

// requestReplacements deletes some of n allocations and creates others, and waits until the manager has released and
// served them all.
func (c *clients) requestReplacements(ctx context.Context, m *framework.Manager, n, from, to int) error {
	if err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
		if err := c.Delete(ctx, blockKind.newObject(from+i)); err != nil {
			return err
		}
		return c.Create(ctx, newReplacement(from+i))
	}); err != nil {
		return err
	}
	if err := waitForMetric(ctx, m, blockKind.counter, float64(n+to)); err != nil {
		return err
	}
	return waitForMetric(ctx, m, releasesMetric, float64(to))
}

// replaceBlock deletes an allocation, with the writes of the manager, and creates and serves another one.
func (c *clients) replaceBlock(ctx context.Context, i int) error {
	o := blockKind.newObject(i)
	if err := c.Delete(ctx, o); err != nil {
		return err
	}
	released := map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.Now().UTC().Format(time.RFC3339)}
	if err := c.Status().Patch(ctx, o, statusPatch(released)); err != nil {
		return err
	}
	if err := c.Patch(ctx, o, metadataPatch(map[string]any{finalizersField: []string{}})); err != nil {
		return err
	}
	o = newReplacement(i)
	if err := c.Create(ctx, o); err != nil {
		return err
	}
	return c.writeClaimant(ctx, blockKind, o, i)
}
