package grants

import (
	"fmt"
	"maps"
	"math"
	"slices"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// requestedUnits returns how many consecutive units, addresses or prefixes, a claimant requests.
func (m *PoolState) requestedUnits(c *Claimant) int64 {
	switch s := c.Kind.RequestedShape(m, c); {
	case s.PrefixLength > 0:
		return int64(1) << min(max(m.allocationBits()-s.PrefixLength, 0), 62)
	case s.Count > 0:
		return s.Count
	}
	return 1
}

// addShortfall adds the request of a claimant that finds nothing free to the shortfall of a carved pool.
func (m *PoolState) addShortfall(c *Claimant) {
	if !m.isCarved() {
		return
	}
	switch b := m.nextBlockCapacity(); {
	case b == nil:
		m.Carved.shortfall.Blocks = 1 // the first block shows how much a block holds
	case b.fitsShape(c.Kind.RequestedShape(m, c)):
		m.Carved.shortfall.Add(m.requestedUnits(c), b.unitCount)
	}
}

// tooLargeRefusal returns the refusal for a claimant that requests more than a block holds. It is nil if the request
// fits, or if the pool is not carved.
func (m *PoolState) tooLargeRefusal(c *Claimant) *Refusal {
	if !m.isCarved() {
		return nil
	}
	if b := m.nextBlockCapacity(); b == nil || b.fitsShape(c.Kind.RequestedShape(m, c)) {
		return nil
	}
	return AllocationFailed("%s is carved in blocks of /%d, and one of them has no room for what is asked for; ask for less, or name another pool",
		m.Key, m.BasePool.PoolSpec().Carve.PrefixLength)
}

// growthRefusal returns the refusal that reports what a carved pool without a free address is waiting for. It is nil
// if the pool is not carved.
func (m *PoolState) growthRefusal() *Refusal {
	carved := m.BasePool.PoolSpec().Carve
	if carved == nil {
		return nil
	}
	if m.Carved.createError != "" { // the error may differ with each attempt, and thousands of claims may wait
		return PoolNotReady("%s gets no block: the API server refuses it, as its condition Ready says", m.Key)
	}
	if refusal := m.growthBlockedRefusal(); refusal != nil {
		return refusal
	}
	if m.liveBlockCount() >= int(carved.Blocks.Max) && len(m.Carved.Decision.Open) == 0 && !m.isAwaitingBlock() {
		return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf(
			"%s has no free address, and as many blocks as its spec.carve.blocks.max allows: %d; raise that, or delete claims", m.Key, carved.Blocks.Max))}
	}
	return PoolNotReady("%s has no free address: a block of /%d of %s is on its way", m.Key, carved.PrefixLength, carved.PoolRef.Name)
}

// growthBlockedRefusal returns the refusal that reports what keeps a carved pool from getting the block that it
// requests. It is nil if nothing does.
func (m *PoolState) growthBlockedRefusal() *Refusal {
	switch c := &m.Carved; {
	case c.Parent.Problem != "":
		return PoolNotReady("%s gets no block: %s", m.Key, c.Parent.Problem)
	case c.createError != "":
		return PoolNotReady("%s gets no block, the API server refuses it: %s", m.Key, c.createError)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Carved.Blocks)) {
		switch b := m.Carved.Blocks[name]; {
		case b.Deleting, b.Prefix.IsValid(), b.isWaiting(), b.Refusal == (Refusal{}), b.ParentKey != m.parentKey():
		case b.Refusal.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason:
			return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf(
				"%s gets no block, its IPAllocation %s waits: %s", m.Key, name, b.Refusal.Message))}
		default:
			return PoolNotReady("%s gets no block, its IPAllocation %s is refused: %s", m.Key, name, b.Refusal.Message)
		}
	}
	return nil
}

// liveBlockCount returns the number of blocks that are not being deleted and count towards the maximum of the pool.
func (m *PoolState) liveBlockCount() (n int) {
	for _, b := range m.Carved.Blocks {
		if !b.Deleting && !b.isRefused() && b.ParentKey == m.parentKey() && (!b.CreatedManually || b.Prefix.IsValid()) {
			n++
		}
	}
	return n
}

// blockShortfallReason returns the reason and the message of the condition Ready for a carved pool that cannot get
// the blocks that it wants. Both are empty if it has them, or if they are on their way.
func (m *PoolState) blockShortfallReason() (reason, message string) {
	if !m.isCarved() {
		return "", ""
	}
	switch refusal := m.growthBlockedRefusal(); {
	case refusal == nil && len(m.Carved.plannedBlocks) == 0 && m.BasePool.PoolSpec().Carve.Blocks.Min > 0:
		return v1alpha1.WaitingForBlockReason, m.growthRefusal().Message
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
func (m *PoolState) GrowthCapacity() int64 {
	if !m.isCarved() || m.growthBlockedRefusal() != nil || m.BasePool.GetDeletionTimestamp() != nil {
		return 0
	}
	left := max(int64(m.BasePool.PoolSpec().Carve.Blocks.Max)-int64(len(m.Carved.plannedBlocks)), 0)
	n := m.unitsPerBlock()
	if left > 0 && n > math.MaxInt64/left {
		return math.MaxInt64
	}
	return left * n
}
