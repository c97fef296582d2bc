package nodeipam

import (
	"context"
	"fmt"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// IPAllocationClient reads and writes the IPAllocations of type pods of a Cluster. They are in its namespace, so
// clusterctl move takes them along.
type IPAllocationClient struct {
	Client     client.Client
	Live       client.Reader
	ClusterKey ClusterKey
	// SetLabels labels the IPAllocations that this manager creates as its own.
	SetLabels func(*v1alpha1.IPAllocation)
	// AddClusterFinalizer adds our finalizer to the Cluster, before the Cluster has a block that has to be returned.
	AddClusterFinalizer func(context.Context) error
}

func (a IPAllocationClient) getLive(ctx context.Context, name string) (*v1alpha1.IPAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	out := &v1alpha1.IPAllocation{}
	if err := a.Live.Get(ctx, client.ObjectKey{Namespace: a.ClusterKey.Namespace, Name: name}, out); err != nil {
		return nil, fmt.Errorf("reading IPAllocation %s/%s: %w", a.ClusterKey.Namespace, name, err)
	}
	return out, nil
}

// toBlock returns an IPAllocation as a Block, and reports whether it is a block of the Cluster.
func (a IPAllocationClient) toBlock(o *v1alpha1.IPAllocation) (Block, bool) {
	b, ok := BlockFromAllocation(o)
	return b, ok && o.Namespace == a.ClusterKey.Namespace && o.Spec.TenantClusterRef.NamespacedName() == a.ClusterKey
}

// GetBlock implements BlockClient.
func (a IPAllocationClient) GetBlock(ctx context.Context, name string) (Block, bool, error) {
	live, err := a.getLive(ctx, name)
	if apierrors.IsNotFound(err) {
		return Block{}, false, nil
	}
	if err != nil {
		return Block{}, false, err
	}
	b, ok := a.toBlock(live)
	return b, ok, nil
}

// CreateBlock implements BlockClient.
func (a IPAllocationClient) CreateBlock(ctx context.Context, name string, of podcidr.Ref, from BlockSource, lost fence.OpenRange) (Block, bool, error) {
	if err := a.AddClusterFinalizer(ctx); err != nil {
		return Block{}, false, err
	}
	cluster := v1alpha1.ClusterReference{Namespace: a.ClusterKey.Namespace, Name: a.ClusterKey.Name}
	out := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{
		PoolRef: from.PoolRef, TenantClusterRef: cluster, Type: v1alpha1.PodsAllocation, PrefixLength: ptr.To(int32(from.PrefixLength)),
	}}
	if lost.Name != "" {
		if err := a.checkNotMoved(ctx, lost, from.PoolRef); err != nil {
			return Block{}, false, err
		}
		r := netipx.RangeOfPrefix(lost.CIDRs[0])
		out.Spec.PrefixLength = ptr.To(int32(lost.CIDRs[0].Bits()))
		out.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: r.From().String(), EndAddress: r.To().String()}
	}
	out.Namespace, out.Name, out.Finalizers = a.ClusterKey.Namespace, name, []string{v1alpha1.PodsFinalizer}
	out.Labels = tenancy.LabelsForBlock(tenancy.BlockIdentity{Cluster: cluster, Pool: from.PoolRef, Type: v1alpha1.PodsAllocation, Role: v1alpha1.GrowthRole})
	delete(out.Labels, v1alpha1.ProviderConfigLabel)
	out.Annotations = map[string]string{v1alpha1.ClusterCIDRAnnotation: of.Name}
	a.SetLabels(out)
	timed, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err := a.Client.Create(timed, out)
	if apierrors.IsAlreadyExists(err) { // an earlier request has landed, or it belongs to another writer
		live, err := a.getLive(ctx, name)
		if err != nil {
			return Block{}, false, err
		}
		b, ok := a.toBlock(live)
		return b, ok, nil
	}
	if err != nil {
		return Block{}, false, fmt.Errorf("asking %s %s for a block for pod CIDRs, IPAllocation %s/%s: %w", from.PoolRef.Kind, from.PoolRef.Name, out.Namespace, name, err)
	}
	b, ok := a.toBlock(out)
	return b, ok, nil
}

