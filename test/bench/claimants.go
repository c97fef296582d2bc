package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// claimantKind is a kind of claimants without an IPAddress: the manager serves each by a record on it, its status and
// an event.
type claimantKind struct {
	kind, finalizer, eventReason string
	list                         client.ObjectList
	// counter is the manager's count of those that it has served.
	counter string
	// newObject returns claimant i, newStatus the status of claimant i and its address or range.
	newObject func(i int) client.Object
	newStatus func(i int) (status map[string]any, address string)
	// check returns an error unless there are n claimants, each has what it asked for, and no two have the same address.
	check func(ctx context.Context, c *clients, n int) error
}

// compareClaimants compares the manager with a bare client at n claimants of a kind. Each has a control plane of its
// own: on that of the bare client no other controller may serve them. more, if not nil, measures more of the two.
func compareClaimants(ctx context.Context, o options, k claimantKind, pool *v1alpha1.NetworkPool, n int, what string, limit float64, t *table,
	more func(bare, managed *clients, m *framework.Manager) error,
) error {
	return withControlPlane(func(bare *clients) error {
		return withControlPlane(func(managed *clients) error {
			for _, c := range []*clients{bare, managed} {
				if err := c.createTenantCluster(ctx); err != nil {
					return err
				}
			}
			if err := bare.drainWatches(ctx, k.list, &v1alpha1.NetworkPoolList{}); err != nil {
				return err
			}
			return managed.withManager(ctx, framework.ManagerOptions{Binary: o.manager, Args: framework.ComponentFlags()}, func(m *framework.Manager) error {
				if err := managed.createPausedPool(ctx, pool); err != nil {
					return err
				}
				create := func(from int) func(context.Context, int) error {
					return func(ctx context.Context, i int) error { return managed.Create(ctx, k.newObject(from+i)) }
				}
				if err := compareTurns(t, fmt.Sprintf("%d %s", n, what), n, turns, limit,
					func(from, to int) (pace, error) { return bare.measureBareClaimants(ctx, k, from, to) },
					func(from, to int) (pace, error) {
						return managed.measureResumedTurn(ctx, m, to-from, create(from), k.counter, to)
					}); err != nil {
					return err
				}
				if more != nil {
					if err := more(bare, managed, m); err != nil {
						return err
					}
				}
				if err := managed.checkRest(ctx, m); err != nil {
					return err
				}
				return k.check(ctx, managed, n)
			})
		})
	})
}

// createTenantCluster creates the Cluster that allocations are for.
func (c *clients) createTenantCluster(ctx context.Context) error {
	return c.Create(ctx, &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"},
		Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 1}},
	})
}

// measureBareClaimants creates claimants, sets the condition that a pause sets, so that they are like those of the
// manager, and returns the pace at which a bare client serves them.
func (c *clients) measureBareClaimants(ctx context.Context, k claimantKind, from, to int) (pace, error) {
	if err := runEach(ctx, to-from, func(ctx context.Context, i int) error {
		o := k.newObject(from + i)
		if err := c.Create(ctx, o); err != nil {
			return err
		}
		message := fmt.Sprintf("%s %s/%s is paused; remove its annotation %s to resume", v1alpha1.NetworkPoolKind, namespace, poolName, clusterv1.PausedAnnotation)
		paused := newCondition(clusterv1.PausedCondition, "True", clusterv1.PausedReason, message)
		return c.Status().Patch(ctx, o, statusPatch(map[string]any{conditionsField: []any{paused}}))
	}); err != nil {
		return pace{}, err
	}
	return c.measureBareTurn(ctx, to-from, func(ctx context.Context, i int) error { return c.writeClaimant(ctx, k, k.newObject(from+i), from+i) })
}

// writeClaimant does the writes of the manager for a claimant.
func (c *clients) writeClaimant(ctx context.Context, k claimantKind, o client.Object, i int) error {
	status, address := k.newStatus(i)
	if err := c.Patch(ctx, o, metadataPatch(map[string]any{
		finalizersField:  []string{k.finalizer},
		annotationsField: map[string]string{v1alpha1.AddressAnnotation: address},
	})); err != nil {
		return err
	}
	if err := c.Status().Patch(ctx, o, statusPatch(status)); err != nil {
		return err
	}
	return c.Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: o.GetName() + "-"}, EventTime: metav1.NowMicro(),
		ReportingController: reporter, ReportingInstance: reporter, Action: "Allocate", Reason: k.eventReason, Type: "Normal", Note: "allocated " + address,
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: k.kind, Namespace: namespace, Name: o.GetName(), UID: o.GetUID()},
	})
}
