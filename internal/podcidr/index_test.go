package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestIndexFindsCoveringRanges checks that an index finds the same ranges as a scan of all ranges.
func TestIndexFindsCoveringRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
			if rapid.Bool().Draw(t, "IPv6") {
				return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 15: byte(rapid.IntRange(0, 255).Draw(t, "last"))}), rapid.IntRange(118, 126).Draw(t, "bits")).Masked()
			}
			a := netip.AddrFrom4([4]byte{10, 0, byte(rapid.IntRange(0, 7).Draw(t, "third")), byte(rapid.IntRange(0, 255).Draw(t, "fourth"))})
			return netip.PrefixFrom(a, rapid.IntRange(20, 28).Draw(t, "bits")).Masked()
		})
		var ranges []*Range
		for i := range rapid.IntRange(0, 12).Draw(t, "ranges") {
			r := &Range{Ref: Ref{Name: fmt.Sprint(i)}}
			for _, p := range rapid.SliceOfN(prefix, 0, 3).Draw(t, "cidrs") {
				if !slices.ContainsFunc(r.cidrs[FamilyForPrefix(p)], p.Overlaps) {
					r.cidrs[FamilyForPrefix(p)] = append(r.cidrs[FamilyForPrefix(p)], p)
				}
			}
			ranges = append(ranges, r)
		}
		prefixes := rapid.SliceOfN(prefix, 0, 2).Draw(t, "has")
		var want []*Range
		for _, r := range ranges {
			if r.OverlapsAny(prefixes) {
				want = append(want, r)
			}
		}
		if got := NewRangeIndex(ranges).OverlappingRanges(prefixes); !slices.Equal(got, want) {
			t.Fatalf("%v is covered by %v, want %v", prefixes, got, want)
		}
	})
}
