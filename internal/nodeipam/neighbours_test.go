package nodeipam

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// A cluster that manages itself has two sites. A holder of one is a neighbour of the other, in whichever process.
func TestWhoIsANeighbour(t *testing.T) {
	own, fleet := Key{}, Key{Namespace: "team", Name: "prod"}
	for name, tc := range map[string]struct {
		holder string
		of     Key
		want   bool
	}{
		"no manager was there":       {"", own, false},
		"the own site, before":       {holderOf("x", own), own, false},
		"the site of the Cluster":    {holderOf("x", fleet), own, true},
		"the own site, of the other": {holderOf("x", own), fleet, true},
		"the same Cluster":           {holderOf("y", fleet), fleet, false},
		"what a person wrote":        {"me", own, false},
	} {
		if got := isNeighbour(tc.holder, tc.of); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Blocks on record of a site that has none are another site's: they stay as they are, in whatever this one commits.
func TestBlocksOfAnotherSiteStay(t *testing.T) {
	block := fence.Open{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-1", UID: "b", For: "c", CIDRs: prefixes("10.4.0.0/23")}
	m := holding(t, "10.0.0.0/16", aNode("a"))
	m.leavesBlocks = true
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 2, Open: []fence.Open{block}}, map[types.UID]*node{"a": seen(aNode("a"), "1", noon)}, noon)
	if m.triedOnce = false; m.lacksBlock(fence.State{Open: []fence.Open{block}}) {
		t.Error("the site takes over for a block of another site")
	}
	m.triedOnce = true
	growth := m.decideBlocks(noon)
	m.listed = growth.next
	if growth.something() {
		t.Errorf("there is something to do about it: %+v", growth.errands)
	}
	m.plan(noon)
	state, p, _ := m.next(noon)
	if p == nil || len(state.InFlight) != 1 {
		t.Fatal("setup")
	}
	for _, o := range state.Open {
		if o.Same(block) {
			return
		}
	}
	t.Errorf("the commit does not have it: %+v", state.Open)
}

// What the site of a Cluster serves is no trouble of the cluster's own site, which has no range for it.
func TestASiteSaysNothingOfItsNeighboursNodes(t *testing.T) {
	m := newMemory(Key{}, 0)
	m.leavesBlocks, m.neighbour = true, true
	served := aNode("a", "10.0.0.0/24")
	served.From = "edge"
	m.takeovers++
	m.tookOver(fence.State{Holder: "me", Term: 1, Seq: 1}, map[types.UID]*node{"a": seen(served, "1", noon), "b": seen(aNode("b"), "1", noon)}, noon)
	m.plan(noon)
	if found := m.report(); found.Foreign != 0 {
		t.Errorf("%d Nodes are foreign", found.Foreign)
	}
	for _, n := range m.notes {
		t.Errorf("%s: %s: %s", n.node, n.reason, n.message)
	}
	m.neighbour = false
	m.reconsider()
	m.plan(noon)
	if found := m.report(); found.Foreign != 1 || len(m.notes) != 2 {
		t.Errorf("without a neighbour, which may have given what a deleted ClusterCIDR had, it says %v", m.notes)
	}
}

// A ClusterCIDR of the own site goes, though one of the same name in the management cluster has blocks here.
func TestBlocksOfAnotherSiteHoldNoNamesake(t *testing.T) {
	m := holding(t, "10.0.0.0/16")
	m.leavesBlocks = true
	m.setOpen([]fence.Open{{Kind: v1alpha1.IPAllocationKind, Name: "prod-pods-4-1", UID: "b", For: "c", CIDRs: prefixes("10.4.0.0/23")}})
	if m.hasBlocks(Object{Ref: podcidr.Ref{Name: "c"}}) {
		t.Error("c waits for the end of another site's block")
	}
}
