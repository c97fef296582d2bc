package main

import (
	"context"
	"fmt"
	"net/http"
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const leaseFulfilmentMetric = "butler_ipam_lease_fulfilment_seconds_count"

func leaseName(i int) string { return fmt.Sprintf("lease-%05d", i) }

// measureLeases adds the rate at which n leases are served, alternating with a bare client that does the same writes,
// and the response time for the usage of leases.
func measureLeases(ctx context.Context, o options, n int, t *table) error {
	return withControlPlane(ctx, func(bare *clients) error {
		return withControlPlane(ctx, func(managed *clients) error { return compareLeases(ctx, bare, managed, o, n, t) })
	})
}

func compareLeases(ctx context.Context, bare, managed *clients, o options, n int, t *table) error {
	for _, list := range []client.ObjectList{&v1alpha1.IPLeaseList{}, &v1alpha1.NetworkPoolList{}} {
		stop, err := bare.drainWatch(ctx, list)
		if err != nil {
			return err
		}
		defer stop() //nolint:gocritic // two of them, until the measurement ends
	}
	m, err := managed.startManager(ctx, o.manager)
	if err != nil {
		return err
	}
	defer func() { _ = m.Kill() }()
	pool := framework.MakePool(poolName).Namespace(namespace).CIDR("10.0.0.0/16").Annotate(clusterv1.PausedAnnotation, "").Obj()
	pool.Spec.Leases = &v1alpha1.Leases{}
	if err := managed.Create(ctx, pool); err != nil {
		return err
	}
	err = compareTurns(n, "leases", t,
		func(from, to int) (pace, error) { return bare.runBareLeases(ctx, from, to) },
		func(from, to int) (pace, error) { return managed.runLeaseBurst(ctx, m, from, to) })
	if err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	if err := addUsage(ctx, m, n, t); err != nil {
		return err
	}
	if _, err := measureRest(ctx, m); err != nil {
		return fmt.Errorf("%w\n%s", err, m.LogTail(20))
	}
	return managed.checkLeases(ctx, n, t)
}

// addUsage adds the response time of /leases/usage, and the number of requests to the API server that it causes.
func addUsage(ctx context.Context, m *framework.Manager, n int, t *table) error {
	const asked = 200
	before, err := m.ReadActivity(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	for range asked {
		code, text, err := m.GetPath(ctx, "/leases/usage?namespace="+namespace)
		if err != nil {
			return err
		}
		if code != http.StatusOK {
			return fmt.Errorf("/leases/usage: %d %s", code, text)
		}
	}
	took := time.Since(start)
	after, err := m.ReadActivity(ctx)
	if err != nil {
		return err
	}
	t.add(fmt.Sprintf("/leases/usage with %d leases", n), fmt.Sprintf("%.2f ms", 1000*took.Seconds()/asked),
		fmt.Sprintf("mean of %d; %v requests to the API server meanwhile", asked, after.Since(before).Requests))
	return nil
}

func (c *clients) createLeases(ctx context.Context, from, to int) error {
	return runEach(ctx, to-from, func(ctx context.Context, i int) error {
		return c.Create(ctx, framework.MakeLease(namespace, leaseName(from+i)).Pool(poolName).Obj())
	})
}

// runBareLeases creates leases, sets their paused condition, and returns the pace at which a bare client serves them.
func (c *clients) runBareLeases(ctx context.Context, from, to int) (pace, error) {
	if err := c.createLeases(ctx, from, to); err != nil {
		return pace{}, err
	}
	err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
		return c.setPausedCondition(ctx, framework.MakeLease(namespace, leaseName(from+i)).Obj())
	})
	if err != nil {
		return pace{}, err
	}
	return c.runBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return c.writeLease(ctx, from+i) })
}

// runLeaseBurst creates leases in the paused pool, unpauses it, and returns the pace at which they are served.
func (c *clients) runLeaseBurst(ctx context.Context, m *framework.Manager, from, to int) (pace, error) {
	if err := c.createLeases(ctx, from, to); err != nil {
		return pace{}, err
	}
	return c.timeUnpaused(ctx, m, leaseFulfilmentMetric, from, to)
}

// writeLease does the writes of the manager for a lease: the record, the status and the event.
func (c *clients) writeLease(ctx context.Context, i int) error {
	address, name := fmt.Sprintf("10.0.%d.%d", i/256, i%256), leaseName(i)
	o := &v1alpha1.IPLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Patch(ctx, o, metadataPatch(map[string]any{
		finalizersField:  []string{v1alpha1.IPLeaseFinalizer},
		annotationsField: map[string]string{v1alpha1.AddressAnnotation: address},
	})); err != nil {
		return err
	}
	ready := newCondition("Ready", "True", "Allocated", metav1.Now().UTC().Format(time.RFC3339))
	ready["message"] = "allocated " + address
	if err := c.Status().Patch(ctx, o, statusPatch(map[string]any{"address": address, "observedGeneration": 1, conditionsField: []any{ready}})); err != nil {
		return err
	}
	return c.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: name + "-"}, EventTime: metav1.NowMicro(),
		ReportingController: reporter, ReportingInstance: reporter, Action: "Allocate", Reason: "LeaseAllocated", Type: "Normal", Note: "allocated " + address,
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.IPLeaseKind, Namespace: namespace, Name: name, UID: o.UID},
	})
}

// checkLeases counts the addresses that two leases have.
func (c *clients) checkLeases(ctx context.Context, n int, t *table) error {
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
	bad := (&invariants.History{}).CheckMoment(pools.Objects{Leases: list.Items})
	t.add("addresses that two leases have", fmt.Sprint(len(bad)), strings.Join(bad, "; "))
	return nil
}
