package grants

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Growth decides on the blocks of a carved pool (R13): which it requests, opens, drains and releases.
type Growth struct {
	base       *BasePool
	space      *Space
	term       *TermState
	quarantine *Quarantine
	held       *HeldRanges
	queues     *Queues
	carved     *CarvedPool
	inventory  *Inventory
}

// requestedUnits returns how many consecutive units, addresses or prefixes, a claimant requests.
func (gr *Growth) requestedUnits(c *Claimant) int64 {
	switch s := c.Kind.RequestedShape(gr.inventory, c); {
	case s.PrefixLength > 0:
		return int64(1) << min(max(gr.carved.allocationBits()-s.PrefixLength, 0), 62)
	case s.Count > 0:
		return s.Count
	}
	return 1
}

// addShortfall adds the request of a claimant that finds nothing free to the shortfall of a carved pool.
func (gr *Growth) addShortfall(c *Claimant) {
	if !gr.base.isCarved() {
		return
	}
	switch b := gr.nextBlockCapacity(); {
	case b == nil:
		gr.carved.shortfall.Blocks = 1 // the first block shows how much a block holds
	case b.fitsShape(c.Kind.RequestedShape(gr.inventory, c)):
		gr.carved.shortfall.Add(gr.requestedUnits(c), b.unitCount)
	}
}

// tooLargeRefusal returns the refusal for a claimant that requests more than a block holds. It is nil if the request
// fits, or if the pool is not carved.
func (gr *Growth) tooLargeRefusal(c *Claimant) *Refusal {
	if !gr.base.isCarved() {
		return nil
	}
	if b := gr.nextBlockCapacity(); b == nil || b.fitsShape(c.Kind.RequestedShape(gr.inventory, c)) {
		return nil
	}
	return AllocationFailed("%s is carved in blocks of /%d, which are too small for this request; request less, or name another pool",
		gr.base.Key, gr.base.Pool.PoolSpec().Carve.PrefixLength)
}

// growthRefusal returns the refusal that reports what a carved pool without a free address is waiting for. It is nil
// if the pool is not carved.
func (gr *Growth) growthRefusal() *Refusal {
	carved := gr.base.Pool.PoolSpec().Carve
	if carved == nil {
		return nil
	}
	if gr.carved.createError != "" { // the error may differ with each attempt, and thousands of claims may wait
		return PoolNotReady("%s gets no block: the API server rejects it, as its condition Ready shows", gr.base.Key)
	}
	if refusal := gr.growthBlockedRefusal(); refusal != nil {
		return refusal
	}
	if gr.carved.liveBlockCount() >= int(carved.Blocks.Max) && len(gr.carved.Decision.Open) == 0 && !gr.carved.isAwaitingBlock() {
		return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf(
			"%s has no free address, and as many blocks as its spec.carve.blocks.max allows: %d; raise that, or delete claims", gr.base.Key, carved.Blocks.Max))}
	}
	return PoolNotReady("%s has no free address: a block of /%d of %s is on its way", gr.base.Key, carved.PrefixLength, carved.PoolRef.Name)
}

// growthBlockedRefusal returns the refusal that reports what keeps a carved pool from getting the block that it
// requests. It is nil if nothing does.
func (gr *Growth) growthBlockedRefusal() *Refusal {
	switch c := gr.carved; {
	case c.Parent.Problem != "":
		return PoolNotReady("%s gets no block: %s", gr.base.Key, c.Parent.Problem)
	case c.createError != "":
		return PoolNotReady("%s gets no block, the API server refuses it: %s", gr.base.Key, c.createError)
	}
	for _, name := range slices.Sorted(maps.Keys(gr.carved.Blocks)) {
		switch b := gr.carved.Blocks[name]; {
		case b.Deleting, b.Prefix.IsValid(), b.isWaiting(), b.RefusalMessage == "", b.ParentKey != gr.base.parentKey():
		case b.RefusalReason == ipamv1.IPAddressClaimReadyPoolExhaustedReason:
			return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf(
				"%s gets no block, its IPAllocation %s waits: %s", gr.base.Key, name, b.RefusalMessage))}
		default:
			return PoolNotReady("%s gets no block, its IPAllocation %s is refused: %s", gr.base.Key, name, b.RefusalMessage)
		}
	}
	return nil
}

