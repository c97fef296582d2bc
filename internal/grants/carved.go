package grants

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Carver is a kind of objects of which some are blocks of carved pools.
type Carver interface {
	Resource
	// BlockOf returns what is remembered of a block, and the pool that it is for; nil: it is none.
	BlockOf(o Object) (*Block, pools.Key)
	// NewBlock is the object that asks a parent for a block, with addresses or any.
	NewBlock(child pools.Key, namespace, name string, from *v1alpha1.Carve, pinned netip.Prefix) Object
	// SetChild has an object be a block for a pool.
	SetChild(o Object, child pools.Key)
}

// Block is what a carved pool remembers of an object that has a block for it. Once observed it never changes but for how
// far work on it is.
type Block struct {
	Namespace, Name string
	// Parent is the pool that it is a block of.
	Parent  pools.Key
	UID     types.UID
	Version string
	Created time.Time
	// Prefix is what it has, as its parent says; not valid, if that says nothing.
	Prefix netip.Prefix
	// Had is all that it may have: what its record says, and what its status does. After a move there is only the one.
	Had []netipx.IPRange
	// Asked is the prefix length that it asks for, Pinned just what, if it says so; Refusal is why it has nothing.
	Asked   int32
	Pinned  netip.Prefix
	Refusal Refusal
	// Others are its finalizers but ours.
	Others []string
	// ByHand: a user has made it. Protected: our finalizer is on it. Shared: somebody else has some of its addresses. Moved:
	// clusterctl takes it to another cluster. Abroad: it is not in the namespace where the blocks of its pool are made.
	ByHand, Protected, Deleting, Shared, Paused, Moved, Abroad bool

	work
}

// work is how far work on a block is.
type work struct {
	// verifiedIn is the term in which a read has shown the block.
	verifiedIn Term
	// given: its record came while this manager watched, so what its status says of a refusal is of before that.
	given    bool
	Busy     bool
	Failures int
	RetryAt  time.Time
}

// Term is a term of a pool: one that is made anew under a name counts its terms from the beginning.
type Term struct {
	Pool types.UID
	Term int64
}

// InTerm is the term that a pool is in.
func (m *Memory) InTerm() Term {
	if m.Base == nil {
		return Term{}
	}
	return Term{m.Base.GetUID(), m.Term}
}

// CarvedPool is what is remembered of a pool because it is carved from another.
type CarvedPool struct {
	// Blocks are the objects, by name; taken are names that other objects have, and until when they are not asked for.
	// abroad are those in other namespaces, where anybody may make some: only what is on record as open counts.
	Blocks map[string]*Block
	taken  map[string]time.Time
	abroad map[types.UID]*Block
	// asking are the names of blocks that are being created, each with the addresses it is to have, if just those. The next
	// one waits until askAfter, where the last could not be created, as askErr says.
	asking      map[string]netip.Prefix
	askAfter    time.Time
	askErr      string
	askFailures int
	// next is what the next commit says; drained are the ranges of which nothing is granted.
	next    []v1alpha1.CarvedBlock
	drained map[netip.Prefix]struct{}
	// newBlock is what the next block holds, once it was computed.
	newBlock *newBlock
	// lack is how many blocks those want that the last plan had nothing for.
	lack carve.Lack
	// Parent is what is known of the parent.
	Parent Parent
	// Todo is what was decided last.
	Todo carve.Decision
	// without is since when the pool has been known not to exist, while it has blocks.
	without time.Time
	// recordsAfter is when the next block is ended that is abroad and has a record alone.
	recordsAfter time.Time
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
	if b.Abroad && (old == nil || old.UID != b.UID) && !m.openAs(b.Name, b.UID) {
		if m.Carved.abroad == nil {
			m.Carved.abroad = map[types.UID]*Block{}
		}
		if was := m.Carved.abroad[b.UID]; was == nil || term.Newer(b.Version, was.Version) {
			m.Carved.abroad[b.UID] = b
		}
		return m.Base == nil
	}
	if old != nil {
		if !term.Newer(b.Version, old.Version) {
			return false
		}
		if old.UID == b.UID {
			b.work = old.work
			b.given = b.given || (len(old.Had) == 0 && len(b.Had) > 0)
		}
	}
	if (old == nil || old.UID != b.UID) && len(b.Had) > 0 {
		m.noteArrival(b.Created) // what has addresses of it may come later
	}
	if m.Carved.Blocks == nil {
		m.Carved.Blocks = map[string]*Block{}
	}
	m.Carved.Blocks[b.Name] = b
	m.keepMovedBlock(b)
	return true
}

