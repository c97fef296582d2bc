package podcidr

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

func TestFindSharedRanges(t *testing.T) {
	for name, c := range map[string]struct {
		reason      string
		cidrsByNode map[string][]string
		want        []string
	}{
		"apart":     {"side by side is not shared", map[string][]string{"a": {"10.0.0.0/24"}, "b": {"10.0.1.0/24"}, "c": nil}, nil},
		"the same":  {"all three are named once", map[string][]string{"c": {"10.0.0.0/24"}, "a": {"10.0.0.0/24"}, "b": {"10.0.0.0/24"}}, []string{"10.0.0.0/24 [a b c]"}},
		"nested":    {"what both have is the smaller one", map[string][]string{"a": {"10.0.0.0/23"}, "b": {"10.0.1.0/24"}}, []string{"10.0.1.0/24 [a b]"}},
		"host bits": {"routes ignore them", map[string][]string{"a": {"10.0.0.7/24"}, "b": {"10.0.0.0/24"}}, []string{"10.0.0.0/24 [a b]"}},
		"families": {"one of two is enough", map[string][]string{"a": {"10.0.0.0/24", "fd00::/64"}, "b": {"10.0.1.0/24", "fd00::/64"}},
			[]string{"fd00::/64 [a b]"}},
		"a chain": {"a pair each", map[string][]string{"a": {"10.0.0.0/23"}, "b": {"10.0.0.0/24"}, "c": {"10.0.1.0/24"}},
			[]string{"10.0.0.0/24 [a b]", "10.0.1.0/24 [a c]"}},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []*Node
			for node, cidrs := range c.cidrsByNode {
				n := &Node{Name: node, UID: types.UID(node), Deleting: node == "b"}
				for _, text := range cidrs {
					n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(text))
				}
				nodes = append(nodes, n)
			}
			var got []string
			for _, s := range FindSharedRanges(nodes) {
				got = append(got, fmt.Sprint(s, " ", s.NodeNames))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, d)
			}
		})
	}
}

// TestFindSharedRangesAgainstPairs checks that exactly the Nodes that overlap another one are among those that share,
// in any order of Nodes.
func TestFindSharedRangesAgainstPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var nodes []*Node
		for i := range 8 {
			p, err := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(256))}).Prefix(22 + r.IntN(9))
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, &Node{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), CIDRs: []netip.Prefix{p}})
		}
		var want, got []string
		for _, n := range nodes {
			if slices.ContainsFunc(nodes, func(o *Node) bool { return o != n && o.CIDRs[0].Overlaps(n.CIDRs[0]) }) {
				want = append(want, n.Name)
			}
		}
		for _, s := range FindSharedRanges(nodes) {
			got = append(got, s.NodeNames...)
		}
		slices.Sort(got)
		if d := cmp.Diff(want, slices.Compact(got)); d != "" {
			t.Fatalf("of %v (-want +got):\n%s", nodes, d)
		}
	}
}
