package podcidr

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// TestPlanGrants checks K13, K21 and K41: which Nodes get CIDRs, and why the others are refused.
func TestPlanGrants(t *testing.T) {
	age := func(n *Node, minutes int) *Node {
		n.CreatedAt = noon.Add(-time.Duration(minutes) * time.Minute)
		return n
	}
	closing := func(r *Range) *Range { r.Closing = true; return r }
	growing := func(r *Range) *Range { r.CanGrow = true; return r }
	deleting := func(n *Node) *Node { n.Deleting = true; return n }
	full := func(names ...string) (out []Ref) {
		for _, name := range names {
			out = append(out, Ref{Kind: "ClusterCIDR", Name: name, UID: types.UID("uid-" + name)})
		}
		return out
	}
	tests := map[string]struct {
		ranges  []*Range
		nodes   []*Node
		limit   int
		want    []string // node: CIDRs
		refused map[types.UID]Refusal
	}{
		"OldestFirst": {
			ranges: []*Range{newTestRange(t, "r", withCIDRs(8, "10.0.0.0/23"))}, nodes: []*Node{age(newTestNode("c"), 1), age(newTestNode("b"), 3), age(newTestNode("a"), 1)},
			want: []string{"b: 10.0.0.0/24", "a: 10.0.1.0/24"}, refused: map[types.UID]Refusal{"uid-c": {FullRanges: full("r")}},
		},
		"Limit": {ranges: []*Range{newTestRange(t, "r", withCIDRs(8, "10.0.0.0/16"))}, nodes: []*Node{newTestNode("a"), newTestNode("b")}, limit: 1, want: []string{"a: 10.0.0.0/24"}},
		"NextWhenFull": {
			ranges: []*Range{newTestRange(t, "one", labelled("a", "1"), withCIDRs(8, "10.0.0.0/24")), newTestRange(t, "any", withCIDRs(6, "10.1.0.0/16"))},
			nodes:  []*Node{newTestNode("a", "a", "1"), newTestNode("b", "a", "1"), newTestNode("c")},
			want:   []string{"a: 10.0.0.0/24", "b: 10.1.0.0/26", "c: 10.1.0.64/26"},
		},
		"NoMatch": {
			ranges: []*Range{newTestRange(t, "one", labelled("a", "1"), withCIDRs(8, "10.0.0.0/24"))}, nodes: []*Node{newTestNode("x")},
			refused: map[types.UID]Refusal{"uid-x": {}},
		},
		"Closing":  {ranges: []*Range{closing(newTestRange(t, "r", withCIDRs(8, "10.0.0.0/16")))}, nodes: []*Node{newTestNode("x")}, refused: map[types.UID]Refusal{"uid-x": {}}},
		"Deleting": {ranges: []*Range{newTestRange(t, "r", withCIDRs(8, "10.0.0.0/16"))}, nodes: []*Node{deleting(newTestNode("x"))}},
		"HasOne":   {ranges: []*Range{newTestRange(t, "r", withCIDRs(8, "10.0.0.0/16"))}, nodes: []*Node{newTestNode("x").has("10.9.0.0/24")}},
		"ByFamily": {ranges: []*Range{newTestRange(t, "six", withCIDRs(64, "fd00::/48"))}, nodes: []*Node{newTestNode("x")}, want: []string{"x: fd00::/64"}},
		"WaitsForGrowth": {
			ranges: []*Range{growing(newTestRange(t, "drawn", labelled("a", "1"), grows(IPv4, 9))), newTestRange(t, "any", withCIDRs(8, "10.1.0.0/16"))},
			nodes:  []*Node{newTestNode("a", "a", "1"), newTestNode("b", "a", "1")},
			refused: map[types.UID]Refusal{
				"uid-a": {FullRanges: full("drawn"), AwaitsGrowth: true}, "uid-b": {FullRanges: full("drawn"), AwaitsGrowth: true},
			},
		},
		"GrowsNoMore": {
			ranges: []*Range{newTestRange(t, "drawn", labelled("a", "1"), grows(IPv4, 9)), newTestRange(t, "any", withCIDRs(8, "10.1.0.0/16"))},
			nodes:  []*Node{newTestNode("a", "a", "1")}, want: []string{"a: 10.1.0.0/24"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.limit == 0 {
				tt.limit = 100
			}
			d := PlanGrants(NewAllocations(nil), tt.ranges, tt.nodes, tt.limit, noon)
			var got []string
			for _, g := range d.Grants {
				got = append(got, g.Node.Name+": "+strings.Join(texts(g.CIDRs), " "))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("grants (-want +got):\n%s", diff)
			}
			if tt.refused == nil {
				tt.refused = map[types.UID]Refusal{}
			}
			if diff := cmp.Diff(tt.refused, d.Refusals); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}
