package nodeipam

import (
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// mostBlocks bounds the blocks of a family that a Cluster has of one ClusterCIDR.
const mostBlocks = 256

// Source is where the blocks of a ClusterCIDR come from.
type Source struct {
	Pool v1alpha1.PoolReference
	// Length is the prefix length of a block, which is for PerBlock Nodes. Max is how many a Cluster can have.
	Length, PerBlock, Max int
}

// fits reports whether a block is one that would be asked for.
func (s *Source) fits(b Block) bool { return s.Pool == b.Pool && s.Length == b.Length }

// addSources adds the pools of a ClusterCIDR, and reports what is wrong with them.
func (o *Object) addSources(spec *podcidr.Spec, pools ...*v1alpha1.PodPool) (errs field.ErrorList) {
	for f, pool := range pools {
		if pool == nil {
			continue
		}
		nodes := max(int(pool.NodesPerBlock), 1)
		length := [2]int{32, 128}[f] - spec.HostBits[f] - (bits.Len(uint(nodes)) - 1)
		at := field.NewPath("spec", [2]string{"ipv4Pool", "ipv6Pool"}[f])
		if length < 1 {
			errs = append(errs, field.Invalid(at.Child("nodesPerBlock"), nodes, "a block of so many Nodes is larger than all of the family; use fewer, or fewer perNodeHostBits"))
			continue
		}
		spec.Elastic[f] = true
		o.Sources[f] = &Source{
			Pool:   v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name},
			Length: length, PerBlock: nodes, Max: int(ptr.Deref(pool.MaxBlocks, mostBlocks)),
		}
	}
	return errs
}

// Block is an IPAllocation of type pods of a Cluster.
type Block struct {
	podcidr.Ref
	Version string
	// For names the ClusterCIDR that it is for.
	For string
	// Pool and Length are what it asks of whom, Pinned just what, where it says so.
	Pool   v1alpha1.PoolReference
	Length int
	Pinned netip.Prefix
	// Prefix is what it has, as the holder of its pool says, and nobody else has; not valid: nothing.
	Prefix netip.Prefix
	// Had is all that it may have: what its record says, and what its status does.
	Had []netip.Prefix
	// Refused is why it has nothing.
	Refused string
	// Protected: our finalizer is on it. Moved: clusterctl takes it to another cluster. Shared: another has some of what it has.
	Deleting, Protected, Paused, Moved, Shared bool
	// recorded: its record has come while this manager knew it, and its status says still what it said before.
	recorded bool
}

// isDenied reports whether a block asks for certain addresses, those that it had before or that a lost one has, and does not get them:
// others may come in its place.
func (b Block) isDenied() bool {
	return !b.Prefix.IsValid() && !b.recorded && b.Refused != "" && (b.Pinned.IsValid() || len(b.Had) > 0)
}

// mayNeverHaveAny reports whether a block is not to be waited for.
func (b Block) mayNeverHaveAny() bool {
	return !b.Prefix.IsValid() && (b.isDenied() || b.Paused || b.Shared)
}

// after is the block, known to be what it was before.
func (b Block) after(was Block) Block {
	b.recorded = was.UID == b.UID && b.Refused == was.Refused && (was.recorded || (len(was.Had) == 0 && len(b.Had) > 0))
	return b
}

// BlockOf is what an IPAllocation says; false: it is for no Nodes.
func BlockOf(a *v1alpha1.IPAllocation) (Block, bool) {
	if a.Spec.Type != v1alpha1.PodsAllocation {
		return Block{}, false
	}
	out := Block{
		Ref: podcidr.Ref{Kind: v1alpha1.IPAllocationKind, Name: a.Name, UID: a.UID}, Version: a.ResourceVersion,
		For: a.Annotations[v1alpha1.ClusterCIDRAnnotation], Pool: a.Spec.PoolRef, Length: int(ptr.Deref(a.Spec.PrefixLength, 0)),
		Deleting: a.DeletionTimestamp != nil, Protected: slices.Contains(a.Finalizers, v1alpha1.PodsFinalizer), Paused: annotations.HasPaused(a),
	}
	out.Moved = ending.IsMoved(a)
	if pin := a.Spec.PinnedRange; pin != nil {
		if r, err := poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err == nil {
			out.Pinned, _ = r.Prefix()
		}
	}
	if is := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition); is != nil && is.Status == metav1.ConditionFalse {
		out.Refused = is.Message
	}
	// Anybody who can make an IPAllocation can write a record; the status is the holder's.
	shown, _ := poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	record, _ := poolutil.ParseRange(a.Annotations[v1alpha1.AddressAnnotation])
	for _, r := range []netipx.IPRange{shown, record} {
		if p, is := r.Prefix(); is && r.IsValid() {
			out.Had = append(out.Had, p)
		}
	}
	out.Shared = meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.OverlapCondition)
	if shown.IsValid() && shown == record && !out.Shared {
		out.Prefix, _ = shown.Prefix()
	}
	return out, true
}
