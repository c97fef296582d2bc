package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

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
func (m *nodeState) invalidateUsage() { m.usageCache = nil }

// currentUsage returns which Nodes use which object. It costs O(Nodes + grants) after a change.
func (m *nodeState) currentUsage() *rangeUsage {
	if m.usageCache != nil {
		return m.usageCache
	}
	m.usageScans++
	u := &rangeUsage{rangeIndex: podcidr.NewRangeIndex(m.validRanges()), nodesByRange: map[podcidr.Ref][]string{}, allocatedByRange: map[podcidr.Ref]int64{}}
	for _, n := range m.nodes {
		if len(n.CIDRs) > 0 {
			m.addNode(u, n.Node)
		}
	}
	named := map[string][]podcidr.Ref{}
	for ref := range m.rangeObjects {
		named[ref.Name] = append(named[ref.Name], ref)
	}
	for _, g := range m.grants {
		if !g.settled {
			m.addGrant(u, g, named[g.RangeRef.Name])
		}
	}
	for ref, names := range u.nodesByRange {
		slices.Sort(names)
		u.nodesByRange[ref] = slices.Compact(names)
	}
	m.usageCache = u
	return u
}

// addNode adds a Node. Of several objects with the same addresses, the one that the Node names has it. If the Node
// names none of them, all have it, and the first one counts it.
func (m *nodeState) addNode(u *rangeUsage, n *podcidr.Node) {
	if r := m.rangeByName(n.ClusterCIDRName, n.CIDRs); r != nil {
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

// addGrant adds a grant from objects of a name: its Node may still get the CIDRs.
func (m *nodeState) addGrant(u *rangeUsage, g *nodeGrant, of []podcidr.Ref) {
	for _, ref := range of {
		u.nodesByRange[ref] = append(u.nodesByRange[ref], g.Node.Name)
	}
	if m.rangeByName(g.RangeRef.Name, g.CIDRs) != nil {
		return
	}
	for _, r := range u.rangeIndex.OverlappingRanges(g.CIDRs) {
		u.nodesByRange[r.Ref] = append(u.nodesByRange[r.Ref], g.Node.Name)
	}
}

// nodesUsing returns the names of the Nodes that have CIDRs of an object, or may still get them, sorted. The caller
// must not modify the result.
func (m *nodeState) nodesUsing(o RangeObject) []string { return m.currentUsage().nodesByRange[o.Ref] }

// rangeForNode returns the range that a Node counts for: the one that it names, otherwise the first that overlaps its
// CIDRs.
func (m *nodeState) rangeForNode(n *podcidr.Node) *podcidr.Range {
	if named := m.rangeByName(n.ClusterCIDRName, n.CIDRs); named != nil {
		return named
	}
	for _, r := range m.validRanges() {
		if r.OverlapsAny(n.CIDRs) {
			return r
		}
	}
	return nil
}

// formatRangeCIDRs returns a range as the value of a metric label.
func formatRangeCIDRs(r *podcidr.Range) string {
	named := strings.Trim(fmt.Sprint(r.StaticCIDRs()), "[]")
	if r.IsElastic(podcidr.IPv4) || r.IsElastic(podcidr.IPv6) { // blocks come and go
		named = strings.TrimSpace(named + " blocks")
	}
	return named
}

// rangeByName returns the range of a name, if it overlaps the CIDRs.
func (m *nodeState) rangeByName(from string, cidrs []netip.Prefix) *podcidr.Range {
	m.validRanges() // this fills rangesByName
	for _, r := range m.rangesByName[from] {
		if r.OverlapsAny(cidrs) {
			return r
		}
	}
	return nil
}
