package nodeipam

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestIsPeerHolder checks the two allocators of a cluster that manages itself: the holder ID of one is a peer of the
// other, in whichever process it runs.
func TestIsPeerHolder(t *testing.T) {
	own, fleet := ClusterKey{}, ClusterKey{Namespace: "team", Name: "prod"}
	for name, tc := range map[string]struct {
		holder string
		of     ClusterKey
		want   bool
	}{
		"no manager was there":       {"", own, false},
		"the own site, before":       {holderForCluster("x", own), own, false},
		"the site of the Cluster":    {holderForCluster("x", fleet), own, true},
		"the own site, of the other": {holderForCluster("x", own), fleet, true},
		"the same Cluster":           {holderForCluster("y", fleet), fleet, false},
		"what a person wrote":        {"me", own, false},
	} {
		if got := isPeerHolder(tc.holder, tc.of); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestBlocksOfAnotherAllocatorStay checks that blocks on record stay as they are in whatever an allocator commits that
// manages no blocks: they belong to another allocator.
func TestBlocksOfAnotherAllocatorStay(t *testing.T) {
	block := fence.OpenRange{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-1", UID: "b", ClusterCIDRName: "c", CIDRs: prefixes("10.4.0.0/23")}
	m := newHolderState(t, "10.0.0.0/16", newTestNode("a"))
	m.blocks.ignored = true
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 2, OpenRanges: []fence.OpenRange{block}}, map[types.UID]*nodeEntry{"a": newNodeEntry(newTestNode("a"), "1", noon)}, noon)
	if m.term.wasHolder = false; m.blocks.hasUnknownOpenBlock(fence.State{OpenRanges: []fence.OpenRange{block}}) {
		t.Error("the site takes over for a block of another site")
	}
	m.term.wasHolder = true
	growth := m.growth.planBlocks(noon)
	m.blocks.nextOpen = growth.openBlocks
	if growth.hasRequests() {
		t.Errorf("there is something to do about it: %+v", growth.requests)
	}
	m.planner.planGrants(noon)
	state, p, _ := m.commits.prepareCommit(noon)
	if p == nil || len(state.InFlight) != 1 {
		t.Fatal("setup")
	}
	for _, o := range state.OpenRanges {
		if o.Equal(block) {
			return
		}
	}
	t.Errorf("the commit does not have it: %+v", state.OpenRanges)
}

// TestAllocatorRecordsNoEventsOnNodesOfPeer checks that the cluster's own allocator, which has no range for them,
// records no events on Nodes that the allocator of the Cluster serves.
func TestAllocatorRecordsNoEventsOnNodesOfPeer(t *testing.T) {
	m := newNodeState(ClusterKey{}, 0)
	m.blocks.ignored, m.cluster.hasPeerAllocator = true, true
	served := newTestNode("a", "10.0.0.0/24")
	served.ClusterCIDRName = "edge"
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, map[types.UID]*nodeEntry{"a": newNodeEntry(served, "1", noon), "b": newNodeEntry(newTestNode("b"), "1", noon)}, noon)
	m.planner.planGrants(noon)
	if found := m.reports.buildReport(); found.ForeignNodes != 0 {
		t.Errorf("%d Nodes are foreign", found.ForeignNodes)
	}
	for _, n := range m.events.pending {
		t.Errorf("%s: %s: %s", n.nodeName, n.reason, n.message)
	}
	m.cluster.hasPeerAllocator = false
	m.waiting.requeueRefused()
	m.planner.planGrants(noon)
	if found := m.reports.buildReport(); found.ForeignNodes != 1 || len(m.events.pending) != 2 {
		t.Errorf("without a neighbour, which may have given what a deleted ClusterCIDR had, it says %v", m.events.pending)
	}
}

// TestBlocksOfAnotherAllocatorDoNotBlockDeletion checks that a ClusterCIDR of the cluster's own allocator can be
// deleted although one of the same name in the management cluster has blocks here.
func TestBlocksOfAnotherAllocatorDoNotBlockDeletion(t *testing.T) {
	m := newHolderState(t, "10.0.0.0/16")
	m.blocks.ignored = true
	m.blocks.setOpenRanges([]fence.OpenRange{{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-1", UID: "b", ClusterCIDRName: "c", CIDRs: prefixes("10.4.0.0/23")}})
	if m.blocks.hasBlocks(RangeObject{Ref: podcidr.Ref{Name: "c"}}) {
		t.Error("c waits for the end of another site's block")
	}
}
