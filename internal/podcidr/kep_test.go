package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// TestSmallerRangeIsTriedFirst checks K10: of two ranges that apply to a Node, the one that serves the
// fewest Nodes in total is tried first, whatever is left of them, so that one history gives one result.
func TestSmallerRangeIsTriedFirst(t *testing.T) {
	b := NewAllocations(nil)
	ranges := []*Range{newTestRange(t, "eight", withCIDRs(8, "10.0.0.0/21")), newTestRange(t, "four", withCIDRs(8, "10.1.0.0/22"))}
	b.TrackRanges(ranges...)
	for i := range 7 { // one CIDR is left of it, and four of the other
		b.RecordNode(newTestNode(fmt.Sprint("has", i)).has(fmt.Sprintf("10.0.%d.0/24", i)))
	}
	var waiting []*Node
	for i := range 6 {
		waiting = append(waiting, newTestNode(fmt.Sprint("n", i)))
	}
	d := PlanGrants(b, ranges, waiting, 100, noon)
	var got []string
	for _, g := range d.Grants {
		got = append(got, fmt.Sprintf("%s: %s, %d tries", g.Node.Name, g.RangeRef.Name, g.RangesTried))
	}
	want := []string{"n0: four, 1 tries", "n1: four, 1 tries", "n2: four, 1 tries", "n3: four, 1 tries", "n4: eight, 2 tries"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if full := d.Refusals["uid-n5"].FullRanges; len(full) != 2 || full[0].Name != "four" {
		t.Errorf("the last one was refused by %v", full)
	}
}

// TestFamiliesAreThoseOfRange checks K21, K22 and K4: a Node gets all families of its range, or nothing, whatever
// other Nodes have, Services have, or is left of a family.
func TestFamiliesAreThoseOfRange(t *testing.T) {
	beside := map[string][]*Node{
		"alone":            nil,
		"beside IPv4":      {newTestNode("other").has("192.168.0.0/24")},
		"beside IPv6":      {newTestNode("other").has("fd99::/120")},
		"beside both":      {newTestNode("other").has("192.168.0.0/24", "fd99::/120")},
		"IPv4 has none":    {newTestNode("taker").has("10.0.0.0/23")},
		"IPv6 has none":    {newTestNode("taker").has("fd00::/119")},
		"both have none":   {newTestNode("taker").has("10.0.0.0/23", "fd00::/119")},
		"IPv4 has one":     {newTestNode("taker").has("10.0.0.0/24")},
		"IPv6 has one":     {newTestNode("taker").has("fd00::/120")},
		"IPv4 of Services": {newTestNode("other").has("192.168.0.0/24")},
	}
	for name, others := range beside {
		for _, cidrs := range [][]string{{"10.0.0.0/23"}, {"fd00::/119"}, {"10.0.0.0/23", "fd00::/119"}} {
			t.Run(fmt.Sprint(name, cidrs), func(t *testing.T) {
				var services []netip.Prefix
				if name == "IPv4 of Services" {
					services = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
				}
				b := NewAllocations(services)
				r := newTestRange(t, "r", withCIDRs(8, cidrs...))
				b.TrackRanges(r)
				for _, n := range others {
					b.RecordNode(n)
				}
				room := !slices.ContainsFunc(others, func(n *Node) bool {
					return slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return slices.Contains(cidrs, p.String()) })
				})
				d := PlanGrants(b, []*Range{r}, []*Node{newTestNode("n")}, 1, noon)
				if len(d.Grants) == 0 && len(d.Refusals) == 1 && !room {
					return
				}
				if len(d.Grants) != 1 || !room {
					t.Fatalf("it has room: %t; grants %v", room, d.Grants)
				}
				for i, p := range d.Grants[0].CIDRs {
					if len(d.Grants[0].CIDRs) != len(cidrs) || FamilyForPrefix(p) != FamilyForPrefix(netip.MustParsePrefix(cidrs[i])) {
						t.Errorf("of %v it gets %v", cidrs, d.Grants[0].CIDRs)
					}
				}
			})
		}
	}
}

// TestSizesFromSeparateRanges checks K44: Nodes of two sizes are served from separate ranges and from one that both
// sizes are cut from; each gets its size, and no two overlap.
func TestSizesFromSeparateRanges(t *testing.T) {
	ranges := []*Range{
		newTestRange(t, "small", labelled("size", "small"), withCIDRs(6, "10.0.0.0/24", "172.16.5.0/25")), newTestRange(t, "large", labelled("size", "large"), withCIDRs(9, "10.8.0.0/22", "192.168.0.0/23")),
		newTestRange(t, "any", withCIDRs(8, "10.8.4.0/23")), newTestRange(t, "shared", labelled("size", "small"), withCIDRs(6, "10.8.4.0/23")),
	}
	b := NewAllocations(nil)
	bits := map[types.UID]int{}
	var waiting []*Node
	for i := range 6 + 8 + 3 + 1 { // as many as the ranges of small Nodes have, as those of large ones, and one Node without a label
		size, length := "small", 26
		switch {
		case i == 17:
			size, length = "none", 24
		case i >= 14:
			size, length = "large", 23
		}
		n := newTestNode(fmt.Sprintf("n%02d", i), "size", size)
		waiting, bits[n.UID] = append(waiting, n), length
	}
	d := PlanGrants(b, ranges, waiting, 100, noon)
	// Small Nodes also take all of the range that another size is cut from.
	if _, refused := d.Refusals["uid-n17"]; len(d.Refusals) != 1 || !refused {
		t.Errorf("these get nothing: %v", d.Refusals)
	}
	var all []netip.Prefix
	for _, g := range d.Grants {
		p := g.CIDRs[0]
		if p.Bits() != bits[g.Node.UID] {
			t.Errorf("%s gets %s", g.Node.Name, p)
		}
		if slices.ContainsFunc(all, p.Overlaps) {
			t.Errorf("%s gets %s, of which another one has some", g.Node.Name, p)
		}
		from := ranges[slices.IndexFunc(ranges, func(r *Range) bool { return r.Ref == g.RangeRef })]
		if !from.ContainsAll(g.CIDRs) {
			t.Errorf("%s gets %s, which is not of %s", g.Node.Name, p, from.Name)
		}
		all = append(all, p)
	}
}
