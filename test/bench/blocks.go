package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const blockFulfilment = "butler_ipam_allocation_fulfilment_seconds_count"

// blockSize is 1 to 64 addresses, spread evenly.
func blockSize(i int) int32 { return int32(1 + i*37%64) }

func blockOf(i int, name string) *v1alpha1.IPAllocation {
	return framework.MakeAllocation(namespace, name).Pool(poolName).Count(blockSize(i)).Cluster(namespace, "tenant").Obj()
}

func blockName(i int) string { return fmt.Sprintf("block-%05d", i) }

// measureBlocks adds how fast n allocations are served, and 30 % of them replaced by others, against a bare
// client that does the same writes.
func measureBlocks(ctx context.Context, o options, t *table) error {
	n := o.blocks
	churned := n * 3 / 10
	var limit, churnLimit float64
	err := bed(ctx, func(c *clients) error {
		if err := c.tenant(ctx); err != nil {
			return err
		}
		for _, list := range []client.ObjectList{&v1alpha1.IPAllocationList{}, &v1alpha1.NetworkPoolList{}} {
			stop, err := c.drain(ctx, list)
			if err != nil {
				return err
			}
			defer stop() //nolint:gocritic // two of them, until the measurement ends
		}
		if err := each(ctx, n, func(ctx context.Context, i int) error { return c.Create(ctx, blockOf(i, blockName(i))) }); err != nil {
			return err
		}
		start := time.Now()
		if err := each(ctx, n, func(ctx context.Context, i int) error { return c.threeBlockWrites(ctx, blockName(i), i) }); err != nil {
			return err
		}
		took := time.Since(start)
		limit = float64(n) / took.Seconds()
		t.rate(fmt.Sprintf("the three writes of an allocation, bare client, %d of them", n), n, took, 0)
		start = time.Now()
		err := each(ctx, churned, func(ctx context.Context, i int) error { return c.replace(ctx, i) })
		took = time.Since(start)
		churnLimit = float64(churned) / took.Seconds()
		t.rate(fmt.Sprintf("%d of them replaced, bare client", churned), churned, took, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("by a bare client: %w", err)
	}
	return bed(ctx, func(c *clients) error { return c.managerBlocks(ctx, o, limit, churnLimit, t) })
}

func (c *clients) managerBlocks(ctx context.Context, o options, limit, churnLimit float64, t *table) error {
	n := o.blocks
	churned := n * 3 / 10
	if err := c.tenant(ctx); err != nil {
		return err
	}
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/12").Annotate(clusterv1.PausedAnnotation, "").Obj()
	if err := c.Create(ctx, pool); err != nil {
		return err
	}
	if err := each(ctx, n, func(ctx context.Context, i int) error { return c.Create(ctx, blockOf(i, blockName(i))) }); err != nil {
		return err
	}
	m, err := c.manager(ctx, o.manager)
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	if err := c.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return err
	}
	unpaused := pool.DeepCopy()
	delete(unpaused.Annotations, clusterv1.PausedAnnotation)
	before, err := m.Metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return err
	}
	start := time.Now()
	if err := c.Patch(ctx, unpaused, client.MergeFrom(pool)); err != nil {
		return err
	}
	if err := metric(ctx, m, blockFulfilment, float64(n)); err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	took := time.Since(start)
	t.rate(fmt.Sprintf("burst of %d allocations of 1 to 64 addresses", n), n, took, limit)
	start = time.Now()
	err = each(ctx, churned, func(ctx context.Context, i int) error {
		if err := c.Delete(ctx, blockOf(i, blockName(i))); err != nil {
			return err
		}
		return c.Create(ctx, blockOf(i+1, "again-"+blockName(i)))
	})
	if err != nil {
		return err
	}
	if err := metric(ctx, m, blockFulfilment, float64(n+churned)); err != nil {
		return err
	}
	if err := metric(ctx, m, "butler_ipam_releases_total", float64(churned)); err != nil {
		return err
	}
	churn := time.Since(start)
	t.rate(fmt.Sprintf("%d of them replaced", churned), churned, churn, churnLimit)
	after, err := m.Metric(ctx, "process_cpu_seconds_total")
	if err != nil {
		return err
	}
	cpu := after - before
	t.add("manager CPU meanwhile", fmt.Sprintf("%.1f %%", 100*cpu/((took+churn).Seconds()*float64(runtime.NumCPU()))), fmt.Sprintf("of %d cores", runtime.NumCPU()))
	planning, err := m.Metric(ctx, "butler_ipam_planning_seconds_total")
	if err != nil {
		return err
	}
	t.add("deciding who gets which block", fmt.Sprintf("%.2f s", planning), fmt.Sprintf("%.1f %% of the manager's CPU", 100*planning/cpu))
	return c.checkBlocks(ctx, n, t)
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
	bad := (&invariants.History{}).Moment(invariants.Objects{Allocations: list.Items})
	t.add("addresses that two allocations have", fmt.Sprint(len(bad)), strings.Join(bad, "; "))
	return nil
}