// checkNotMoved returns an error where clusterctl has moved a block to another management cluster, or may have: if it
// also takes a NetworkPool away, the evidence goes with that. An interrupted move leaves a Cluster behind whose blocks
// are gone. A block that is requested again has another spec than the one that was moved, and clusterctl cannot
// overwrite it with that one, so the move could not be resumed.
func (a IPAllocationClient) checkNotMoved(ctx context.Context, lost fence.OpenRange, ref v1alpha1.PoolReference) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	key := pools.KeyFromPoolReference(a.ClusterKey.Namespace, ref)
	pool, err := key.GetPool(ctx, a.Live)
	if apierrors.IsNotFound(err) && key.Kind == v1alpha1.GlobalNetworkPoolKind {
		return nil // clusterctl moves no GlobalNetworkPool: the IPAllocation reports that it is missing
	}
	if apierrors.IsNotFound(err) { // it may be gone with the block, and with its held addresses
		return fmt.Errorf("%s does not exist, from which IPAllocation %s/%s had addresses that Nodes use: where clusterctl has moved both, resume the move of the namespace; "+
			"else create the pool again, with these addresses in spec.reserved until the IPAllocation exists again", key, a.ClusterKey.Namespace, lost.Name)
	}
	if err != nil {
		return fmt.Errorf("reading %s before IPAllocation %s/%s is requested again: %w", key, a.ClusterKey.Namespace, lost.Name, err)
	}
	if pool.GetAnnotations()[incluster.MovedFromAnnotation] != "" { // clusterctl took its predecessor away, with its held addresses
		return fmt.Errorf("%s was made again in the middle of a move, and from the one before IPAllocation %s/%s had addresses that Nodes use: resume the move of the namespace",
			key, a.ClusterKey.Namespace, lost.Name)
	}
	for _, h := range pool.PoolStatus().Held {
		held, err := poolutil.ParseRange(h.First + "-" + h.Last)
		if err != nil || h.Reason != v1alpha1.MovedReason || h.Namespace != a.ClusterKey.Namespace {
			continue
		}
		if h.Name == lost.Name || held.Overlaps(netipx.RangeOfPrefix(lost.CIDRs[0])) { // it may have had another name when it was moved
			return fmt.Errorf("IPAllocation %s/%s was moved to another management cluster, and Nodes use its addresses: resume the move of the namespace; "+
				"if the other cluster does not use them, release %s-%s with kubectl butler-ipam release-held", h.Namespace, h.Name, h.First, h.Last)
		}
	}
	return nil
}

// AddFinalizer implements BlockClient.
func (a IPAllocationClient) AddFinalizer(ctx context.Context, b Block) error {
	return a.patchFinalizers(ctx, b, func(o *v1alpha1.IPAllocation) bool {
		return o.DeletionTimestamp == nil && controllerutil.AddFinalizer(o, v1alpha1.PodsFinalizer)
	})
}

// RemoveFinalizer implements BlockClient.
func (a IPAllocationClient) RemoveFinalizer(ctx context.Context, b Block) error {
	return a.patchFinalizers(ctx, b, func(o *v1alpha1.IPAllocation) bool {
		return o.DeletionTimestamp != nil && controllerutil.RemoveFinalizer(o, v1alpha1.PodsFinalizer)
	})
}

// patchFinalizers changes the current finalizers of a block, if the IPAllocation still has its UID.
func (a IPAllocationClient) patchFinalizers(ctx context.Context, b Block, change func(*v1alpha1.IPAllocation) bool) error {
	live, err := a.getLive(ctx, b.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	next := live.DeepCopy()
	if live.UID != b.UID || !change(next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err = a.Client.Patch(ctx, next, client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the finalizer of IPAllocation %s/%s: %w", live.Namespace, live.Name, err)
	}
	return nil
}

// DeleteBlock implements BlockClient.
func (a IPAllocationClient) DeleteBlock(ctx context.Context, b Block) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	o := &v1alpha1.IPAllocation{}
	o.Namespace, o.Name = a.ClusterKey.Namespace, b.Name
	err := exact.DeleteWithPreconditions(ctx, a.Client, exact.WithUIDAndVersion(o, b.UID, b.ResourceVersion))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("releasing IPAllocation %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}
