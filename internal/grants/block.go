package grants

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// BlockKind is a kind of objects, some of which are blocks of carved pools.
type BlockKind interface {
	ResourceKind
	// BlockFromObject returns the state of a block, and the carved pool that it belongs to. The block is nil if the
	// object is not a block of a carved pool.
	BlockFromObject(o Object) (*Block, pools.Key)
	// NewBlockObject returns an object that requests a block from the parent of a carved pool. The block must have
	// the prefix pinned if that is valid.
	NewBlockObject(child pools.Key, namespace, name string, from *v1alpha1.Carve, pinned netip.Prefix) Object
	// SetChildPool makes an object a block of a carved pool.
	SetChildPool(o Object, child pools.Key)
}

// Block is the state that a carved pool keeps of the object of one of its blocks. Once observed it never changes,
// except for verifiedTerm.
type Block struct {
	carve.Allocation
	// ParentKey is the pool that the block is carved from.
	ParentKey pools.Key
	// CreatedManually reports whether a user created the object; InOtherNamespace reports whether it is not in the
	// namespace in which the blocks of its pool are created.
	CreatedManually, InOtherNamespace bool
	// verifiedTerm is the term in which a read has shown the block.
	verifiedTerm PoolTerm
}

// PoolTerm is a term of a pool. A pool that is created again under the same name counts its terms from the beginning,
// so a term includes the UID of the pool.
type PoolTerm struct {
	PoolUID types.UID
	Term    int64
}

// ParentPool is the state of the parent pool that a carved pool knows.
type ParentPool struct {
	// NetworkFor returns the network of an address of a block. It is nil if nothing is known of the parent.
	NetworkFor func(a netip.Addr) (prefix int32, gateway string)
	// AddressBits is the number of bits of an address, or 0 if it is not known.
	AddressBits int
	// Problem is why no block can be carved from the parent. It is empty if blocks can be carved.
	Problem string
}

// BlockCount returns the number of known blocks in all namespaces.
func (cp *CarvedPool) BlockCount() int { return len(cp.Blocks) + len(cp.inOtherNamespace) }

// allBlocks returns the known blocks in all namespaces.
func (cp *CarvedPool) allBlocks() []*Block {
	return slices.AppendSeq(slices.Collect(maps.Values(cp.Blocks)), maps.Values(cp.inOtherNamespace))
}

// isWaiting reports whether a block has no prefix and may never get one: a user created or paused it, or it requests
// the addresses that it had before and is refused.
func (b *Block) isWaiting() bool {
	return !b.Prefix.IsValid() && (b.Paused || b.CreatedManually || b.IsRefused())
}

// BlockRequest is a request for a block. The decision was made on the version of the block that it carries.
type BlockRequest struct {
	Verb carve.Verb
	Name string
	// Block is nil for carve.CreateBlock. PinnedPrefix is the prefix that a new block must have; any prefix will do if it
	// is not valid.
	Block        *Block
	PinnedPrefix netip.Prefix
	// Term is the term in which the request was decided.
	Term int64
}

// key returns the key by which the request is retried.
func (r BlockRequest) key() string {
	if r.Block == nil {
		return creation
	}
	return string(r.Block.UID)
}

// IsOpenInStatus reports whether a block is open in a status. A block in another namespace must match by UID as well,
// because the name alone may be that of another block.
func (b *Block) IsOpenInStatus(s *v1alpha1.NetworkPoolStatus) bool {
	return slices.ContainsFunc(s.Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == b.Name && (!b.InOtherNamespace || on.UID == string(b.UID))
	})
}

// IsBlockOpenInStatus reports whether the block of a name is open in a status.
func IsBlockOpenInStatus(s *v1alpha1.NetworkPoolStatus, name string) bool {
	return slices.ContainsFunc(s.Blocks, func(b v1alpha1.CarvedBlock) bool { return b.Allocation == name })
}

// equalBlockAddresses reports whether two entries of status.blocks are equal for the layout.
func equalBlockAddresses(a, b v1alpha1.CarvedBlock) bool {
	return a.Range == b.Range && a.Prefix == b.Prefix && a.Gateway == b.Gateway
}

// equalBlockEntries reports whether two entries of status.blocks are equal apart from their numbers.
func equalBlockEntries(a, b v1alpha1.CarvedBlock) bool {
	return equalBlockAddresses(a, b) && a.Allocation == b.Allocation && a.UID == b.UID && a.Draining == b.Draining
}
