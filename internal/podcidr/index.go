package podcidr

import (
	"net/netip"
	"slices"
	"sort"
)

// RangeIndex finds the ranges that have addresses of a CIDR without visiting the others. It is a snapshot: it has the
// blocks that a range had when the index was built.
type RangeIndex struct {
	ranges []*Range
	// rangesByCIDR are the indexes of the ranges that have a CIDR, by CIDR; prefixLengths are the prefix lengths that
	// occur, and sortedCIDRs the CIDRs by their first address.
	rangesByCIDR  [2]map[netip.Prefix][]int
	prefixLengths [2][]int
	sortedCIDRs   [2][]netip.Prefix
}

// NewRangeIndex returns an index of ranges. Results are in the order of ranges.
func NewRangeIndex(ranges []*Range) *RangeIndex {
	x := &RangeIndex{ranges: ranges}
	for f := range x.rangesByCIDR {
		x.rangesByCIDR[f] = map[netip.Prefix][]int{}
		for i, r := range ranges {
			for _, p := range r.cidrs[f] {
				if _, known := x.rangesByCIDR[f][p]; !known {
					x.sortedCIDRs[f], x.prefixLengths[f] = append(x.sortedCIDRs[f], p), append(x.prefixLengths[f], p.Bits())
				}
				x.rangesByCIDR[f][p] = append(x.rangesByCIDR[f][p], i)
			}
		}
		slices.SortFunc(x.sortedCIDRs[f], func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		slices.Sort(x.prefixLengths[f])
		x.prefixLengths[f] = slices.Compact(x.prefixLengths[f])
	}
	return x
}

// OverlappingRanges returns the ranges that have addresses of some of the CIDRs, each once. It costs the size of the
// result, plus one lookup for each prefix length that occurs in ranges.
func (ri *RangeIndex) OverlappingRanges(cidrs []netip.Prefix) []*Range {
	var found []int
	for _, p := range cidrs {
		p = p.Masked()
		f := FamilyForPrefix(p)
		for _, bits := range ri.prefixLengths[f] {
			if bits <= p.Bits() {
				found = append(found, ri.rangesByCIDR[f][netip.PrefixFrom(p.Addr(), bits).Masked()]...)
			}
		}
		inside := ri.sortedCIDRs[f]
		from := sort.Search(len(inside), func(i int) bool { return inside[i].Addr().Compare(p.Addr()) >= 0 })
		for _, q := range inside[from:] {
			if !p.Contains(q.Addr()) {
				break
			}
			if q.Bits() > p.Bits() {
				found = append(found, ri.rangesByCIDR[f][q]...)
			}
		}
	}
	slices.Sort(found)
	var out []*Range
	for _, i := range slices.Compact(found) {
		out = append(out, ri.ranges[i])
	}
	return out
}
