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

// blocksForCluster returns the blocks that a Cluster has for its Nodes.
func (r *Reconciler) blocksForCluster(key nodeipam.ClusterKey) []nodeipam.Block {
	var out []nodeipam.Block
	for _, a := range r.Blocks.PodBlocks(key) {
		// A block in another namespace is not one that the Cluster requested, no matter how it was created.
		if b, ok := nodeipam.BlockFromAllocation(a); ok && a.Namespace == key.Namespace {
			out = append(out, b)
		}
	}
	return out
}

// newAllocationClient returns the client for the blocks of a Cluster.
func (r *Reconciler) newAllocationClient(key nodeipam.ClusterKey) nodeipam.IPAllocationClient {
	return nodeipam.IPAllocationClient{
		Client: r.Client, Live: r.Live, ClusterKey: key,
		SetLabels:           func(a *v1alpha1.IPAllocation) { guard.AddWatchLabel(a, r.WatchFilter) },
		AddClusterFinalizer: func(ctx context.Context) error { return r.addClusterFinalizer(ctx, key) },
	}
}

// addClusterFinalizer adds our finalizer to a Cluster, so that its blocks are deleted with it once no other finalizer
// is left.
func (r *Reconciler) addClusterFinalizer(ctx context.Context, key nodeipam.ClusterKey) error {
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
	if err := r.Client.Patch(ctx, c, guard.NewOptimisticPatch(before)); err != nil {
		return fmt.Errorf("writing the finalizer of Cluster %s before it gets a block: %w", key, err)
	}
	return nil
}
