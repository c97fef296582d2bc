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
// except for the progress of the work on it.
type Block struct {
	Namespace, Name string
	// ParentKey is the pool that the block is carved from.
	ParentKey       pools.Key
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	// Prefix is the prefix of the block, as the holder of the parent has published it. It is not valid if the parent
	// has published none.
	Prefix netip.Prefix
	// RecordedRanges are all ranges that the block may have: those of its record and of its status. After a move
	// there is only the record.
	RecordedRanges []netipx.IPRange
	// RequestedLength is the prefix length that the block requests, PinnedPrefix is the exact prefix if it requests
	// one, and Refusal is why it has none.
	RequestedLength int32
	PinnedPrefix    netip.Prefix
	Refusal         Refusal
	// OtherFinalizers are the finalizers of the object except ours.
	OtherFinalizers []string
	// CreatedManually reports whether a user created the object; HasFinalizer reports whether our finalizer is on it;
	// SharesAddresses reports whether another object has some of its addresses; Moved reports whether clusterctl is
	// moving it to another cluster; InOtherNamespace reports whether it is not in the namespace in which the blocks
	// of its pool are created.
	CreatedManually, HasFinalizer, Deleting, SharesAddresses, Paused, Moved, InOtherNamespace bool

	blockWork
}

// blockWork is the progress of the work on a block.
type blockWork struct {
	// verifiedTerm is the term in which a read has shown the block.
	verifiedTerm PoolTerm
	// recordArrived reports whether the record of the block appeared while this manager watched. A refusal in its
	// status is older than the record then.
	recordArrived bool
	Busy          bool
	Failures      int
	RetryAt       time.Time
}

// PoolTerm is a term of a pool. A pool that is created again under the same name counts its terms from the beginning,
// so a term includes the UID of the pool.
type PoolTerm struct {
	PoolUID types.UID
	Term    int64
}

// CurrentTerm returns the current term of the pool.
func (m *PoolState) CurrentTerm() PoolTerm {
	if m.BasePool == nil {
		return PoolTerm{}
	}
	return PoolTerm{m.BasePool.GetUID(), m.Term}
}

// CarvedPool is the state that a pool has because it is carved from another pool.
type CarvedPool struct {
	// Blocks are the observed blocks by name. takenNames are the names that other objects have, each with the time
	// until which the pool does not request a block under it. inOtherNamespace are the blocks in other namespaces:
	// any user may create some there, so only those that are open on record count.
	Blocks           map[string]*Block
	takenNames       map[string]time.Time
	inOtherNamespace map[types.UID]*Block
	// creatingBlocks are the names of the blocks that are being created, each with the prefix that it must have, or
	// an invalid one. After a failure the next block is created at createAfter at the earliest; createError is the
	// error of that failure.
	creatingBlocks map[string]netip.Prefix
	createAfter    time.Time
	createError    string
	createFailures int
	// plannedBlocks are the blocks that the next commit writes to the status; drainedPrefixes are the prefixes from
	// which nothing is granted.
	plannedBlocks   []v1alpha1.CarvedBlock
	drainedPrefixes map[netip.Prefix]struct{}
	// nextBlockCapacity is the capacity of the next block, once it was computed.
	nextBlockCapacity *blockCapacity
	// shortfall is how many blocks are missing for the claimants for which the last plan had no address.
	shortfall carve.Shortfall
	// Parent is the state of the parent pool.
	Parent ParentPool
	// Decision is the last decision on the blocks.
	Decision carve.Decision
	// poolMissingSince is since when the pool is known not to exist, while it still has blocks.
	poolMissingSince time.Time
	// recordedBlockReleaseAfter is when the next block in another namespace that has only a record is released.
	recordedBlockReleaseAfter time.Time
	// LastEnqueuedLayout is the layout of this pool for which its child pools were last enqueued.
	LastEnqueuedLayout *poolspec.Layout
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

// ObserveBlock records a block of this pool. It reports whether the pool has something to do.
func (m *PoolState) ObserveBlock(b *Block) bool {
	if m.Has(b.UID) {
		return false
	}
	old := m.Carved.Blocks[b.Name]
	if b.InOtherNamespace && (old == nil || old.UID != b.UID) && !m.isBlockOpenWithUID(b.Name, b.UID) {
		if m.Carved.inOtherNamespace == nil {
			m.Carved.inOtherNamespace = map[types.UID]*Block{}
		}
		if previous := m.Carved.inOtherNamespace[b.UID]; previous == nil || term.IsNewerVersion(b.ResourceVersion, previous.ResourceVersion) {
			m.Carved.inOtherNamespace[b.UID] = b
		}
		return m.BasePool == nil
	}
	if old != nil {
		if !term.IsNewerVersion(b.ResourceVersion, old.ResourceVersion) {
			return false
		}
		if old.UID == b.UID {
			b.blockWork = old.blockWork
			b.recordArrived = b.recordArrived || (len(old.RecordedRanges) == 0 && len(b.RecordedRanges) > 0)
		}
	}
	if (old == nil || old.UID != b.UID) && len(b.RecordedRanges) > 0 {
		m.recordArrival(b.Created) // objects that have addresses of the block may arrive later
	}
	if m.Carved.Blocks == nil {
		m.Carved.Blocks = map[string]*Block{}
	}
	m.Carved.Blocks[b.Name] = b
	m.holdMovedBlock(b)
	return true
}

// isBlockOpenWithUID reports whether the block of a name and a UID is open on record.
func (m *PoolState) isBlockOpenWithUID(name string, uid types.UID) bool {
	return m.BasePool != nil && slices.ContainsFunc(m.BasePool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Allocation == name && on.UID == string(uid)
	})
}

