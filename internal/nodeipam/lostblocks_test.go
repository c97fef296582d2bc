package nodeipam

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
)

const firstName, secondName, lostCIDR = "prod-pods-4-1", "prod-pods-4-2", "10.0.0.0/23"

func isPinned(b *Block)    { b.PinnedPrefix = netip.MustParsePrefix(lostCIDR) }
func isRefused(b *Block)   { b.RefusalMessage = "another has it" }
func ofOtherPool(b *Block) { b.PoolRef.Name = "others" }

// newStateLosingBlock returns the state of a holder with a lost block that is open and draining on record, and with the
// given number of Nodes that use it.
func newStateLosingBlock(t *testing.T, nodes int, blocks ...Block) *nodeState {
	t.Helper()
	m := newGrowingState(t, blocks)
	for i := range nodes {
		m.observeNode(newTestNode(string(rune('a'+i)), []string{"10.0.0.0/24", "10.0.1.0/24"}[i]), "2", noon)
	}
	m.blocks.setOpenRanges([]fence.OpenRange{{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: "gone", ClusterCIDRName: "c", Draining: true, CIDRs: prefixes(lostCIDR)}})
	m.blocks.missingNames[firstName] = true
	for _, b := range blocks {
		m.blocks.recordLiveBlock(b, noon)
	}
	return m
}

func withLostCIDR(b *Block) { b.RecordedRanges = recordedRanges(lostCIDR) }

// TestLostBlockTakesAnotherName checks R15: a lost block is requested again, once, and under another name where
// something else has its name by now.
func TestLostBlockTakesAnotherName(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks []Block
		change func(*nodeState)
		want   []string
	}{
		"the name is free":                 {want: []string{"create " + firstName}},
		"no block has it":                  {change: func(m *nodeState) { m.requests.MarkNameTaken(firstName, noon) }, want: []string{"create " + secondName}},
		"a block has it that was restored": {blocks: []Block{newTestBlock(firstName, "10.0.8.0/23")}, want: []string{"create " + secondName}},
		"a watch alone shows that": {
			blocks: []Block{newTestBlock(firstName, "10.0.8.0/23")}, change: func(m *nodeState) { clear(m.blocks.verifiedLive) }, want: []string{"get " + firstName},
		},
		"it was asked for": {blocks: []Block{newTestBlock(firstName, "10.0.8.0/23"), newTestBlock(secondName, "", isPinned)}},
		"it was refused":   {blocks: []Block{newTestBlock(firstName, "10.0.8.0/23"), newTestBlock(secondName, "", isPinned, isRefused)}},
		"its record came back, and its status is to": {blocks: []Block{newTestBlock(firstName, "", withLostCIDR)}},
		"what was asked for is being deleted": {
			blocks: []Block{newTestBlock(firstName, "", isPinned, isDeleted)}, want: []string{"release " + firstName, "create " + secondName},
		},
		"what a restore brought is being deleted": {
			blocks: []Block{newTestBlock(firstName, "10.0.8.0/23", isDeleted), newTestBlock(secondName, "", isPinned, isRefused)}, want: []string{"release " + firstName},
		},
		"its ClusterCIDR is being deleted":                       {change: endRange, want: []string{"create " + firstName}},
		"it was asked for, and its ClusterCIDR is being deleted": {blocks: []Block{newTestBlock(secondName, "", isPinned)}, change: endRange},
		"it was refused, and its ClusterCIDR is being deleted":   {blocks: []Block{newTestBlock(secondName, "", isPinned, isRefused)}, change: endRange},
		"another pool was asked for that":                        {blocks: []Block{newTestBlock(secondName, "", isPinned, ofOtherPool)}, want: []string{"create " + firstName}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newStateLosingBlock(t, 2, tt.blocks...)
			if tt.change != nil {
				tt.change(m)
			}
			requests := m.growth.planBlocks(noon).requests
			expectBlockRequests(t, requestNames(requests), tt.want...)
			for _, e := range requests {
				if e.verb == carve.CreateBlock && (e.lostBlock.Name != firstName || e.lostBlock.CIDRs[0].String() != lostCIDR) {
					t.Errorf("%s is asked for in the place of %+v", e.name, e.lostBlock)
				}
			}
		})
	}
}

func endRange(m *nodeState) {
	for ref, o := range m.ranges.objects {
		o.Closing, o.Range.Closing = true, true
		m.ranges.objects[ref] = o
	}
}

