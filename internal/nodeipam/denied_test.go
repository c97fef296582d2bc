package nodeipam

import (
	"testing"
	"time"
)

func isShared(b *Block)   { b.SharesAddresses, b.RecordedRanges = true, recordedRanges("10.9.0.0/23") }
func isRestored(b *Block) { b.RecordedRanges = recordedRanges("10.9.0.0/23") }

// TestUnallocatableBlockIsNotAwaited checks that a block that may never get addresses is not waited for: another one is
// requested, if the Cluster may have more. A block that takes any addresses of the pool, and gets none, is waited for,
// as the next would get none either.
func TestUnallocatableBlockIsNotAwaited(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks []Block
		want   []string
	}{
		"its addresses are another's by now":  {blocks: []Block{newTestBlock(firstName, "", isRestored, isRefused)}, want: []string{"create " + secondName}},
		"some of it is another's":             {blocks: []Block{newTestBlock(firstName, "", isShared)}, want: []string{"create " + secondName}},
		"two are, and there may be two":       {blocks: []Block{newTestBlock(firstName, "", isShared), newTestBlock(secondName, "", isShared)}},
		"it was restored, and is yet to come": {blocks: []Block{newTestBlock(firstName, "", isRestored)}},
		"the pool has none":                   {blocks: []Block{newTestBlock(firstName, "", isRefused)}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newGrowingState(t, tt.blocks, newTestNode("a"))
			expectBlockRequests(t, m.planBlocksOnce(t, noon), tt.want...)
		})
	}
}

// TestStatusBeforeRecordIsNoRefusal checks that the status of a block whose record comes first is no refusal of that
// record, although it may show for a moment that the pool has nothing.
func TestStatusBeforeRecordIsNoRefusal(t *testing.T) {
	for name, see := range map[string]func(*nodeState, Block){
		"by a watch": func(m *nodeState, b Block) { m.blocks.setBlocks([]Block{b}, noon) },
		"by a read":  func(m *nodeState, b Block) { m.blocks.recordLiveBlock(b, noon) },
		"by a second": func(m *nodeState, b Block) {
			m.blocks.setBlocks([]Block{b}, noon)
			m.blocks.setBlocks([]Block{b}, noon)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newGrowingState(t, []Block{newTestBlock(firstName, "", isRefused)}, newTestNode("a"))
			see(m, newTestBlock(firstName, "", isRefused, isRestored))
			expectBlockRequests(t, m.planBlocksOnce(t, noon))
		})
	}
}

// TestRestoredBlockIsConflicting checks that a block from a restore is reported and stays where Nodes use some of its
// addresses, and another block has them by now.
func TestRestoredBlockIsConflicting(t *testing.T) {
	b := newTestBlock(firstName, "", isRefused, func(b *Block) { b.RecordedRanges = recordedRanges(lostCIDR) })
	m := newGrowingState(t, []Block{b}, newTestNode("a", "10.0.0.0/24"))
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	if got := m.blocks.conflictingBlocks(); len(got) != 1 {
		t.Errorf("contested are %q", got)
	}
	m.forgetNode("a", noon)
	m.planBlocksOnce(t, noon)
	if got := m.blocks.conflictingBlocks(); len(got) != 0 {
		t.Errorf("no Node uses it, and contested are %q", got)
	}
}

// TestRefusalAfterRecordCounts checks that a refusal that comes after the record counts, as the status is no longer
// from before the record.
func TestRefusalAfterRecordCounts(t *testing.T) {
	m := newGrowingState(t, []Block{newTestBlock(firstName, "", isRefused)}, newTestNode("a"))
	m.blocks.recordLiveBlock(newTestBlock(firstName, "", isRefused, isRestored), noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	m.blocks.recordLiveBlock(newTestBlock(firstName, "", isRestored, func(b *Block) { b.RefusalMessage = "the record says 10.9.0.0/23, which another has" }), noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "create "+secondName)
}

// TestIdleDeniedBlockIsDeleted checks that a denied block that no Node uses is deleted after the grace period.
func TestIdleDeniedBlockIsDeleted(t *testing.T) {
	m := newGrowingState(t, []Block{newTestBlock(firstName, "", isRestored, isRefused)})
	expectBlockRequests(t, m.planBlocksOnce(t, noon))
	expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(time.Hour)), "delete "+firstName)
}

// TestReplacedBlockIsNotConflicting checks that a restored block is not reported as contested where another block of
// the Cluster has its addresses.
func TestReplacedBlockIsNotConflicting(t *testing.T) {
	m := newStateLosingBlock(t, 1, newTestBlock(firstName, "", isRefused, withLostCIDR), newTestBlock(secondName, lostCIDR, isPinned, withLostCIDR))
	m.planBlocksOnce(t, noon)
	m.planBlocksOnce(t, noon)
	if got := m.blocks.conflictingBlocks(); len(got) > 0 {
		t.Errorf("contested are %q", got)
	}
}

// TestReplacedDeniedBlockIsReleased checks that a denied block is released once it is deleted, where another block
// of the Cluster has the addresses that Nodes use.
func TestReplacedDeniedBlockIsReleased(t *testing.T) {
	m := newStateLosingBlock(t, 1, newTestBlock(firstName, "", isRefused, withLostCIDR, isDeleted), newTestBlock(secondName, lostCIDR, isPinned, withLostCIDR))
	m.planBlocksOnce(t, noon)
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "release "+firstName)
}
