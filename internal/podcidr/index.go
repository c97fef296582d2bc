package podcidr

import (
	"net/netip"
	"slices"
	"sort"
)

// Index finds the ranges that have addresses of a CIDR, without a look at the others. It is of the moment when it was made:
// a range that gets other blocks is in it as it was.
type Index struct {
	ranges []*Range
	// by are the numbers of the ranges that have a CIDR, by that; lengths are the prefix lengths there are, and sorted the
	// CIDRs, by their first address.
	by      [2]map[netip.Prefix][]int
	lengths [2][]int
	sorted  [2][]netip.Prefix
}

// NewIndex makes an index of ranges. What it finds is in their order.
func NewIndex(ranges []*Range) *Index {
	x := &Index{ranges: ranges}
	for f := range x.by {
		x.by[f] = map[netip.Prefix][]int{}
		for i, r := range ranges {
			for _, p := range r.cidrs[f] {
				if _, known := x.by[f][p]; !known {
					x.sorted[f], x.lengths[f] = append(x.sorted[f], p), append(x.lengths[f], p.Bits())
				}
				x.by[f][p] = append(x.by[f][p], i)
			}
		}
		slices.SortFunc(x.sorted[f], func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		slices.Sort(x.lengths[f])
		x.lengths[f] = slices.Compact(x.lengths[f])
	}
	return x
}

// Covering are the ranges that have addresses of some of CIDRs, each once. It costs what it finds, and a look for each
// prefix length that ranges have.
func (x *Index) Covering(cidrs []netip.Prefix) []*Range {
	var found []int
	for _, p := range cidrs {
		p = p.Masked()
		f := FamilyOf(p)
		for _, bits := range x.lengths[f] {
			if bits <= p.Bits() {
				found = append(found, x.by[f][netip.PrefixFrom(p.Addr(), bits).Masked()]...)
			}
		}
		inside := x.sorted[f]
		from := sort.Search(len(inside), func(i int) bool { return inside[i].Addr().Compare(p.Addr()) >= 0 })
		for _, q := range inside[from:] {
			if !p.Contains(q.Addr()) {
				break
			}
			if q.Bits() > p.Bits() {
				found = append(found, x.by[f][q]...)
			}
		}
	}
	slices.Sort(found)
	var out []*Range
	for _, i := range slices.Compact(found) {
		out = append(out, x.ranges[i])
	}
	return out
}
