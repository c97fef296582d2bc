package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// usedBy is who has what of the objects, as one pass over all Nodes finds it. It is kept until something of it changes: a site
// has thousands of Nodes and hundreds of objects, and asks in each turn.
type usedBy struct {
	index *podcidr.Index
	// users are the names of the Nodes that have CIDRs of an object, or may yet get them, in order; allocated is how many
	// Nodes count for it.
	users     map[podcidr.Ref][]string
	allocated map[podcidr.Ref]int64
}

// touch notes that Nodes, grants or objects have changed: who uses what is looked at anew.
func (m *memory) touch() { m.use = nil }

// inUse is who has what. It costs O(Nodes + grants) after a change.
func (m *memory) inUse() *usedBy {
	if m.use != nil {
		return m.use
	}
	m.passes++
	u := &usedBy{index: podcidr.NewIndex(m.ranges()), users: map[podcidr.Ref][]string{}, allocated: map[podcidr.Ref]int64{}}
	for _, n := range m.nodes {
		if len(n.CIDRs) > 0 {
			u.addNode(m, n.Node)
		}
	}
	named := map[string][]podcidr.Ref{}
	for ref := range m.objects {
		named[ref.Name] = append(named[ref.Name], ref)
	}
	for _, g := range m.grants {
		if !g.settled {
			u.addGrant(m, g, named[g.From.Name])
		}
	}
	for ref, names := range u.users {
		slices.Sort(names)
		u.users[ref] = slices.Compact(names)
	}
	m.use = u
	return u
}

// addNode adds a Node. Of two objects with the same addresses each has those that name it; those that name none of them, both
// have, and the first one counts them.
func (u *usedBy) addNode(m *memory, n *podcidr.Node) {
	if r := m.attributed(n.From, n.CIDRs); r != nil {
		u.users[r.Ref] = append(u.users[r.Ref], n.Name)
		u.allocated[r.Ref]++
		return
	}
	for i, r := range u.index.Covering(n.CIDRs) {
		u.users[r.Ref] = append(u.users[r.Ref], n.Name)
		if i == 0 {
			u.allocated[r.Ref]++
		}
	}
}

// addGrant adds a grant of objects of a name: a Node may yet get it.
func (u *usedBy) addGrant(m *memory, g *grant, of []podcidr.Ref) {
	for _, ref := range of {
		u.users[ref] = append(u.users[ref], g.Node.Name)
	}
	if m.attributed(g.From.Name, g.CIDRs) != nil {
		return
	}
	for _, r := range u.index.Covering(g.CIDRs) {
		u.users[r.Ref] = append(u.users[r.Ref], g.Node.Name)
	}
}

// users are the names of Nodes that have CIDRs of an object, and of those that may yet get them, in order. They are not to be
// changed.
func (m *memory) users(o Object) []string { return m.inUse().users[o.Ref] }

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
