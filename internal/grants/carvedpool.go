package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// CarvedPool is the state that a pool has because it is carved from another pool.
type CarvedPool struct {
	// Blocks are the observed blocks by name. inOtherNamespace are the blocks in other namespaces: any user may create
	// some there, so only those that are open on record count.
	Blocks           map[string]*Block
	inOtherNamespace map[types.UID]*Block
	// Requests is the progress of the requests for blocks. creatingBlocks are the names of the blocks that are being
	// created, each with the prefix that it must have, or an invalid one; createError is the error of the last attempt.
	Requests       carve.Requests
	creatingBlocks map[string]netip.Prefix
	createError    string
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

	base      *BasePool
	space     *Space
	claimants *Claimants
}

// creation is the key of the requests that create blocks: all of them wait when one fails.
const creation = ""

// nextBlockName returns the first name for a block that no other object has, as far as is known.
func (cp *CarvedPool) nextBlockName(asked map[string]struct{}, at time.Time) string {
	return cp.Requests.NextName(cp.base.Key.Name, at, func(name string) bool {
		_, exists := cp.Blocks[name]
		_, now := asked[name]
		return exists || now || cp.isCreatingBlock(name) || cp.base.IsBlockOpen(name)
	})
}

// BeginBlockRequest records that a request is in flight.
func (cp *CarvedPool) BeginBlockRequest(r BlockRequest) {
	if r.Verb == carve.CreateBlock {
		if cp.creatingBlocks == nil {
			cp.creatingBlocks = map[string]netip.Prefix{}
		}
		cp.creatingBlocks[r.Name] = r.PinnedPrefix
	}
	cp.Requests.Begin(r.key())
}

// EndBlockRequest records the result of a request. It returns when the request is retried, or the zero time if it
// succeeded or its block is gone.
func (cp *CarvedPool) EndBlockRequest(r BlockRequest, err error, now time.Time) (again time.Time) {
	if r.Verb == carve.CreateBlock {
		delete(cp.creatingBlocks, r.Name)
		if cp.createError = ""; err != nil {
			cp.createError = err.Error()
		}
	}
	return cp.Requests.End(r.key(), err, now)
}

func (cp *CarvedPool) isCreatingBlock(name string) bool {
	_, ok := cp.creatingBlocks[name]
	return ok
}

// isPrefixRequested reports whether a block that requests exactly this prefix exists or is being created.
func (cp *CarvedPool) isPrefixRequested(p netip.Prefix) bool {
	for _, pinned := range cp.creatingBlocks {
		if pinned == p {
			return true
		}
	}
	for _, b := range cp.Blocks {
		if b.PinnedPrefix == p && !b.Deleting {
			return true
		}
	}
	return false
}

// HasBlocks reports whether a carved pool has blocks to release before it can be deleted.
func (cp *CarvedPool) HasBlocks() bool {
	if !cp.base.isCarved() {
		return false
	}
	if len(cp.base.Pool.PoolStatus().Blocks) > 0 {
		return true
	}
	for _, b := range cp.Blocks {
		if b.HasFinalizer {
			return true
		}
	}
	return len(cp.creatingBlocks) > 0
}

// ForgetBlock records the proof that a block is gone.
func (cp *CarvedPool) ForgetBlock(uid types.UID, name string) {
	cp.claimants.Gone.Add(uid)
	cp.Requests.Forget(string(uid))
	delete(cp.inOtherNamespace, uid)
	if b := cp.Blocks[name]; b != nil && b.UID == uid {
		delete(cp.Blocks, name)
	}
}

// VerifyBlock records that a read that began in a term has shown a block.
func (cp *CarvedPool) VerifyBlock(uid types.UID, name string, term PoolTerm) {
	if b := cp.Blocks[name]; b != nil && b.UID == uid {
		b.verifiedTerm = term
	}
}

// isWithinOpenBlocks reports whether all of a range is in blocks that are open on record and that, by their
// IPAllocations, belong to this pool alone.
func (cp *CarvedPool) isWithinOpenBlocks(r netipx.IPRange) bool {
	at := r.From()
	for {
		p, ok := cp.openBlockFor(at)
		if !ok || p.Contains(r.To()) {
			return ok
		}
		at = netipx.PrefixLastIP(p).Next()
	}
}

func (cp *CarvedPool) openBlockFor(a netip.Addr) (netip.Prefix, bool) {
	for _, on := range cp.base.Pool.PoolStatus().Blocks {
		if p, err := netip.ParsePrefix(on.Range); err == nil && p.Contains(a) {
			b := cp.Blocks[on.Allocation]
			return p, b != nil && b.Prefix == p && !b.SharesAddresses
		}
	}
	return netip.Prefix{}, false
}