// openAs reports whether a block is on record as open.
func (m *Memory) openAs(name string, uid types.UID) bool {
	return m.Base != nil && slices.ContainsFunc(m.Base.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == name && on.UID == string(uid)
	})
}

// takeFromAbroad takes the blocks that are on record as open, wherever they are: the manager has moved to another namespace
// since.
func (m *Memory) takeFromAbroad() {
	for uid, b := range m.Carved.abroad {
		if m.openAs(b.Name, uid) && m.Carved.Blocks[b.Name] == nil {
			delete(m.Carved.abroad, uid)
			m.ObserveBlock(b)
		}
	}
}

// keepMovedBlock keeps back what a block has that is being moved to another cluster: nothing is granted from it here, and
// no other is asked for.
func (m *Memory) keepMovedBlock(b *Block) {
	if !b.Moved || b.Parent != m.carvedFrom() {
		return
	}
	for _, r := range b.Had {
		m.holdMoved(ledger.Owner{Kind: v1alpha1.IPAllocationKind, Namespace: b.Namespace, Name: b.Name, UID: b.UID}, r)
	}
}

// ForgetBlock feeds the proof that a block is gone.
func (m *Memory) ForgetBlock(uid types.UID, name string) {
	m.NoteGone(uid)
	delete(m.Carved.abroad, uid)
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		delete(m.Carved.Blocks, name)
	}
}

// Count is how many blocks are known, in every namespace.
func (c *CarvedPool) Count() int { return len(c.Blocks) + len(c.abroad) }

// all are the blocks, in every namespace.
func (c *CarvedPool) all() []*Block {
	return slices.AppendSeq(slices.Collect(maps.Values(c.Blocks)), maps.Values(c.abroad))
}

// known is what is remembered of a block by now, nil if that is gone.
func (m *Memory) known(b *Block) *Block {
	if now := m.Carved.Blocks[b.Name]; now != nil && now.UID == b.UID {
		return now
	}
	return m.Carved.abroad[b.UID]
}

// Verify notes that a read, which began in a term, has shown a block.
func (m *Memory) Verify(uid types.UID, name string, term Term) {
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		b.verifiedIn = term
	}
}

// isCarved reports whether the pool takes its addresses from another.
func (m *Memory) isCarved() bool { return m.Base != nil && m.Base.PoolSpec().Carve != nil }

// carvedFrom is the pool that the pool takes its addresses from, the zero one if none.
func (m *Memory) carvedFrom() pools.Key {
	if m.Base == nil {
		return pools.Key{}
	}
	parent, _ := pools.ParentOf(m.Base)
	return parent
}

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

// hasBlocksOf reports whether all of a range is in blocks that are open on record, and the pool's alone as their
// IPAllocations say.
func (m *Memory) hasBlocksOf(r netipx.IPRange) bool {
	at := r.From()
	for {
		p, is := m.blockOf(at)
		if !is || p.Contains(r.To()) {
			return is
		}
		at = netipx.PrefixLastIP(p).Next()
	}
}

func (m *Memory) blockOf(a netip.Addr) (netip.Prefix, bool) {
	for _, on := range m.Base.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil && p.Contains(a) {
			b := m.Carved.Blocks[on.Allocation]
			return p, b != nil && b.Prefix == p && !b.Shared
		}
	}
	return netip.Prefix{}, false
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

// waits reports whether a block has nothing, and may never have anything: a user has made it, or has paused it, or it asks
// for what it had before and is refused.
func (b *Block) waits() bool {
	return !b.Prefix.IsValid() && (b.Paused || b.ByHand || b.isRefused())
}

// isRefused reports whether a block asks for certain addresses, those that it had before or that a lost one has, and does
// not get them.
func (b *Block) isRefused() bool {
	return !b.Prefix.IsValid() && !b.given && (b.Pinned.IsValid() || len(b.Had) > 0) && b.Refusal != Refusal{}
}

// awaitsBlock reports whether a block is there that is not open yet.
func (m *Memory) awaitsBlock() bool {
	for name, b := range m.Carved.Blocks {
		if !b.Deleting && b.Parent == m.carvedFrom() && !b.waits() && !m.IsOpen(name) {
			return true
		}
	}
	return false
}
