package podcidr

import (
	"maps"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Share is a range of addresses that several Nodes have.
type Share struct {
	Range netipx.IPRange
	// Nodes are their names, in order.
	Nodes []string
}

// Shares are the ranges of which several Nodes have all addresses, in the order of these. A Node that is being deleted
// counts, as its Pods run. It costs O(n log n) in Nodes, as long as few share.
func Shares(nodes []*Node) []Share {
	b := NewBooks(nil)
	for _, n := range nodes {
		for _, p := range n.CIDRs {
			b.state(p, ledger.Object, n.UID, n.Name)
		}
	}
	var out []Share
	for _, l := range b.taken {
		l.Uses(func(r netipx.IPRange, facts []*ledger.Fact) bool {
			names := map[string]struct{}{}
			for _, f := range facts {
				names[f.Owner.Name] = struct{}{}
			}
			if len(names) > 1 {
				out = append(out, Share{Range: r, Nodes: slices.Sorted(maps.Keys(names))})
			}
			return true
		})
	}
	return out
}

// String is the range as a CIDR where it is one.
func (s Share) String() string {
	if p, is := s.Range.Prefix(); is {
		return p.String()
	}
	return s.Range.String()
}
