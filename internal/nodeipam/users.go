package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// users are the names of Nodes that have CIDRs of an object, and of those that may yet get them, in order. Of two
// objects with the same addresses each has those that name it; those that name none of them, both have.
func (m *memory) users(o Object) []string {
	var out []string
	for _, n := range m.nodes {
		if m.uses(n.Node, o) {
			out = append(out, n.Name)
		}
	}
	for _, g := range m.grants {
		if !g.settled && (g.From.Name == o.Name || (o.Range != nil && m.attributed(g.From.Name, g.CIDRs) == nil && o.Range.Covers(g.CIDRs))) {
			out = append(out, g.Node.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (m *memory) uses(n *podcidr.Node, o Object) bool {
	if len(n.CIDRs) == 0 || o.Range == nil || !o.Range.Covers(n.CIDRs) {
		return false
	}
	named := m.attributed(n.From, n.CIDRs)
	return named == nil || named.Ref == o.Ref
}

// rangeOf is the range that a Node counts for: the one that it names, else the first that covers what it has.
func (m *memory) rangeOf(n *podcidr.Node) *podcidr.Range {
	if named := m.attributed(n.From, n.CIDRs); named != nil {
		return named
	}
	for _, r := range m.ranges() {
		if r.Covers(n.CIDRs) {
			return r
		}
	}
	return nil
}

// cidrsText is a range as the label of a metric.
func cidrsText(r *podcidr.Range) string {
	named := strings.Trim(fmt.Sprint(r.Named()), "[]")
	if r.Elastic(podcidr.IPv4) || r.Elastic(podcidr.IPv6) { // blocks come and go
		named = strings.TrimSpace(named + " blocks")
	}
	return named
}

// attributed is the range of a name, if it covers CIDRs.
func (m *memory) attributed(from string, cidrs []netip.Prefix) *podcidr.Range {
	m.ranges() // they are by name then
	for _, r := range m.byName[from] {
		if r.Covers(cidrs) {
			return r
		}
	}
	return nil
}
