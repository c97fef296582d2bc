package fleetcidr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations,verbs=get;create;patch;delete

// blocks are those that a Cluster has for its Nodes.
func (r *Reconciler) blocks(key nodeipam.Key) []nodeipam.Block {
	var out []nodeipam.Block
	for _, a := range r.Blocks.Pods(key) {
		if b, is := nodeipam.BlockOf(a); is {
			out = append(out, b)
		}
	}
	return out
}

// allocations are the blocks of a Cluster, as the API server has them.
func (r *Reconciler) allocations(key nodeipam.Key) nodeipam.Allocations {
	return nodeipam.Allocations{
		Client: r.Client, Live: r.Live, Cluster: key,
		Label: func(a *v1alpha1.IPAllocation) { guard.Label(a, r.WatchFilter) },
		Hold:  func(ctx context.Context) error { return r.hold(ctx, key) },
	}
}

// hold puts our finalizer on a Cluster: with it go its blocks, when nobody else holds it any more.
func (r *Reconciler) hold(ctx context.Context, key nodeipam.Key) error {
	c := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, c); err != nil {
		return fmt.Errorf("reading Cluster %s before it gets a block: %w", key, err)
	}
	before := c.DeepCopy()
	if c.DeletionTimestamp != nil || !controllerutil.AddFinalizer(c, v1alpha1.TenantNetworkFinalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, c, guard.SinceRead(before)); err != nil {
		return fmt.Errorf("writing the finalizer of Cluster %s before it gets a block: %w", key, err)
	}
	return nil
}

// isLeft reports whether a Cluster is being deleted and nobody else holds it: its machines are gone, and their Nodes with
// them.
func isLeft(c *clusterv1.Cluster) bool {
	return c.DeletionTimestamp != nil && slices.Equal(c.Finalizers, []string{v1alpha1.TenantNetworkFinalizer})
}

// letGoOfBlocks takes our finalizer off the blocks that are being deleted of a Cluster which is gone, and its Nodes with it.
func (r *Reconciler) letGoOfBlocks(ctx context.Context, key nodeipam.Key) error {
	var errs []error
	for _, b := range r.blocks(key) {
		if b.Deleting && b.Protected && !b.Moved {
			errs = append(errs, client.IgnoreNotFound(r.allocations(key).LetGo(ctx, b)))
		}
	}
	return errors.Join(errs...)
}
