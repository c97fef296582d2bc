package nodeipam

import (
	"math/bits"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
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
	carve.Allocation
	// ClusterCIDRName names the ClusterCIDR that it is for.
	ClusterCIDRName string
}

// mayNeverGetPrefix reports whether a block must not be waited for.
func (b Block) mayNeverGetPrefix() bool {
	return !b.GrantedPrefix().IsValid() && (b.IsRefused() || b.Paused || b.SharesAddresses)
}

// BlockFromAllocation returns an IPAllocation as a Block; false means that it is not for pod CIDRs.
func BlockFromAllocation(a *v1alpha1.IPAllocation) (Block, bool) {
	if a.Spec.Type != v1alpha1.PodsAllocation {
		return Block{}, false
	}
	return Block{Allocation: carve.AllocationFromObject(a, v1alpha1.PodsFinalizer), ClusterCIDRName: a.Annotations[v1alpha1.ClusterCIDRAnnotation]}, true
}
