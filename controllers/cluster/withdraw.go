package cluster

import (
	"context"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// withdraw ends what a Cluster has of us that has come to want nothing more: what it asked for, then, when a person has
// deleted what it was given, our finalizer, and last the condition, by which it is known that there is something to end. What was
// asked for as that ended is seen by itself.
func (r *Reconciler) withdraw(ctx context.Context, cluster *clusterv1.Cluster, why string) (reconcile.Result, error) {
	if conditionOf(cluster) == nil && !r.asked(cluster) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	has, err := lookup.BlocksOf(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	unanswered, stays := tenancy.Ended(has, why)
	for _, a := range unanswered {
		// It may have been granted since it was read.
		err := exact.Delete(ctx, r.Client, a)
		if client.IgnoreNotFound(err) != nil {
			return guard.Retry(err, fmt.Sprintf("deleting IPAllocation %s, which is wanted no more", client.ObjectKeyFromObject(a)))
		}
	}
	if stays != "" {
		return r.report(ctx, cluster, tenancy.Decision{Action: tenancy.Done, Reason: v1alpha1.AllocationsRemainReason, Message: stays})
	}
	if len(unanswered) > 0 {
		return reconcile.Result{RequeueAfter: guard.WaitingBackstop}, nil // their end wakes us
	}
	if err := r.letGo(ctx, cluster, has); err != nil {
		return guard.Retry(client.IgnoreNotFound(err), "letting go of the Cluster")
	}
	err = r.changeCondition(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Delete(c, v1alpha1.NetworkReadyCondition) })
	return guard.Retry(client.IgnoreNotFound(err), "taking off the condition NetworkReady")
}

// asked reports whether a Cluster has IPAllocations that were made here: growth is, whatever else the Cluster has of us; another
// one is, if the Cluster has our finalizer, which comes before the first.
func (r *Reconciler) asked(cluster *clusterv1.Cluster) bool {
	served := controllerutil.ContainsFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	return slices.ContainsFunc(r.Blocks.Of(client.ObjectKeyFromObject(cluster)), func(a *v1alpha1.IPAllocation) bool {
		return !tenancy.StandingOf(a).Manual && (served || tenancy.Role(a) == v1alpha1.GrowthRole)
	})
}

// letGo takes off a Cluster what was noted there for load balancers.
func (r *Reconciler) letGo(ctx context.Context, cluster *clusterv1.Cluster, has []*v1alpha1.IPAllocation) error {
	next := cluster.DeepCopy()
	changed := tenancy.SetTried(next, v1alpha1.TriedPoolsAnnotation, nil)
	changed = tenancy.SetTried(next, v1alpha1.TriedGrowthPoolsAnnotation, nil) || changed
	ofPods := slices.ContainsFunc(has, func(a *v1alpha1.IPAllocation) bool { return a.Spec.Type == v1alpha1.PodsAllocation })
	if !ofPods && !r.NodesWant(ctx, cluster) {
		changed = controllerutil.RemoveFinalizer(next, v1alpha1.TenantNetworkFinalizer) || changed
	}
	if !changed {
		return nil
	}
	return r.Client.Patch(ctx, next, guard.SinceRead(cluster))
}
