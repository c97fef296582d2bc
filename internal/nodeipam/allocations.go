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

// Allocations are the IPAllocations of type pods of a Cluster. They are in its namespace, so a move takes them along.
type Allocations struct {
	Client  client.Client
	Live    client.Reader
	Cluster Key
	// Label marks what this manager makes as its own.
	Label func(*v1alpha1.IPAllocation)
	// Hold says on the Cluster that it has something to give back, before it has.
	Hold func(context.Context) error
}

func (a Allocations) read(ctx context.Context, name string) (*v1alpha1.IPAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	out := &v1alpha1.IPAllocation{}
	if err := a.Live.Get(ctx, client.ObjectKey{Namespace: a.Cluster.Namespace, Name: name}, out); err != nil {
		return nil, fmt.Errorf("reading IPAllocation %s/%s: %w", a.Cluster.Namespace, name, err)
	}
	return out, nil
}

// is reports whether an IPAllocation is a block of the Cluster.
func (a Allocations) is(o *v1alpha1.IPAllocation) (Block, bool) {
	b, is := BlockOf(o)
	return b, is && o.Namespace == a.Cluster.Namespace && o.Spec.TenantClusterRef.NamespacedName() == a.Cluster
}

// Look implements Blocks.
func (a Allocations) Look(ctx context.Context, name string) (Block, bool, error) {
	live, err := a.read(ctx, name)
	if apierrors.IsNotFound(err) {
		return Block{}, false, nil
	}
	if err != nil {
		return Block{}, false, err
	}
	b, is := a.is(live)
	return b, is, nil
}

// Ask implements Blocks.
func (a Allocations) Ask(ctx context.Context, name string, of podcidr.Ref, from Source, lost fence.Open) (Block, bool, error) {
	if err := a.Hold(ctx); err != nil {
		return Block{}, false, err
	}
	cluster := v1alpha1.ClusterReference{Namespace: a.Cluster.Namespace, Name: a.Cluster.Name}
	out := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{
		PoolRef: from.Pool, TenantClusterRef: cluster, Type: v1alpha1.PodsAllocation, PrefixLength: ptr.To(int32(from.Length)),
	}}
	if lost.Name != "" {
		if err := a.expectNotMoved(ctx, lost, from.Pool); err != nil {
			return Block{}, false, err
		}
		r := netipx.RangeOfPrefix(lost.CIDRs[0])
		out.Spec.PrefixLength = ptr.To(int32(lost.CIDRs[0].Bits()))
		out.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: r.From().String(), EndAddress: r.To().String()}
	}
	out.Namespace, out.Name, out.Finalizers = a.Cluster.Namespace, name, []string{v1alpha1.PodsFinalizer}
	out.Labels = tenancy.Labels(tenancy.Block{Cluster: cluster, Pool: from.Pool, Type: v1alpha1.PodsAllocation, Role: v1alpha1.GrowthRole})
	delete(out.Labels, v1alpha1.ProviderConfigLabel)
	out.Annotations = map[string]string{v1alpha1.ClusterCIDRAnnotation: of.Name}
	a.Label(out)
	timed, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err := a.Client.Create(timed, out)
	if apierrors.IsAlreadyExists(err) { // an earlier request has come through, or it is somebody else's
		live, err := a.read(ctx, name)
		if err != nil {
			return Block{}, false, err
		}
		b, ours := a.is(live)
		return b, ours, nil
	}
	if err != nil {
		return Block{}, false, fmt.Errorf("asking %s %s for a block for pod CIDRs, IPAllocation %s/%s: %w", from.Pool.Kind, from.Pool.Name, out.Namespace, name, err)
	}
	b, ours := a.is(out)
	return b, ours, nil
}

// expectNotMoved returns an error where clusterctl has moved a block to another management cluster, or may have: with a NetworkPool
// that it takes away goes what says so. A move that was interrupted leaves a Cluster behind whose blocks are gone. One that is asked
// for again has another spec than the block that was moved, over which clusterctl cannot write it, so the move could not be resumed.
func (a Allocations) expectNotMoved(ctx context.Context, lost fence.Open, ref v1alpha1.PoolReference) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	key := pools.KeyOfPool(a.Cluster.Namespace, ref)
	pool, err := key.Get(ctx, a.Live)
	if apierrors.IsNotFound(err) && key.Kind == v1alpha1.GlobalNetworkPoolKind {
		return nil // clusterctl moves none: the IPAllocation says what it lacks
	}
	if apierrors.IsNotFound(err) { // it may be gone with the block, and with what it held
		return fmt.Errorf("%s does not exist, from which IPAllocation %s/%s had addresses that Nodes use: where clusterctl has moved both, resume the move of the namespace; "+
			"else create the pool again, with these addresses in spec.reserved until the IPAllocation exists again", key, a.Cluster.Namespace, lost.Name)
	}
	if err != nil {
		return fmt.Errorf("reading %s before IPAllocation %s/%s is asked for again: %w", key, a.Cluster.Namespace, lost.Name, err)
	}
	if pool.GetAnnotations()[incluster.MovedFromAnnotation] != "" { // it was made in the place of one that clusterctl took away with what it held
		return fmt.Errorf("%s was made again in the middle of a move, and from the one before IPAllocation %s/%s had addresses that Nodes use: resume the move of the namespace",
			key, a.Cluster.Namespace, lost.Name)
	}
	for _, h := range pool.PoolStatus().Held {
		held, err := poolutil.ParseRange(h.First + "-" + h.Last)
		if err != nil || h.Reason != v1alpha1.MovedReason || h.Namespace != a.Cluster.Namespace {
			continue
		}
		if h.Name == lost.Name || held.Overlaps(netipx.RangeOfPrefix(lost.CIDRs[0])) { // it may have had another name when it was moved
			return fmt.Errorf("IPAllocation %s/%s was moved to another management cluster, and Nodes use its addresses: resume the move of the namespace; "+
				"if the other cluster does not use them, release %s-%s with kubectl butler-ipam release-held", h.Namespace, h.Name, h.First, h.Last)
		}
	}
	return nil
}

// Guard implements Blocks.
func (a Allocations) Guard(ctx context.Context, b Block) error {
	return a.finalize(ctx, b, func(o *v1alpha1.IPAllocation) bool {
		return o.DeletionTimestamp == nil && controllerutil.AddFinalizer(o, v1alpha1.PodsFinalizer)
	})
}

// LetGo implements Blocks.
func (a Allocations) LetGo(ctx context.Context, b Block) error {
	return a.finalize(ctx, b, func(o *v1alpha1.IPAllocation) bool {
		return o.DeletionTimestamp != nil && controllerutil.RemoveFinalizer(o, v1alpha1.PodsFinalizer)
	})
}

// finalize changes the finalizers of a block as it is now, if it is the one that is meant.
func (a Allocations) finalize(ctx context.Context, b Block, change func(*v1alpha1.IPAllocation) bool) error {
	live, err := a.read(ctx, b.Name)
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

// Delete implements Blocks.
func (a Allocations) Delete(ctx context.Context, b Block) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	o := &v1alpha1.IPAllocation{}
	o.Namespace, o.Name = a.Cluster.Namespace, b.Name
	err := exact.Delete(ctx, a.Client, exact.As(o, b.UID, b.Version))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("giving back IPAllocation %s/%s: %w", o.Namespace, o.Name, err)
	}
	return nil
}
