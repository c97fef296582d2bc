package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// Carver is a kind of objects of which some are blocks of carved pools.
type Carver interface {
	Resource
	// BlockOf returns what is remembered of a block, and the pool that it is for; nil: it is none.
	BlockOf(o Object) (*Block, pools.Key)
	// NewBlock is the object that asks a parent for a block, with addresses or any.
	NewBlock(child pools.Key, namespace, name string, from *v1alpha1.Carve, pinned netip.Prefix) Object
}

// Block is what a carved pool remembers of an object that has a block for it. Once observed it never changes but for how
// far work on it is.
type Block struct {
	Namespace, Name string
	UID             types.UID
	Version         string
	Created         time.Time
	// Prefix is what it has, as its parent says; not valid, if that says nothing.
	Prefix netip.Prefix
	// Had is all that it may have: what its record says, and what its status does. After a move there is only the one.
	Had []netipx.IPRange
	// Asked is the prefix length that it asks for, Refusal why it has nothing.
	Asked   int32
	Refusal Refusal
	// Others are its finalizers but ours.
	Others []string
	// ByHand: a user has made it. Protected: our finalizer is on it. Shared: somebody else has some of its addresses.
	ByHand, Protected, Deleting, Shared bool

	work
}

// work is how far work on a block is.
type work struct {
	// verifiedIn is the term in which a read has shown the block.
	verifiedIn int64
	Busy       bool
	Failures   int
	RetryAt    time.Time
}

// CarvedPool is what is remembered of a pool because it is carved from another.
type CarvedPool struct {
	// Blocks are the objects, by name; taken are names that other objects have.
	Blocks map[string]*Block
	taken  map[string]struct{}
	// asking are the names of blocks that are being created. The next one waits until askAfter, where the last could not
	// be, as askErr says.
	asking      []string
	askAfter    time.Time
	askErr      string
	askFailures int
	// next is what the next commit says; drained are the ranges of which nothing is granted.
	next    []v1alpha1.CarvedBlock
	drained map[netip.Prefix]struct{}
	// lack is how many blocks those want that the last plan had nothing for.
	lack carve.Lack
	// Parent is what is known of the parent.
	Parent Parent
	// Todo is what was decided last.
	Todo carve.Decision
	// without is since when the pool has been known not to exist, while it has blocks.
	without time.Time
	// Told is the layout of the pool of which the pools that are carved from it were told.
	Told *poolspec.Layout
}

// Parent is what a carved pool knows of the pool that it is carved from.
type Parent struct {
	// Network returns the network that the addresses of a block live in; nil: nothing is known of the parent.
	Network func(a netip.Addr) (prefix int32, gateway string)
	// Bits is the length of an address, 0 if it is not known.
	Bits int
	// Problem is why nothing can be carved from it.
	Problem string
}

// ObserveBlock feeds a block of this pool. It reports whether the pool has something to do.
func (m *Memory) ObserveBlock(b *Block) bool {
	if m.IsGone(b.UID) {
		return false
	}
	old := m.Carved.Blocks[b.Name]
	if old != nil {
		if old.UID == b.UID {
			if !Newer(b.Version, old.Version) {
				return false
			}
			b.work = old.work
		} else if !Newer(b.Version, old.Version) {
			return false
		}
	}
	if m.Carved.Blocks == nil {
		m.Carved.Blocks = map[string]*Block{}
	}
	m.Carved.Blocks[b.Name] = b
	return true
}

// ForgetBlock feeds the proof that a block is gone.
func (m *Memory) ForgetBlock(uid types.UID, name string) {
	m.gone[uid] = struct{}{}
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		delete(m.Carved.Blocks, name)
	}
}

// Verify notes that a read, which began in a term, has shown a block.
func (m *Memory) Verify(uid types.UID, name string, term int64) {
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		b.verifiedIn = term
	}
}

// isCarved reports whether the pool takes its addresses from another.
func (m *Memory) isCarved() bool { return m.Base != nil && m.Base.PoolSpec().Carve != nil }

// IsOpen reports whether a block is on record as open.
func (m *Memory) IsOpen(name string) bool {
	return m.Base != nil && slices.ContainsFunc(m.Base.PoolStatus().Blocks, func(b v1alpha1.CarvedBlock) bool { return b.Allocation == name })
}

// ChildOf returns the pool that a claimant is a block for, nil if it is none, or not known.
func (m *Memory) ChildOf(uid types.UID) *pools.Key {
	if c := m.Claimants[uid]; c != nil {
		return c.Child
	}
	return nil
}

// OpenRanges are the blocks that are open on record.
func (m *Memory) OpenRanges() (out []netipx.IPRange) {
	if m.Base == nil {
		return nil
	}
	for _, on := range m.Base.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			out = append(out, netipx.RangeOfPrefix(p))
		}
	}
	return out
}

// awaitsBlock reports whether a block is there that is not open yet.
func (m *Memory) awaitsBlock() bool {
	for name, b := range m.Carved.Blocks {
		if !b.Deleting && !m.IsOpen(name) {
			return true
		}
	}
	return false
}
