package podcidr

import (
	"maps"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// SharedRange is a range of addresses that several Nodes have.
type SharedRange struct {
	Range netipx.IPRange
	// NodeNames are the names of these Nodes, sorted.
	NodeNames []string
}

// FindSharedRanges returns the ranges that several Nodes have completely, in address order. A Node that is being
// deleted counts, as its Pods still run. It costs O(n log n) in Nodes, as long as few share.
func FindSharedRanges(nodes []*Node) []SharedRange {
	b := NewAllocations(nil)
	for _, n := range nodes {
		for _, p := range n.CIDRs {
			b.addFact(p, ledger.SourceObject, n.UID, n.Name)
		}
	}
	var out []SharedRange
	for _, l := range b.ledgers {
		l.VisitUsedRanges(func(r netipx.IPRange, facts []*ledger.Fact) bool {
			names := map[string]struct{}{}
			for _, f := range facts {
				names[f.Owner.Name] = struct{}{}
			}
			if len(names) > 1 {
				out = append(out, SharedRange{Range: r, NodeNames: slices.Sorted(maps.Keys(names))})
			}
			return true
		})
	}
	return out
}

// String returns the range as a CIDR where it is one.
func (s SharedRange) String() string {
	if p, ok := s.Range.Prefix(); ok {
		return p.String()
	}
	return s.Range.String()
}
