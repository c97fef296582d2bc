package fleetcidr

import (
	"context"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
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
		// One in another namespace, whoever made it, is none that the Cluster asked for.
		if b, is := nodeipam.BlockOf(a); is && a.Namespace == key.Namespace {
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
	if err := r.Live.Get(ctx, key, c); err != nil {
		return fmt.Errorf("reading Cluster %s before it gets a block: %w", key, err)
	}
	before := c.DeepCopy()
	switch {
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("Cluster %s is being deleted, and gets no more blocks", key) //nolint:staticcheck // it is the name of the kind
	case !controllerutil.AddFinalizer(c, v1alpha1.TenantNetworkFinalizer):
		return nil
	}
	if err := r.Client.Patch(ctx, c, guard.SinceRead(before)); err != nil {
		return fmt.Errorf("writing the finalizer of Cluster %s before it gets a block: %w", key, err)
	}
	return nil
}
