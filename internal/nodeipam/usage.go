package nodeipam

import (
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// rangeUsers answers which Nodes use which object: those that have CIDRs of it, and those that may still get them. The
// answer is kept until a Node, a grant or an object changes.
type rangeUsers struct {
	// cache is nil after a change. scans counts how often it was computed.
	cache *rangeUsage
	scans int

	nodes  *knownNodes
	ranges *knownRanges
	grants *nodeGrants
}

// rangeUsage records which Nodes use which object, as found by one pass over all Nodes. It is kept until any of that
// changes: a cluster has thousands of Nodes and hundreds of objects, and each reconcile reads it.
type rangeUsage struct {
	rangeIndex *podcidr.RangeIndex
	// nodesByRange are the names of the Nodes that have CIDRs of an object, or may still get them, sorted;
	// allocatedByRange is how many Nodes count for it.
	nodesByRange     map[podcidr.Ref][]string
	allocatedByRange map[podcidr.Ref]int64
}

// invalidateUsage records that Nodes, grants or objects have changed, so that the usage is computed again.
func (ru *rangeUsers) invalidateUsage() { ru.cache = nil }

// currentUsage returns which Nodes use which object. It costs O(Nodes + grants) after a change.
func (ru *rangeUsers) currentUsage() *rangeUsage {
	if ru.cache != nil {
		return ru.cache
	}
	ru.scans++
	u := &rangeUsage{rangeIndex: podcidr.NewRangeIndex(ru.ranges.validRanges()), nodesByRange: map[podcidr.Ref][]string{}, allocatedByRange: map[podcidr.Ref]int64{}}
	for _, n := range ru.nodes.byUID {
		if len(n.CIDRs) > 0 {
			ru.addNode(u, n.Node)
		}
	}
	named := map[string][]podcidr.Ref{}
	for ref := range ru.ranges.objects {
		named[ref.Name] = append(named[ref.Name], ref)
	}
	for _, g := range ru.grants.byNode {
		if !g.settled {
			ru.addGrant(u, g, named[g.RangeRef.Name])
		}
	}
	for ref, names := range u.nodesByRange {
		slices.Sort(names)
		u.nodesByRange[ref] = slices.Compact(names)
	}
	ru.cache = u
	return u
}

// addNode adds a Node to a usage. Of several objects with the same addresses, the one that the Node names has it. If
// the Node names none of them, all have it, and the first one counts it.
func (ru *rangeUsers) addNode(u *rangeUsage, n *podcidr.Node) {
	if r := ru.ranges.rangeByName(n.ClusterCIDRName, n.CIDRs); r != nil {
		u.nodesByRange[r.Ref] = append(u.nodesByRange[r.Ref], n.Name)
		u.allocatedByRange[r.Ref]++
		return
	}
	for i, r := range u.rangeIndex.OverlappingRanges(n.CIDRs) {
		u.nodesByRange[r.Ref] = append(u.nodesByRange[r.Ref], n.Name)
		if i == 0 {
			u.allocatedByRange[r.Ref]++
		}
	}
}

// addGrant adds a grant from objects of a name to a usage: its Node may still get the CIDRs.
func (ru *rangeUsers) addGrant(u *rangeUsage, g *nodeGrant, of []podcidr.Ref) {
	for _, ref := range of {
		u.nodesByRange[ref] = append(u.nodesByRange[ref], g.Node.Name)
	}
	if ru.ranges.rangeByName(g.RangeRef.Name, g.CIDRs) != nil {
		return
	}
	for _, r := range u.rangeIndex.OverlappingRanges(g.CIDRs) {
		u.nodesByRange[r.Ref] = append(u.nodesByRange[r.Ref], g.Node.Name)
	}
}

// nodesUsing returns the names of the Nodes that have CIDRs of an object, or may still get them, sorted. The caller
// must not modify the result.
func (ru *rangeUsers) nodesUsing(o RangeObject) []string {
	return ru.currentUsage().nodesByRange[o.Ref]
}
