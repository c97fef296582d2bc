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

// maxBlocks bounds the blocks of one family that a Cluster has of one ClusterCIDR.
const maxBlocks = 256

// BlockSource is the pool that the blocks of a ClusterCIDR come from.
type BlockSource struct {
	PoolRef v1alpha1.PoolReference
	// PrefixLength is the prefix length of a block, which is for NodesPerBlock Nodes. MaxBlocks is how many blocks a
	// Cluster can have.
	PrefixLength, NodesPerBlock, MaxBlocks int
}

// matchesBlock reports whether a block is one that would be requested from the source.
func (s *BlockSource) matchesBlock(b Block) bool {
	return s.PoolRef == b.PoolRef && s.PrefixLength == b.PrefixLength
}

// addBlockSources adds the pools of a ClusterCIDR, and returns what is wrong with them.
func (o *RangeObject) addBlockSources(spec *podcidr.RangeSpec, pools ...*v1alpha1.PodPool) (errs field.ErrorList) {
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
		o.BlockSources[f] = &BlockSource{
			PoolRef:      v1alpha1.PoolReference{Kind: pool.Kind, Name: pool.Name},
			PrefixLength: length, NodesPerBlock: nodes, MaxBlocks: int(ptr.Deref(pool.MaxBlocks, maxBlocks)),
		}
	}
	return errs
}

// Block is an IPAllocation of type pods of a Cluster.
type Block struct {
	podcidr.Ref
	ResourceVersion string
	// ClusterCIDRName names the ClusterCIDR that it is for.
	ClusterCIDRName string
	// PoolRef and PrefixLength are the pool and the size that it requests; PinnedPrefix is the prefix that it requests,
	// where it requests a certain one.
	PoolRef      v1alpha1.PoolReference
	PrefixLength int
	PinnedPrefix netip.Prefix
	// GrantedPrefix is the prefix that it has according to the holder of its pool, and that no other block has; invalid
	// means none.
	GrantedPrefix netip.Prefix
	// PossiblePrefixes are all prefixes that it may have: that of its record, and that of its status.
	PossiblePrefixes []netip.Prefix
	// RefusalMessage is why it has no prefix.
	RefusalMessage string
	// HasFinalizer reports whether our finalizer is on it; Moved reports whether clusterctl moves it to another
	// cluster; Overlapping reports whether another block has some of its addresses.
	Deleting, HasFinalizer, Paused, Moved, Overlapping bool
	// statusOutdated reports whether its record came while this manager knew it, and its status still shows what it
	// showed before that.
	statusOutdated bool
}

// isDenied reports whether a block requests certain addresses, those that it had before or those of a lost one, and
// does not get them: others may replace it.
func (b Block) isDenied() bool {
	return !b.GrantedPrefix.IsValid() && !b.statusOutdated && b.RefusalMessage != "" && (b.PinnedPrefix.IsValid() || len(b.PossiblePrefixes) > 0)
}

// mayNeverGetPrefix reports whether a block must not be waited for.
func (b Block) mayNeverGetPrefix() bool {
	return !b.GrantedPrefix.IsValid() && (b.isDenied() || b.Paused || b.Overlapping)
}

// withHistory returns the block with statusOutdated set, given the block as it was known before.
func (b Block) withHistory(old Block) Block {
	b.statusOutdated = old.UID == b.UID && b.RefusalMessage == old.RefusalMessage && (old.statusOutdated || (len(old.PossiblePrefixes) == 0 && len(b.PossiblePrefixes) > 0))
	return b
}

// BlockFromAllocation returns an IPAllocation as a Block; false means that it is not for pod CIDRs.
func BlockFromAllocation(a *v1alpha1.IPAllocation) (Block, bool) {
	if a.Spec.Type != v1alpha1.PodsAllocation {
		return Block{}, false
	}
	out := Block{
		Ref: podcidr.Ref{Kind: v1alpha1.IPAllocationKind, Name: a.Name, UID: a.UID}, ResourceVersion: a.ResourceVersion,
		ClusterCIDRName: a.Annotations[v1alpha1.ClusterCIDRAnnotation], PoolRef: a.Spec.PoolRef, PrefixLength: int(ptr.Deref(a.Spec.PrefixLength, 0)),
		Deleting: a.DeletionTimestamp != nil, HasFinalizer: slices.Contains(a.Finalizers, v1alpha1.PodsFinalizer), Paused: annotations.HasPaused(a),
	}
	out.Moved = ending.IsMoved(a)
	if pin := a.Spec.PinnedRange; pin != nil {
		if r, err := poolutil.ParseRange(pin.StartAddress + "-" + pin.EndAddress); err == nil {
			out.PinnedPrefix, _ = r.Prefix()
		}
	}
	if condition := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ReadyCondition); condition != nil && condition.Status == metav1.ConditionFalse {
		out.RefusalMessage = condition.Message
	}
	// Every user who can create an IPAllocation can write a record; only the holder writes the status.
	shown, _ := poolutil.ParseRange(a.Status.StartAddress + "-" + a.Status.EndAddress)
	record, _ := poolutil.ParseRange(a.Annotations[v1alpha1.AddressAnnotation])
	for _, r := range []netipx.IPRange{shown, record} {
		if p, ok := r.Prefix(); ok && r.IsValid() {
			out.PossiblePrefixes = append(out.PossiblePrefixes, p)
		}
	}
	out.Overlapping = meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.OverlapCondition)
	if shown.IsValid() && shown == record && !out.Overlapping {
		out.GrantedPrefix, _ = shown.Prefix()
	}
	return out, true
}