// isAwaitingBlock reports whether a block exists that is not open yet and can be opened.
func (cp *CarvedPool) isAwaitingBlock() bool {
	for name, b := range cp.Blocks {
		if !b.Deleting && b.ParentKey == cp.base.parentKey() && !b.isWaiting() && !cp.base.IsBlockOpen(name) {
			return true
		}
	}
	return false
}

// liveBlockCount returns the number of blocks that are not being deleted and count towards the maximum of the pool.
func (cp *CarvedPool) liveBlockCount() (n int) {
	for _, b := range cp.Blocks {
		if !b.Deleting && !b.IsRefused() && b.ParentKey == cp.base.parentKey() && (!b.CreatedManually || b.Prefix.IsValid()) {
			n++
		}
	}
	return n
}

// IsOutsideBlocks reports whether an address object of a carved pool is in no block that is open on record and
// confirmed by the parent. A restore or a move has created it without its block, and the parent may have granted the
// block to another pool since, which this pool does not observe. Once the block is back, the object belongs to its
// claimant again.
func (cp *CarvedPool) IsOutsideBlocks(a *Address) bool {
	return cp.base.isCarved() && a.IP.IsValid() && !cp.isWithinOpenBlocks(cp.space.Ledger.UnitRange(a.IP))
}

// ResetShortfall clears the shortfall at the start of a reconcile. The plan of that reconcile, if there is one,
// determines the new shortfall.
func (cp *CarvedPool) ResetShortfall() { cp.shortfall = carve.Shortfall{} }

// overlapsOpenBlock reports whether a prefix overlaps an open block, except one that the block with this prefix
// replaces.
func (cp *CarvedPool) overlapsOpenBlock(p netip.Prefix) bool {
	return slices.ContainsFunc(cp.base.Pool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		open, err := netip.ParsePrefix(on.Range)
		return err == nil && open.Overlaps(p) && (open != p || cp.hasBlockPrefix(on.Allocation, p))
	})
}

// isPrefixLost reports whether a prefix is open on record, and its IPAllocation is gone.
func (cp *CarvedPool) isPrefixLost(p netip.Prefix) bool {
	return p.IsValid() && slices.ContainsFunc(cp.base.Pool.PoolStatus().Blocks, func(on v1alpha1.CarvedBlock) bool {
		return on.Range == p.String() && !cp.hasBlockPrefix(on.Allocation, p)
	})
}

// hasBlockPrefix reports whether the IPAllocation of a name has a prefix.
func (cp *CarvedPool) hasBlockPrefix(name string, p netip.Prefix) bool {
	b := cp.Blocks[name]
	return b != nil && b.Prefix == p
}

// isBlockReplaced reports whether another IPAllocation has the prefix of an open block, and the IPAllocation of the
// given name does not have it any more.
func (cp *CarvedPool) isBlockReplaced(name string, p netip.Prefix) bool {
	if cp.hasBlockPrefix(name, p) {
		return false
	}
	for other := range cp.Blocks {
		if cp.hasBlockPrefix(other, p) {
			return true
		}
	}
	return false
}

// allocationBits returns the prefix length of the unit that each claim gets, or 0 if it is not known.
func (cp *CarvedPool) allocationBits() int {
	if n := cp.base.Pool.PoolSpec().AllocationPrefixLength; n != nil {
		return int(*n)
	}
	return cp.Parent.AddressBits
}

// unlistedBlocks returns the known blocks that are not among the listed UIDs.
func (cp *CarvedPool) unlistedBlocks(r BlockKind, listed map[types.UID]struct{}) (out []Object) {
	for _, b := range cp.allBlocks() {
		if _, ok := listed[b.UID]; !ok {
			o := WithName(r.NewObject(), b.Namespace, b.Name)
			o.SetUID(b.UID)
			r.SetPoolRef(o, b.ParentKey)
			r.SetChildPool(o, cp.base.Key)
			out = append(out, o)
		}
	}
	return out
}

// canFinalizePool reports whether the pool is being deleted, and no known object has any of its addresses. As long as
// one has, another holder would have nothing to do.
func (cp *CarvedPool) canFinalizePool() bool {
	return cp.base.Pool.GetDeletionTimestamp() != nil && cp.space.Ledger.Counts().Owners == 0 && !cp.HasBlocks()
}

// SetParent records the state of the parent pool.
func (cp *CarvedPool) SetParent(p ParentPool) { cp.Parent = p }

// TakeLayoutChange reports whether the layout of this pool has changed since the last call, so that its child pools
// have a reason to be reconciled.
func (cp *CarvedPool) TakeLayoutChange() bool {
	changed := cp.LastEnqueuedLayout != cp.space.Layout
	cp.LastEnqueuedLayout = cp.space.Layout
	return changed
}
