package podcidr

import (
	"cmp"
	"slices"
)

// Sorted returns ranges in the order in which those come that match a Node equally well: the fewest Nodes it can ever
// serve, the fewest host bits, then name and kind, so that the same history gives the same result. The KEP leaves open
// whether it means all that a range can serve or what is left of it: all, as node-ipam-controller has it.
func Sorted(ranges []*Range) []*Range {
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
	return f.bits() - r.lengths[f]
}

// Order returns the ranges that apply to a Node, first choice first: those whose selector matches most of it, and among
// equals the order of Sorted, which ranges must have. It costs O(ranges).
func Order(sorted []*Range, n *Node) []*Range {
	type choice struct {
		*Range
		matches int
	}
	var choices []choice
	for _, r := range sorted {
		if matches, ok := r.selector.match(n); ok {
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
