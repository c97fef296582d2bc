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

// letGo takes our finalizer off a block.
func (r *Reconciler) letGo(ctx context.Context, a *v1alpha1.IPAllocation) error {
	is := a.DeepCopy()
	if !controllerutil.RemoveFinalizer(is, tenancy.ShownFinalizer(tenancy.ShownTo(a))) {
		return nil
	}
	err := r.Client.Patch(ctx, is, guard.SinceRead(a))
	if err == nil {
		r.notes.forgetBlock(a.UID)
	}
	return client.IgnoreNotFound(err)
}

// end lets go of the blocks of a Cluster whose machines are gone.
func (r *Reconciler) end(ctx context.Context, all allocations) error {
	for _, a := range all {
		if deleting(a) {
			if err := r.letGo(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// endIfGone does so for a Cluster that a live read does not find.
func (r *Reconciler) endIfGone(ctx context.Context, cluster client.ObjectKey, all allocations) error {
	if !slices.ContainsFunc(all, deleting) {
		return nil
	}
	err := r.Live.Get(ctx, cluster, &clusterv1.Cluster{})
	switch {
	case apierrors.IsNotFound(err):
		return r.end(ctx, all)
	case err != nil:
		return fmt.Errorf("reading Cluster %s: %w", cluster, err)
	}
	return nil // it is not ours to see, or its watch is behind
}

// deleting reports whether a block that somebody deleted waits for its Cluster.
func deleting(a *v1alpha1.IPAllocation) bool {
	return !a.DeletionTimestamp.IsZero() && tenancy.Projected(a)
}