// adoptFromOtherNamespaces adds the blocks in other namespaces that are open on record to the blocks of the pool: the
// manager has moved to another namespace since they were created.
func (m *PoolState) adoptFromOtherNamespaces() {
	for uid, b := range m.Carved.inOtherNamespace {
		if m.isBlockOpenWithUID(b.Name, uid) && m.Carved.Blocks[b.Name] == nil {
			delete(m.Carved.inOtherNamespace, uid)
			m.ObserveBlock(b)
		}
	}
}

// holdMovedBlock holds the addresses of a block that is being moved to another cluster: the pool grants nothing from
// it here, and requests no block in its place.
func (m *PoolState) holdMovedBlock(b *Block) {
	if !b.Moved || b.ParentKey != m.parentKey() {
		return
	}
	for _, r := range b.RecordedRanges {
		m.holdMovedRange(ledger.Owner{Kind: v1alpha1.IPAllocationKind, Namespace: b.Namespace, Name: b.Name, UID: b.UID}, r)
	}
}

// ForgetBlock records the proof that a block is gone.
func (m *PoolState) ForgetBlock(uid types.UID, name string) {
	m.Add(uid)
	delete(m.Carved.inOtherNamespace, uid)
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		delete(m.Carved.Blocks, name)
	}
}

// BlockCount returns the number of known blocks in all namespaces.
func (c *CarvedPool) BlockCount() int { return len(c.Blocks) + len(c.inOtherNamespace) }

// allBlocks returns the known blocks in all namespaces.
func (c *CarvedPool) allBlocks() []*Block {
	return slices.AppendSeq(slices.Collect(maps.Values(c.Blocks)), maps.Values(c.inOtherNamespace))
}

// currentBlock returns the current state of a block, or nil if it is gone.
func (m *PoolState) currentBlock(b *Block) *Block {
	if now := m.Carved.Blocks[b.Name]; now != nil && now.UID == b.UID {
		return now
	}
	return m.Carved.inOtherNamespace[b.UID]
}

// VerifyBlock records that a read that began in a term has shown a block.
func (m *PoolState) VerifyBlock(uid types.UID, name string, term PoolTerm) {
	if b := m.Carved.Blocks[name]; b != nil && b.UID == uid {
		b.verifiedTerm = term
	}
}

// isCarved reports whether the pool takes its addresses from another pool.
func (m *PoolState) isCarved() bool { return m.BasePool != nil && m.BasePool.PoolSpec().Carve != nil }

// parentKey returns the pool that this pool is carved from, or the zero key if it is not carved.
func (m *PoolState) parentKey() pools.Key {
	if m.BasePool == nil {
		return pools.Key{}
	}
	parent, _ := pools.ParentPoolKey(m.BasePool)
	return parent
}

// IsBlockOpen reports whether the block of a name is open on record.
func (m *PoolState) IsBlockOpen(name string) bool {
	return m.BasePool != nil && slices.ContainsFunc(m.BasePool.PoolStatus().Blocks, func(block v1alpha1.CarvedBlock) bool { return block.Allocation == name })
}

// ChildPoolFor returns the carved pool that a claimant is a block of. It is nil if the claimant is not a block, or is
// not known.
func (m *PoolState) ChildPoolFor(uid types.UID) *pools.Key {
	if c := m.Claimants[uid]; c != nil {
		return c.ChildPool
	}
	return nil
}

// isWithinOpenBlocks reports whether all of a range is in blocks that are open on record and that, by their
// IPAllocations, belong to this pool alone.
func (m *PoolState) isWithinOpenBlocks(r netipx.IPRange) bool {
	at := r.From()
	for {
		p, ok := m.openBlockFor(at)
		if !ok || p.Contains(r.To()) {
			return ok
		}
		at = netipx.PrefixLastIP(p).Next()
	}
}

func (m *PoolState) openBlockFor(a netip.Addr) (netip.Prefix, bool) {
	for _, on := range m.BasePool.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil && p.Contains(a) {
			b := m.Carved.Blocks[on.Allocation]
			return p, b != nil && b.Prefix == p && !b.SharesAddresses
		}
	}
	return netip.Prefix{}, false
}

// OpenBlockRanges returns the ranges of the blocks that are open on record.
func (m *PoolState) OpenBlockRanges() (out []netipx.IPRange) {
	if m.BasePool == nil {
		return nil
	}
	for _, on := range m.BasePool.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil {
			out = append(out, netipx.RangeOfPrefix(p))
		}
	}
	return out
}

// isWaiting reports whether a block has no prefix and may never get one: a user created or paused it, or it requests
// the addresses that it had before and is refused.
func (b *Block) isWaiting() bool {
	return !b.Prefix.IsValid() && (b.Paused || b.CreatedManually || b.isRefused())
}

// isRefused reports whether a block requests certain addresses, those that it had before or those of a lost block,
// and is refused.
func (b *Block) isRefused() bool {
	return !b.Prefix.IsValid() && !b.recordArrived && (b.PinnedPrefix.IsValid() || len(b.RecordedRanges) > 0) && b.Refusal != Refusal{}
}

// isAwaitingBlock reports whether a block exists that is not open yet and can be opened.
func (m *PoolState) isAwaitingBlock() bool {
	for name, b := range m.Carved.Blocks {
		if !b.Deleting && b.ParentKey == m.parentKey() && !b.isWaiting() && !m.IsBlockOpen(name) {
			return true
		}
	}
	return false
}
