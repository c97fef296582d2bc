package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const blockFulfilmentMetric = "butler_ipam_allocation_fulfilment_seconds_count"

// blockSize returns a size of 1 to 64 addresses; the sizes are distributed evenly.
func blockSize(i int) int32 { return int32(1 + i*37%64) }

func newAllocation(i int, name string) *v1alpha1.IPAllocation {
	return framework.MakeAllocation(namespace, name).Pool(poolName).Count(blockSize(i)).Cluster(namespace, "tenant").Obj()
}

func blockName(i int) string { return fmt.Sprintf("block-%05d", i) }

// turnRounds is how often the bare client and the manager alternate: other load on the machine then slows both.
const turnRounds = 5

// measureBlocks adds the rate at which n allocations are served, and at which 30 % of them are replaced by others.
// The manager alternates with a bare client that does the same writes.
func measureBlocks(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(bare *clients) error {
		return withControlPlane(ctx, func(managed *clients) error { return compareBlockRates(ctx, bare, managed, o, t) })
	})
}

func compareBlockRates(ctx context.Context, bare, managed *clients, o options, t *table) error {
	for _, list := range []client.ObjectList{&v1alpha1.IPAllocationList{}, &v1alpha1.NetworkPoolList{}} {
		stop, err := bare.drainWatch(ctx, list)
		if err != nil {
			return err
		}
		defer stop() //nolint:gocritic // two of them, until the measurement ends
	}
	if err := bare.createTenantCluster(ctx); err != nil {
		return err
	}
	if err := managed.createTenantCluster(ctx); err != nil {
		return err
	}
	m, err := managed.startManager(ctx, o.manager)
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/12").Annotate(clusterv1.PausedAnnotation, "").Obj()
	if err := managed.Create(ctx, pool); err != nil {
		return err
	}
	err = compareTurns(o.blocks, "allocations of 1 to 64 addresses", t,
		func(from, to int) (pace, error) { return bare.runBareBlocks(ctx, from, to) },
		func(from, to int) (pace, error) { return managed.runBlockBurst(ctx, m, from, to) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	if err := managed.pausePool(ctx, nil); err != nil {
		return err
	}
	replaced := o.blocks * 3 / 10
	err = compareTurns(replaced, "of them replaced", t,
		func(from, to int) (pace, error) { return bare.runBareReplacements(ctx, from, to) },
		func(from, to int) (pace, error) { return managed.replaceBlocks(ctx, m, o.blocks, from, to) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	cpu, err := m.ReadMetric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return err
	}
	t.add("manager CPU", fmt.Sprintf("%.2f ms an allocation", 1000*cpu/float64(o.blocks+replaced)), "")
	planning, err := m.ReadMetric(ctx, "butler_ipam_planning_seconds_total")
	if err != nil {
		return err
	}
	t.add("deciding who gets which block", fmt.Sprintf("%.2f s", planning), fmt.Sprintf("%.1f %% of the manager's CPU", 100*planning/cpu))
	if _, err := measureRest(ctx, m); err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return managed.checkBlocks(ctx, o.blocks, t)
}

// runBareBlocks creates allocations, sets their paused condition, and returns the pace at which a bare client serves
// them.
func (c *clients) runBareBlocks(ctx context.Context, from, to int) (pace, error) {
	if err := c.createBlocks(ctx, from, to); err != nil {
		return pace{}, err
	}
	err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
		return c.setPausedCondition(ctx, &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: blockName(from + i)}})
	})
	if err != nil {
		return pace{}, err
	}
	return c.runBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return c.writeBlock(ctx, blockName(from+i), from+i) })
}

// setPausedCondition sets the condition that a manager sets on a claimant of a paused pool, so that the objects of
// the bare client and of the manager are the same.
func (c *clients) setPausedCondition(ctx context.Context, o client.Object) error {
	paused := newCondition(clusterv1.PausedCondition, "True", clusterv1.PausedReason, metav1.Now().UTC().Format(time.RFC3339))
	paused["message"] = fmt.Sprintf("%s %s/%s is paused; remove its annotation %s to resume", v1alpha1.NetworkPoolKind, namespace, poolName, clusterv1.PausedAnnotation)
	return c.Status().Patch(ctx, o, statusPatch(map[string]any{conditionsField: []any{paused}}))
}

func (c *clients) createBlocks(ctx context.Context, from, to int) error {
	return runEach(ctx, to-from, func(ctx context.Context, i int) error { return c.Create(ctx, newAllocation(from+i, blockName(from+i))) })
}

// runBlockBurst creates allocations in the paused pool, unpauses it, and returns the pace at which they are served.
func (c *clients) runBlockBurst(ctx context.Context, m *framework.Manager, from, to int) (pace, error) {
	if err := c.createBlocks(ctx, from, to); err != nil {
		return pace{}, err
	}
	return c.timeUnpaused(ctx, m, blockFulfilmentMetric, from, to)
}