// TestAllLostBlocksAreRequested checks that the bound on the blocks of a Cluster excludes no lost block: replacements,
// and blocks that are denied, do not count.
func TestAllLostBlocksAreRequested(t *testing.T) {
	const third, fourth = "prod-pods-4-3", "prod-pods-4-4"
	first := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: "gone-1", ClusterCIDRName: "c", Draining: true, CIDRs: prefixes(lostCIDR)}
	second := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: secondName, UID: "gone-2", ClusterCIDRName: "c", Draining: true, CIDRs: prefixes("10.0.2.0/23")}
	restored := []Block{newTestBlock(firstName, "10.0.8.0/23"), newTestBlock(secondName, "10.0.10.0/23")}
	for name, tt := range map[string]struct {
		blocks []Block
		open   []fence.OpenRange
		want   []string
	}{
		"two of two":           {restored, []fence.OpenRange{first, second}, []string{"create " + third, "create " + fourth}},
		"the first has come":   {append(restored, newTestBlock(third, lostCIDR, isPinned, withLostCIDR)), []fence.OpenRange{first, second}, []string{"create " + fourth}},
		"one is denied":        {[]Block{newTestBlock(third, "", isRestored, isRefused)}, []fence.OpenRange{first, second}, []string{"create " + firstName, "create " + secondName}},
		"more than may be had": {nil, []fence.OpenRange{first, second, {Kind: first.Kind, Name: third, UID: "forged", ClusterCIDRName: "c", Draining: true, CIDRs: prefixes("10.0.4.0/23")}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newGrowingState(t, tt.blocks)
			for i, at := range []string{"10.0.0.0/24", "10.0.2.0/24", "10.0.4.0/24"} {
				m.observeNode(newTestNode(string(rune('a'+i)), at), "2", noon)
			}
			m.blocks.setOpenRanges(tt.open)
			for _, b := range tt.blocks {
				m.blocks.recordLiveBlock(b, noon)
			}
			for _, on := range tt.open {
				m.blocks.missingNames[on.Name] = true
			}
			expectBlockRequests(t, m.planBlocksOnce(t, noon), tt.want...)
		})
	}
}

// TestLostBlocksAreRequestedBesideRestoredOnes checks that a restore that brings blocks under other names, which no
// Node uses, excludes no lost block either.
func TestLostBlocksAreRequestedBesideRestoredOnes(t *testing.T) {
	const third, fourth = "prod-pods-4-3", "prod-pods-4-4"
	restored := []Block{newTestBlock(firstName, "10.0.8.0/23"), newTestBlock(secondName, "10.0.10.0/23")}
	m := newGrowingState(t, restored)
	m.observeNode(newTestNode("a", "10.0.0.0/24"), "2", noon)
	m.observeNode(newTestNode("b", "10.0.2.0/24"), "2", noon)
	m.observeNode(newTestNode("waits"), "2", noon)
	m.blocks.setOpenRanges([]fence.OpenRange{
		{Kind: v1alpha1.IPAllocationKind, Name: third, UID: "gone-1", ClusterCIDRName: "c", CIDRs: prefixes(lostCIDR)},
		{Kind: v1alpha1.IPAllocationKind, Name: fourth, UID: "gone-2", ClusterCIDRName: "c", CIDRs: prefixes("10.0.2.0/23")},
	})
	m.blocks.missingNames[third], m.blocks.missingNames[fourth] = true, true
	for _, b := range restored {
		m.blocks.recordLiveBlock(b, noon)
	}
	m.planBlocksOnce(t, noon)
	if len(m.record.openRanges) != 2 {
		t.Errorf("more is open than the Cluster may have: %+v", m.record.openRanges)
	}
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "create "+third, "create "+fourth)
}

// TestRequestStaysWhileNodesUseIt checks that a request for addresses that Nodes use stays, also where the record of
// the lost block is lost too, or where a user has made the request.
func TestRequestStaysWhileNodesUseIt(t *testing.T) {
	for name, change := range map[string][]func(*Block){
		"waits": {isPinned}, "is refused": {isPinned, isRefused}, "has a record": {isPinned, withLostCIDR}, "shares them": {isPinned, withLostCIDR, func(b *Block) { b.SharesAddresses = true }},
	} {
		t.Run(name, func(t *testing.T) {
			m := newStateLosingBlock(t, 1, newTestBlock(secondName, "", change...))
			m.blocks.setOpenRanges(nil)
			expectBlockRequests(t, m.planBlocksOnce(t, noon))
			expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(time.Hour)))
		})
	}
}

// TestOpenBlockIsNoReplacement checks that a block that was requested again once, and that is open, counts as no
// replacement: it is deleted with its ClusterCIDR, even if it shares addresses.
func TestOpenBlockIsNoReplacement(t *testing.T) {
	b := newTestBlock(firstName, "", isPinned, withLostCIDR, func(b *Block) { b.SharesAddresses = true })
	m := newGrowingState(t, []Block{b})
	m.blocks.setOpenRanges([]fence.OpenRange{{Kind: v1alpha1.IPAllocationKind, Name: firstName, UID: b.UID, ClusterCIDRName: "c", Draining: true, CIDRs: prefixes(lostCIDR)}})
	m.blocks.recordLiveBlock(b, noon)
	endRange(m)
	expectBlockRequests(t, m.planBlocksOnce(t, noon), "delete "+firstName)
}

