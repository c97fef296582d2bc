package podcidr

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// K10: of two ranges that are for a Node, the one that serves the fewest Nodes at all is first, whatever is left of them: so
// one history gives one result.
func TestWhatARangeServesDecidesNotWhatIsLeft(t *testing.T) {
	b := NewBooks(nil)
	ranges := []*Range{aRange(t, "eight", cut(8, "10.0.0.0/21")), aRange(t, "four", cut(8, "10.1.0.0/22"))}
	b.Watch(ranges...)
	for i := range 7 { // one is left of it, and four of the other
		b.Set(aNode(fmt.Sprint("has", i)).has(fmt.Sprintf("10.0.%d.0/24", i)))
	}
	var waiting []*Node
	for i := range 6 {
		waiting = append(waiting, aNode(fmt.Sprint("n", i)))
	}
	d := Plan(b, ranges, waiting, 100, noon)
	var got []string
	for _, g := range d.Grants {
		got = append(got, fmt.Sprintf("%s: %s, %d tries", g.Node.Name, g.From.Name, g.Tries))
	}
	want := []string{"n0: four, 1 tries", "n1: four, 1 tries", "n2: four, 1 tries", "n3: four, 1 tries", "n4: eight, 2 tries"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if full := d.Refused["uid-n5"].Full; len(full) != 2 || full[0].Name != "four" {
		t.Errorf("the last one was refused by %v", full)
	}
}

// K21, K22, K4: a Node gets the families of its range: all of them, or nothing. What other Nodes have, what Services have and what
// is left of a family changes nothing in that.
func TestFamiliesAreThoseOfTheRange(t *testing.T) {
	beside := map[string][]*Node{
		"alone":            nil,
		"beside IPv4":      {aNode("other").has("192.168.0.0/24")},
		"beside IPv6":      {aNode("other").has("fd99::/120")},
		"beside both":      {aNode("other").has("192.168.0.0/24", "fd99::/120")},
		"IPv4 has none":    {aNode("taker").has("10.0.0.0/23")},
		"IPv6 has none":    {aNode("taker").has("fd00::/119")},
		"both have none":   {aNode("taker").has("10.0.0.0/23", "fd00::/119")},
		"IPv4 has one":     {aNode("taker").has("10.0.0.0/24")},
		"IPv6 has one":     {aNode("taker").has("fd00::/120")},
		"IPv4 of Services": {aNode("other").has("192.168.0.0/24")},
	}
	for name, others := range beside {
		for _, cidrs := range [][]string{{"10.0.0.0/23"}, {"fd00::/119"}, {"10.0.0.0/23", "fd00::/119"}} {
			t.Run(fmt.Sprint(name, cidrs), func(t *testing.T) {
				var services []netip.Prefix
				if name == "IPv4 of Services" {
					services = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
				}
				b := NewBooks(services)
				r := aRange(t, "r", cut(8, cidrs...))
				b.Watch(r)
				for _, n := range others {
					b.Set(n)
				}
				room := !slices.ContainsFunc(others, func(n *Node) bool {
					return slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return slices.Contains(cidrs, p.String()) })
				})
				d := Plan(b, []*Range{r}, []*Node{aNode("n")}, 1, noon)
				if len(d.Grants) == 0 && len(d.Refused) == 1 && !room {
					return
				}
				if len(d.Grants) != 1 || !room {
					t.Fatalf("it has room: %t; grants %v", room, d.Grants)
				}
				for i, p := range d.Grants[0].CIDRs {
					if len(d.Grants[0].CIDRs) != len(cidrs) || FamilyOf(p) != FamilyOf(netip.MustParsePrefix(cidrs[i])) {
						t.Errorf("of %v it gets %v", cidrs, d.Grants[0].CIDRs)
					}
				}
			})
		}
	}
}

// K44: Nodes of two sizes, from ranges apart and from one that both sizes are cut from; each has its size, and none what another
// one has.
func TestSizesFromRangesApart(t *testing.T) {
	ranges := []*Range{
		aRange(t, "small", labelled("size", "small"), cut(6, "10.0.0.0/24", "172.16.5.0/25")), aRange(t, "large", labelled("size", "large"), cut(9, "10.8.0.0/22", "192.168.0.0/23")),
		aRange(t, "any", cut(8, "10.8.4.0/23")), aRange(t, "shared", labelled("size", "small"), cut(6, "10.8.4.0/23")),
	}
	b := NewBooks(nil)
	bits := map[types.UID]int{}
	var waiting []*Node
	for i := range 6 + 8 + 3 + 1 { // what the ranges of small Nodes have, those of large ones, and one that has no label
		size, length := "small", 26
		switch {
		case i == 17:
			size, length = "none", 24
		case i >= 14:
			size, length = "large", 23
		}
		n := aNode(fmt.Sprintf("n%02d", i), "size", size)
		waiting, bits[n.UID] = append(waiting, n), length
	}
	d := Plan(b, ranges, waiting, 100, noon)
	// Small Nodes have all of the range that another size is cut from, too.
	if _, refused := d.Refused["uid-n17"]; len(d.Refused) != 1 || !refused {
		t.Errorf("these get nothing: %v", d.Refused)
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
		from := ranges[slices.IndexFunc(ranges, func(r *Range) bool { return r.Ref == g.From })]
		if !from.Has(g.CIDRs) {
			t.Errorf("%s gets %s, which is not of %s", g.Node.Name, p, from.Name)
		}
		all = append(all, p)
	}
}
