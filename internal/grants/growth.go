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

// asks is how many addresses, or prefixes, a claimant asks for in a row.
func (m *Memory) asks(c *Claimant) int64 {
	switch s := c.Kind.Shape(m, c); {
	case s.PrefixLength > 0:
		return int64(1) << min(max(m.unitBits()-s.PrefixLength, 0), 62)
	case s.Count > 0:
		return s.Count
	}
	return 1
}

// lacks notes that nothing is free which a claimant would take.
func (m *Memory) lacks(c *Claimant) {
	if !m.isCarved() {
		return
	}
	switch b := m.newBlock(); {
	case b == nil:
		m.Carved.lack.Blocks = 1 // with the first block it is known what one holds
	case b.fits(c.Kind.Shape(m, c)):
		m.Carved.lack.Add(m.asks(c), b.holds)
	}
}

// tooLarge tells that a claimant asks for more than a block holds; nil: it does not, or the pool is not carved.
func (m *Memory) tooLarge(c *Claimant) *Refusal {
	if !m.isCarved() {
		return nil
	}
	if b := m.newBlock(); b == nil || b.fits(c.Kind.Shape(m, c)) {
		return nil
	}
	return Failed("%s is carved in blocks of /%d, and one of them has no room for what is asked for; ask for less, or name another pool",
		m.Key, m.Base.PoolSpec().Carve.PrefixLength)
}

// growth says what a carved pool waits for that has nothing free; nil: it is not carved.
func (m *Memory) growth() *Refusal {
	carved := m.Base.PoolSpec().Carve
	if carved == nil {
		return nil
	}
	if m.Carved.askErr != "" { // what the API server says may be another thing at each try, and thousands may wait
		return NotReady("%s gets no block: the API server refuses it, as its condition Ready says", m.Key)
	}
	if no := m.stuck(); no != nil {
		return no
	}
	if m.blocksAlive() >= int(carved.Blocks.Max) && len(m.Carved.Todo.Open) == 0 && !m.awaitsBlock() {
		return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.Message(fmt.Sprintf(
			"%s has no free address, and as many blocks as its spec.carve.blocks.max allows: %d; raise that, or delete claims", m.Key, carved.Blocks.Max))}
	}
	return NotReady("%s has no free address: a block of /%d of %s is on its way", m.Key, carved.PrefixLength, carved.PoolRef.Name)
}

// stuck says what keeps a carved pool from getting the block that it asks for; nil: nothing.
func (m *Memory) stuck() *Refusal {
	switch c := &m.Carved; {
	case c.Parent.Problem != "":
		return NotReady("%s gets no block: %s", m.Key, c.Parent.Problem)
	case c.askErr != "":
		return NotReady("%s gets no block, the API server refuses it: %s", m.Key, c.askErr)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Carved.Blocks)) {
		switch b := m.Carved.Blocks[name]; {
		case b.Deleting, b.Prefix.IsValid(), b.waits(), b.Refusal == (Refusal{}), b.Parent != m.carvedFrom():
		case b.Refusal.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason:
			return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.Message(fmt.Sprintf(
				"%s gets no block, its IPAllocation %s waits: %s", m.Key, name, b.Refusal.Message))}
		default:
			return NotReady("%s gets no block, its IPAllocation %s is refused: %s", m.Key, name, b.Refusal.Message)
		}
	}
	return nil
}

// blocksAlive counts the blocks that are not being deleted, as they count towards the most that the pool may have.
func (m *Memory) blocksAlive() (n int) {
	for _, b := range m.Carved.Blocks {
		if !b.Deleting && !b.isRefused() && b.Parent == m.carvedFrom() && (!b.ByHand || b.Prefix.IsValid()) {
			n++
		}
	}
	return n
}

// shortOfBlocks says for the condition Ready what keeps a carved pool from having the blocks that it wants; nothing: it
// has them, or they are on their way.
func (m *Memory) shortOfBlocks() (reason, message string) {
	if !m.isCarved() {
		return "", ""
	}
	switch no := m.stuck(); {
	case no == nil && len(m.Carved.next) == 0 && m.Base.PoolSpec().Carve.Blocks.Min > 0:
		return v1alpha1.WaitingForBlockReason, m.growth().Message
	case no == nil:
		return "", ""
	case no.Reason == ipamv1.IPAddressClaimReadyPoolExhaustedReason:
		return v1alpha1.PoolExhaustedReason, no.Message
	default:
		return v1alpha1.ParentNotReadyReason, no.Message
	}
}

// MayGrowBy is how many addresses, or prefixes, the blocks hold that a pool may have yet; 0, where it is not carved, or gets
// none now.
func (m *Memory) MayGrowBy() int64 {
	if !m.isCarved() || m.stuck() != nil || m.Base.GetDeletionTimestamp() != nil {
		return 0
	}
	left := max(int64(m.Base.PoolSpec().Carve.Blocks.Max)-int64(len(m.Carved.next)), 0)
	n := m.perBlock()
	if left > 0 && n > math.MaxInt64/left {
		return math.MaxInt64
	}
	return left * n
}