// timeUnpaused unpauses the pool, returns the pace at which the claimants with indices in [from, to) are served, and
// pauses the pool again.
func (c *clients) timeUnpaused(ctx context.Context, m *framework.Manager, counter string, from, to int) (pace, error) {
	if err := waitForPausedConditions(ctx, m); err != nil {
		return pace{}, err
	}
	out, err := c.runManagedTurn(ctx, m, to-from, func() error {
		if err := c.pausePool(ctx, nil); err != nil {
			return err
		}
		return waitForMetric(ctx, m, counter, float64(to))
	})
	if err != nil {
		return pace{}, err
	}
	return out, c.pausePool(ctx, "")
}

// pausePool sets the annotation that pauses the pool; nil removes it.
func (c *clients) pausePool(ctx context.Context, value any) error {
	return c.Patch(ctx, framework.MakePool(poolName).Namespace(namespace).Obj(),
		metadataPatch(map[string]any{annotationsField: map[string]any{clusterv1.PausedAnnotation: value}}))
}

// runBareReplacements returns the pace at which a bare client replaces allocations.
func (c *clients) runBareReplacements(ctx context.Context, from, to int) (pace, error) {
	return c.runBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return c.replaceBlock(ctx, from+i) })
}

// replaceBlocks deletes some of n allocations and creates others, and returns the pace at which the manager releases
// and serves them all.
func (c *clients) replaceBlocks(ctx context.Context, m *framework.Manager, n, from, to int) (pace, error) {
	return c.runManagedTurn(ctx, m, to-from, func() error {
		err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
			if err := c.Delete(ctx, newAllocation(from+i, blockName(from+i))); err != nil {
				return err
			}
			return c.Create(ctx, newAllocation(from+i+1, "again-"+blockName(from+i)))
		})
		if err != nil {
			return err
		}
		if err := waitForMetric(ctx, m, blockFulfilmentMetric, float64(n+to)); err != nil {
			return err
		}
		return waitForMetric(ctx, m, "butler_ipam_releases_total", float64(to))
	})
}

// checkBlocks counts the addresses that two allocations have.
func (c *clients) checkBlocks(ctx context.Context, n int, t *table) error {
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
	bad := (&invariants.History{}).CheckMoment(pools.Objects{Allocations: list.Items})
	t.add("addresses that two allocations have", fmt.Sprint(len(bad)), strings.Join(bad, "; "))
	return nil
}

// createTenantCluster creates the Cluster that the allocations are for.
func (c *clients) createTenantCluster(ctx context.Context) error {
	return c.Create(ctx, &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	})
}

// writeBlock does the writes of the manager for an allocation: the record, the status and the event.
func (c *clients) writeBlock(ctx context.Context, name string, i int) error {
	first := fmt.Sprintf("10.%d.%d.", i/1024, i/4%256)
	from := i % 4 * 64
	r, err := poolutil.ParseRange(fmt.Sprintf("%s%d-%s%d", first, from, first, from+int(blockSize(i))-1))
	if err != nil {
		return err
	}
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Patch(ctx, o, metadataPatch(map[string]any{
		finalizersField:  []string{v1alpha1.IPAllocationFinalizer},
		annotationsField: map[string]string{v1alpha1.AddressAnnotation: poolutil.FormatRange(r)},
	})); err != nil {
		return err
	}
	now := metav1.Now().UTC().Format(time.RFC3339)
	ready, overlap := newCondition("Ready", "True", "Ready", now), newCondition("Overlap", "False", "NoOverlap", now)
	ready["message"], overlap["message"] = "allocated "+r.String(), "nobody else has any of these addresses"
	if err := c.Status().Patch(ctx, o, statusPatch(map[string]any{
		"phase": v1alpha1.AllocationAllocated, "cidr": poolutil.FormatRange(r), "startAddress": r.From().String(), "endAddress": r.To().String(),
		"addresses": poolutil.Enumerate(r), "allocatedCount": poolutil.Size(r), "allocatedAt": now, "allocatedBy": v1alpha1.AllocatedBy, "observedGeneration": 1,
		conditionsField: []any{ready, overlap},
	})); err != nil {
		return err
	}
	return c.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: name + "-"}, EventTime: metav1.NowMicro(),
		ReportingController: reporter, ReportingInstance: reporter, Action: "Allocate", Reason: "IPsAllocated", Type: "Normal", Note: "allocated " + r.String(),
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IPAllocationKind, Namespace: namespace, Name: name, UID: o.UID},
	})
}

// replaceBlock deletes an allocation, with the writes of the manager, and creates and serves another one.
func (c *clients) replaceBlock(ctx context.Context, i int) error {
	o := newAllocation(i, blockName(i))
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
	name := "again-" + blockName(i)
	if err := c.Create(ctx, newAllocation(i+1, name)); err != nil {
		return err
	}
	return c.writeBlock(ctx, name, i)
}
