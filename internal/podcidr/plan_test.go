package podcidr

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// K13, K21, K41: who gets what, and what the others are told.
func TestPlan(t *testing.T) {
	age := func(n *Node, minutes int) *Node {
		n.Created = noon.Add(-time.Duration(minutes) * time.Minute)
		return n
	}
	closing := func(r *Range) *Range { r.Closing = true; return r }
	growing := func(r *Range) *Range { r.Grows = true; return r }
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
			ranges: []*Range{aRange(t, "r", cut(8, "10.0.0.0/23"))}, nodes: []*Node{age(aNode("c"), 1), age(aNode("b"), 3), age(aNode("a"), 1)},
			want: []string{"b: 10.0.0.0/24", "a: 10.0.1.0/24"}, refused: map[types.UID]Refusal{"uid-c": {Full: full("r")}},
		},
		"Limit": {ranges: []*Range{aRange(t, "r", cut(8, "10.0.0.0/16"))}, nodes: []*Node{aNode("a"), aNode("b")}, limit: 1, want: []string{"a: 10.0.0.0/24"}},
		"NextWhenFull": {
			ranges: []*Range{aRange(t, "one", labelled("a", "1"), cut(8, "10.0.0.0/24")), aRange(t, "any", cut(6, "10.1.0.0/16"))},
			nodes:  []*Node{aNode("a", "a", "1"), aNode("b", "a", "1"), aNode("c")},
			want:   []string{"a: 10.0.0.0/24", "b: 10.1.0.0/26", "c: 10.1.0.64/26"},
		},
		"NoMatch": {
			ranges: []*Range{aRange(t, "one", labelled("a", "1"), cut(8, "10.0.0.0/24"))}, nodes: []*Node{aNode("x")},
			refused: map[types.UID]Refusal{"uid-x": {}},
		},
		"Closing":  {ranges: []*Range{closing(aRange(t, "r", cut(8, "10.0.0.0/16")))}, nodes: []*Node{aNode("x")}, refused: map[types.UID]Refusal{"uid-x": {}}},
		"Deleting": {ranges: []*Range{aRange(t, "r", cut(8, "10.0.0.0/16"))}, nodes: []*Node{deleting(aNode("x"))}},
		"HasOne":   {ranges: []*Range{aRange(t, "r", cut(8, "10.0.0.0/16"))}, nodes: []*Node{aNode("x").has("10.9.0.0/24")}},
		"ByFamily": {ranges: []*Range{aRange(t, "six", cut(64, "fd00::/48"))}, nodes: []*Node{aNode("x")}, want: []string{"x: fd00::/64"}},
		"WaitsForGrowth": {
			ranges: []*Range{growing(aRange(t, "drawn", labelled("a", "1"), grows(IPv4, 9))), aRange(t, "any", cut(8, "10.1.0.0/16"))},
			nodes:  []*Node{aNode("a", "a", "1"), aNode("b", "a", "1")},
			refused: map[types.UID]Refusal{
				"uid-a": {Full: full("drawn"), Growing: true}, "uid-b": {Full: full("drawn"), Growing: true},
			},
		},
		"GrowsNoMore": {
			ranges: []*Range{aRange(t, "drawn", labelled("a", "1"), grows(IPv4, 9)), aRange(t, "any", cut(8, "10.1.0.0/16"))},
			nodes:  []*Node{aNode("a", "a", "1")}, want: []string{"a: 10.1.0.0/24"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.limit == 0 {
				tt.limit = 100
			}
			d := Plan(NewBooks(nil), tt.ranges, tt.nodes, tt.limit, noon)
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
			if diff := cmp.Diff(tt.refused, d.Refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}
