package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	blockFulfilment = "butler_ipam_allocation_fulfilment_seconds_count"
	// profiled is how long a part of the burst is profiled.
	profiled = 8 * time.Second
)

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
		if err := each(ctx, n, func(ctx context.Context, i int) error { return c.twoWrites(ctx, blockName(i), i) }); err != nil {
			return err
		}
		took := time.Since(start)
		limit = float64(n) / took.Seconds()
		t.rate(fmt.Sprintf("the two writes of an allocation, bare client, %d of them", n), n, took, 0)
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
	share := make(chan float64, 1)
	go func() { share <- allocatorShare(ctx, m) }()
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
	t.add("planning and free space, of the manager's CPU", fmt.Sprintf("%.1f %%", 100*<-share), "by a profile of the burst")
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

// twoWrites are those of the manager: the record and the status.
func (c *clients) twoWrites(ctx context.Context, name string, i int) error {
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
	return c.Status().Patch(ctx, o, merge(map[string]any{"status": map[string]any{
		"phase": v1alpha1.AllocationAllocated, "cidr": poolutil.FormatRange(r), "startAddress": r.From().String(), "endAddress": r.To().String(),
		"addresses": poolutil.Enumerate(r), "allocatedCount": poolutil.Size(r), "allocatedAt": now, "allocatedBy": v1alpha1.AllocatedBy, "observedGeneration": 1,
		"conditions": []any{ready, overlap},
	}}))
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
	return c.twoWrites(ctx, name, i)
}

// allocatorShare profiles the manager and returns the share of its CPU time that is spent on deciding who
// gets what: planning, the ledger, free space. A manager that serves no profile counts as all of it.
func allocatorShare(ctx context.Context, m *framework.Manager) float64 {
	url := strings.TrimSuffix(m.MetricsURL(), "/metrics") + fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", profiled.Seconds())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 1
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 1
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return 1
	}
	p, err := profile.ParseData(raw)
	if err != nil {
		return 1
	}
	var all, deciding int64
	for _, s := range p.Sample {
		v := s.Value[len(s.Value)-1]
		all += v
		if decides(s) {
			deciding += v
		}
	}
	if all == 0 {
		return 1
	}
	return float64(deciding) / float64(all)
}

// decides tells whether a sample was taken in what decides, not in what reads and writes.
func decides(s *profile.Sample) bool {
	for _, l := range s.Location {
		for _, line := range l.Line {
			for _, name := range []string{"internal/poolutil.", "internal/ledger.", "allocator.(*pool).plan"} {
				if strings.Contains(line.Function.Name, name) {
					return true
				}
			}
		}
	}
	return false
}