// TestNodesCountForSharedBlock checks that Nodes keep counting for a block although another block has the same
// addresses, if that is from another pool, not open, or being deleted.
func TestNodesCountForSharedBlock(t *testing.T) {
	on := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: secondName, UID: "uid-" + secondName, ClusterCIDRName: "d", CIDRs: prefixes(lostCIDR)}
	for name, tt := range map[string]struct {
		other Block
		open  []fence.OpenRange
		used  bool
	}{
		"it has taken them over": {newTestBlock(secondName, lostCIDR, withLostCIDR), []fence.OpenRange{on}, false},
		"of another pool":        {newTestBlock(secondName, lostCIDR, withLostCIDR, ofOtherPool), []fence.OpenRange{on}, true},
		"not open":               {newTestBlock(secondName, lostCIDR, withLostCIDR), nil, true},
		"being deleted":          {newTestBlock(secondName, lostCIDR, withLostCIDR, isDeleted), []fence.OpenRange{on}, true},
		"unprotected":            {newTestBlock(secondName, lostCIDR, withLostCIDR, func(b *Block) { b.HasFinalizer = false }), []fence.OpenRange{on}, true},
	} {
		t.Run(name, func(t *testing.T) {
			denied := newTestBlock(firstName, "", isRefused, withLostCIDR)
			m := newGrowingState(t, []Block{denied, tt.other}, newTestNode("a", "10.0.0.0/24"))
			m.blocks.setOpenRanges(tt.open)
			if got := m.blocks.countBlockUsers(denied) > 0; got != tt.used {
				t.Errorf("it is in use: %v", got)
			}
		})
	}
}

// TestAbandonedRequestIsTakenOver checks that a request that a dead manager has left is work for another one.
func TestAbandonedRequestIsTakenOver(t *testing.T) {
	for name, change := range map[string][]func(*Block){"waits": {isPinned}, "is refused": {isPinned, isRefused}} {
		t.Run(name, func(t *testing.T) {
			m := newGrowingState(t, []Block{newTestBlock(secondName, "", change...)})
			m.recordTermLost(noon, func(time.Duration) time.Duration { return 0 })
			m.term.needsRecordRead, m.term.wasHolder = false, true
			m.takeovers.tryPlan(noon)
			if work, _ := m.takeovers.tryPlan(noon.Add(time.Hour)); !work {
				t.Error("nothing is to be done")
			}
		})
	}
}

// TestLostBlockIsReplaced checks R15: the replacement of a lost block is open from the commit on that no longer lists
// the lost one, and grants what the lost one had left.
func TestLostBlockIsReplaced(t *testing.T) {
	m := newStateLosingBlock(t, 1, newTestBlock(firstName, "10.0.8.0/23"), newTestBlock(secondName, lostCIDR, isPinned))
	m.observeNode(newTestNode("x"), "2", noon)
	m.planBlocksOnce(t, noon)
	first := slices.IndexFunc(m.record.openRanges, func(o fence.OpenRange) bool { return o.CIDRs[0].String() == lostCIDR })
	if len(m.record.openRanges) != 1 || first != 0 || m.record.openRanges[0].Name != secondName || m.record.openRanges[0].Draining {
		t.Fatalf("open is %+v", m.record.openRanges)
	}
	m.planBlocksOnce(t, noon)
	if len(m.grants.byNode) != 1 {
		t.Errorf("%d grants of what is left of it", len(m.grants.byNode))
	}
}

// TestReplacementStaysWhileInUse checks that the replacement of a lost block stays while Nodes have some
// of its addresses, and is deleted after the last of them.
func TestReplacementStaysWhileInUse(t *testing.T) {
	for name, change := range map[string][]func(*Block){"waits": {isPinned}, "is refused": {isPinned, isRefused}} {
		t.Run(name, func(t *testing.T) {
			m := newStateLosingBlock(t, 1, newTestBlock(secondName, "", change...))
			m.requests.MarkNameTaken(firstName, noon)
			m.planBlocksOnce(t, noon)
			expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(time.Hour)))
			m.forgetNode("a", noon.Add(time.Hour))
			m.planBlocksOnce(t, noon.Add(time.Hour))
			expectBlockRequests(t, m.planBlocksOnce(t, noon.Add(2*time.Hour)), "delete "+secondName)
		})
	}
}
