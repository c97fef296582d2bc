package podcidr

import (
	"cmp"
	"slices"
)

// SortRanges returns ranges in the order in which those are tried that match a Node equally well: by the fewest Nodes
// that a range can ever serve, the fewest host bits, then name and kind, so that the same history gives the same
// result. The KEP leaves open whether it means the Nodes that a range can serve in total or those that it still has
// room for; the total counts here, as in node-ipam-controller.
func SortRanges(ranges []*Range) []*Range {
	out := slices.Clone(ranges)
	slices.SortFunc(out, func(a, b *Range) int {
		return cmp.Or(
			cmp.Compare(a.capacity, b.capacity),
			cmp.Compare(a.hostBits(), b.hostBits()),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Kind, b.Kind),
		)
	})
	return out
}

func (r *Range) hostBits() int {
	f := r.Families()[0]
	return f.addressBits() - r.nodePrefixLengths[f]
}

// RangesForNode returns the ranges that apply to a Node, first choice first: those whose selector matches most of it,
// and among equals the order of SortRanges, in which the argument must be. It costs O(ranges).
func RangesForNode(sorted []*Range, n *Node) []*Range {
	type choice struct {
		*Range
		matches int
	}
	var choices []choice
	for _, r := range sorted {
		if matches, ok := r.selector.matchNode(n); ok {
			choices = append(choices, choice{r, matches})
		}
	}
	slices.SortStableFunc(choices, func(a, b choice) int { return cmp.Compare(b.matches, a.matches) })
	out := make([]*Range, len(choices))
	for i, c := range choices {
		out[i] = c.Range
	}
	return out
}