// tenant makes the Cluster that the allocations are for.
func (c *clients) tenant(ctx context.Context) error {
	return c.Create(ctx, &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	})
}

// threeBlockWrites are those of the manager: the record, the status and the event.
func (c *clients) threeBlockWrites(ctx context.Context, name string, i int) error {
	first := fmt.Sprintf("10.%d.%d.", i/1024, i/4%256)
	from := i % 4 * 64
	r, err := poolutil.ParseRange(fmt.Sprintf("%s%d-%s%d", first, from, first, from+int(blockSize(i))-1))
	if err != nil {
		return err
	}
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Patch(ctx, o, merge(map[string]any{"metadata": map[string]any{
		"finalizers":  []string{v1alpha1.IPAllocationFinalizer},
		"annotations": map[string]string{v1alpha1.AddressAnnotation: poolutil.FormatRange(r)},
	}})); err != nil {
		return err
	}
	now := metav1.Now().UTC().Format(time.RFC3339)
	ready, overlap := condition("Ready", "True", "Ready", now), condition("Overlap", "False", "NoOverlap", now)
	ready["message"], overlap["message"] = "allocated "+r.String(), "nobody else has any of these addresses"
	if err := c.Status().Patch(ctx, o, merge(map[string]any{"status": map[string]any{
		"phase": v1alpha1.AllocationAllocated, "cidr": poolutil.FormatRange(r), "startAddress": r.From().String(), "endAddress": r.To().String(),
		"addresses": poolutil.Enumerate(r), "allocatedCount": poolutil.Size(r), "allocatedAt": now, "allocatedBy": v1alpha1.AllocatedBy, "observedGeneration": 1,
		"conditions": []any{ready, overlap},
	}})); err != nil {
		return err
	}
	return c.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: name + "-"}, EventTime: metav1.NowMicro(),
		ReportingController: "bench", ReportingInstance: "bench", Action: "Allocate", Reason: "IPsAllocated", Type: "Normal", Note: "allocated " + r.String(),
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IPAllocationKind, Namespace: namespace, Name: name, UID: o.UID},
	})
}

// replace deletes an allocation, with the manager's writes, and has another one served.
func (c *clients) replace(ctx context.Context, i int) error {
	o := blockOf(i, blockName(i))
	if err := c.Delete(ctx, o); err != nil {
		return err
	}
	released := map[string]any{"phase": v1alpha1.AllocationReleased, "releasedAt": metav1.Now().UTC().Format(time.RFC3339)}
	if err := c.Status().Patch(ctx, o, merge(map[string]any{"status": released})); err != nil {
		return err
	}
	if err := c.Patch(ctx, o, merge(map[string]any{"metadata": map[string]any{"finalizers": []string{}}})); err != nil {
		return err
	}
	name := "again-" + blockName(i)
	if err := c.Create(ctx, blockOf(i+1, name)); err != nil {
		return err
	}
	return c.threeBlockWrites(ctx, name, i)
}
