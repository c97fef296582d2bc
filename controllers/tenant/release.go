package tenant

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// removeFinalizer removes our finalizer from a block.
func (r *Reconciler) removeFinalizer(ctx context.Context, a *v1alpha1.IPAllocation) error {
	updated := a.DeepCopy()
	if !controllerutil.RemoveFinalizer(updated, tenancy.ProjectionFinalizer(tenancy.ProjectedTo(a))) {
		return nil
	}
	err := r.Client.Patch(ctx, updated, guard.NewOptimisticPatch(a))
	if err == nil {
		r.tracker.forgetBlock(a.UID)
	}
	return client.IgnoreNotFound(err)
}

// releaseDeletedBlocks removes our finalizer from the deleted blocks of a Cluster whose Machines are gone.
func (r *Reconciler) releaseDeletedBlocks(ctx context.Context, all allocations) error {
	for _, a := range all {
		if isAwaitingRelease(a) {
			if err := r.removeFinalizer(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// releaseIfClusterGone does the same for a Cluster that a live read does not find.
func (r *Reconciler) releaseIfClusterGone(ctx context.Context, cluster client.ObjectKey, all allocations) error {
	if !slices.ContainsFunc(all, isAwaitingRelease) {
		return nil
	}
	err := r.Live.Get(ctx, cluster, &clusterv1.Cluster{})
	switch {
	case apierrors.IsNotFound(err):
		return r.releaseDeletedBlocks(ctx, all)
	case err != nil:
		return fmt.Errorf("reading Cluster %s: %w", cluster, err)
	}
	return nil // the cache does not include it, or its watch is behind
}

// isAwaitingRelease reports whether a block was deleted and waits for its Cluster to release it.
func isAwaitingRelease(a *v1alpha1.IPAllocation) bool {
	return !a.DeletionTimestamp.IsZero() && tenancy.IsProjected(a)
}