// blockShortfallReason returns the reason and the message of the condition Ready for a carved pool that cannot get
// the blocks that it wants. Both are empty if it has them, or if they are on their way.
func (gr *Growth) blockShortfallReason() (reason, message string) {
	if !gr.base.isCarved() {
		return "", ""
	}
	switch refusal := gr.growthBlockedRefusal(); {
	case refusal == nil && len(gr.carved.plannedBlocks) == 0 && gr.base.Pool.PoolSpec().Carve.Blocks.Min > 0:
		return v1alpha1.WaitingForBlockReason, gr.growthRefusal().Message
	case refusal == nil:
		return "", ""
	case refusal.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason:
		return v1alpha1.PoolExhaustedReason, refusal.Message
	default:
		return v1alpha1.ParentNotReadyReason, refusal.Message
	}
}

// GrowthCapacity returns how many units, addresses or prefixes, the blocks hold that the pool may still get. It is 0
// if the pool is not carved, or if it gets no block now.
func (gr *Growth) GrowthCapacity() int64 {
	if !gr.base.isCarved() || gr.growthBlockedRefusal() != nil || gr.base.Pool.GetDeletionTimestamp() != nil {
		return 0
	}
	left := max(int64(gr.base.Pool.PoolSpec().Carve.Blocks.Max)-int64(len(gr.carved.plannedBlocks)), 0)
	n := gr.unitsPerBlock()
	if left > 0 && n > math.MaxInt64/left {
		return math.MaxInt64
	}
	return left * n
}

// blockCapacity is how much claimants can get from a block that a carved pool requests, as far as it is known before
// the block exists: the spec may reserve or pre-allocate some of its addresses.
type blockCapacity struct {
	// generation is the generation of the pool, and addressBits is the number of bits of the addresses of its parent,
	// for which the capacity was computed.
	generation  int64
	addressBits int
	freeSpace   *poolutil.Free
	// unitCount is the number of units, addresses or prefixes, in the block.
	unitCount int64
}

// nextBlockCapacity returns the capacity of the next block, or nil if nothing is known of the parent yet.
func (gr *Growth) nextBlockCapacity() *blockCapacity {
	spec, bits := gr.base.Pool.PoolSpec(), gr.carved.Parent.AddressBits
	length := int(spec.Carve.PrefixLength)
	if bits == 0 || length > bits {
		return nil
	}
	if b := gr.carved.nextBlockCapacity; b != nil && b.generation == gr.base.Pool.GetGeneration() && b.addressBits == bits {
		return b
	}
	out := &blockCapacity{generation: gr.base.Pool.GetGeneration(), addressBits: bits, freeSpace: poolutil.NewFree(nil)}
	alone := &v1alpha1.NetworkPoolSpec{
		Carve: spec.Carve, AllocationPrefixLength: spec.AllocationPrefixLength, AllocateReservedIPAddresses: spec.AllocateReservedIPAddresses,
	}
	if layout, errs := poolspec.Compile(alone, exampleBlock(spec.Carve, bits)); len(errs) == 0 {
		out.freeSpace = poolutil.NewFree(layout.Allocatable())
		out.unitCount = out.freeSpace.Prefixes(layout.UnitBits()).Int64()
	}
	gr.carved.nextBlockCapacity = out
	return out
}

// exampleBlock returns a block as the parent may allocate it. If the block is in the network of the parent, it is not
// at an end of that network.
func exampleBlock(c *v1alpha1.Carve, bits int) v1alpha1.CarvedBlock {
	somewhere := map[int]string{32: "64.0.0.0", 128: "4000::"}[bits]
	p := netip.PrefixFrom(netip.MustParseAddr(somewhere), int(c.PrefixLength)).Masked()
	out := v1alpha1.CarvedBlock{Range: p.String()}
	if c.Network == v1alpha1.RoutedNetwork {
		out.Prefix, out.Gateway = poolutil.RoutedNetwork(p, c.Gateway == v1alpha1.LastGateway)
	}
	return out
}

// unitsPerBlock returns how many units, addresses or prefixes, a block holds at most, 0 if that is not known yet.
func (gr *Growth) unitsPerBlock() int64 {
	if b := gr.nextBlockCapacity(); b != nil {
		return b.unitCount
	}
	return 0
}

// fitsShape reports whether a block has room for a shape: for that many consecutive addresses, for a prefix of that
// length, or for any unit.
func (b *blockCapacity) fitsShape(s RangeShape) bool {
	switch {
	case s.PrefixLength > 0:
		return b.freeSpace.Prefixes(s.PrefixLength).Int64() > 0
	case s.Count > 0:
		return b.freeSpace.Largest() >= s.Count
	}
	return b.unitCount > 0
}
