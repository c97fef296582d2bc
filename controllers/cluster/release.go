package cluster

import (
	"context"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
)

// release gives back what a deleted Cluster had, once nobody else holds the Cluster: while its machines
// exist they may still answer for its addresses.
func (r *Reconciler) release(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !slices.Equal(cluster.Finalizers, []string{v1alpha1.TenantNetworkFinalizer}) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	left, err := lookup.BlocksOf(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, a := range left {
		if a.DeletionTimestamp.IsZero() {
			if err := client.IgnoreNotFound(r.Client.Delete(ctx, a, client.Preconditions{UID: &a.UID})); err != nil {
				return reconcile.Result{}, fmt.Errorf("deleting IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
			}
		}
	}
	if len(left) > 0 {
		return reconcile.Result{RequeueAfter: guard.WaitingBackstop}, nil // their end wakes us
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err = r.Client.Patch(ctx, cluster, guard.SinceRead(before))
	return guard.Retry(client.IgnoreNotFound(err), "letting go of the Cluster")
}
