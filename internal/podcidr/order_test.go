package podcidr

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOrderOfTheKEP checks K14: the order of the entries that the KEP shows sorted, for a Node that the first three
// select.
func TestOrderOfTheKEP(t *testing.T) {
	want := []*Range{
		newTestRange(t, "d", labelled("node", "n1", "rack", "rack1"), withCIDRs(6, "10.5.0.0/16")),
		newTestRange(t, "c", labelled("node", "n1"), withCIDRs(4, "192.168.64.0/20")),
		newTestRange(t, "b", labelled("node", "n1"), withCIDRs(4, "192.168.128.0/17")),
		newTestRange(t, "a", withCIDRs(6, "10.0.0.0/8")),
	}
	for _, ranges := range [][]*Range{want, {want[3], want[2], want[1], want[0]}, {want[2], want[0], want[3], want[1]}} {
		if got := RangesForNode(SortRanges(ranges), newTestNode("n", "node", "n1", "rack", "rack1")); !slices.Equal(got, want) {
			t.Errorf("%v", names(got))
		}
	}
}

// TestRangesForNode checks K7, K8, K9, K10, K11 and K12: which ranges apply, and in which order.
func TestRangesForNode(t *testing.T) {
	tests := map[string]struct {
		ranges []*Range
		node   *Node
		want   []string
	}{
		"FallbackIsLast": {
			ranges: []*Range{newTestRange(t, "any", withCIDRs(8, "10.0.0.0/24")), newTestRange(t, "big", labelled("size", "big"), withCIDRs(8, "10.1.0.0/16"))},
			node:   newTestNode("n", "size", "big"), want: []string{"big", "any"},
		},
		"EmptyIsFallback": {
			ranges: []*Range{newTestRange(t, "any", withCIDRs(8, "10.0.0.0/24"), func(s *RangeSpec) { s.NodeSelector = &corev1.NodeSelector{} })},
			node:   newTestNode("n"), want: []string{"any"},
		},
		"NotSelected": {ranges: []*Range{newTestRange(t, "big", labelled("size", "big"), withCIDRs(8, "10.1.0.0/16"))}, node: newTestNode("n", "size", "small")},
		"MostLabels": {
			ranges: []*Range{newTestRange(t, "one", labelled("a", "1"), withCIDRs(8, "10.0.0.0/24")), newTestRange(t, "two", labelled("a", "1", "b", "2"), withCIDRs(8, "10.1.0.0/16"))},
			node:   newTestNode("n", "a", "1", "b", "2"), want: []string{"two", "one"},
		},
		"MostOfOneTerm": {
			ranges: []*Range{
				newTestRange(t, "ored", labelled("a", "1"), labelled("b", "2"), withCIDRs(8, "10.0.0.0/24")),
				newTestRange(t, "anded", labelled("a", "1", "b", "2"), withCIDRs(8, "10.1.0.0/16")),
			},
			node: newTestNode("n", "a", "1", "b", "2"), want: []string{"anded", "ored"},
		},
		"FewestNodes": {
			ranges: []*Range{newTestRange(t, "four", withCIDRs(10, "192.168.0.0/20")), newTestRange(t, "one", withCIDRs(16, "10.0.0.0/16"))},
			node:   newTestNode("n"), want: []string{"one", "four"},
		},
		"FewestHostBits": {
			ranges: []*Range{newTestRange(t, "seven", withCIDRs(7, "10.0.0.0/22")), newTestRange(t, "five", withCIDRs(5, "10.1.0.0/24"))},
			node:   newTestNode("n"), want: []string{"five", "seven"},
		},
		"Name": {
			ranges: []*Range{newTestRange(t, "b", withCIDRs(8, "10.0.0.0/20")), newTestRange(t, "a", withCIDRs(8, "10.1.0.0/20"))},
			node:   newTestNode("n"), want: []string{"a", "b"},
		},
		"LeastFamilyCounts": {
			ranges: []*Range{
				newTestRange(t, "dual", withCIDRs(10, "10.0.0.0/20", "fd12:3456:789a:1::/64")), // 4 Nodes
				newTestRange(t, "six", withCIDRs(10, "fd12::/115")),                            // 8 Nodes
				newTestRange(t, "two", withCIDRs(10, "10.8.0.0/21")),                           // 2 Nodes
			},
			node: newTestNode("n"), want: []string{"two", "dual", "six"},
		},
		"ElasticIsLast": {
			ranges: []*Range{newTestRange(t, "drawn", grows(IPv4, 8)), newTestRange(t, "named", withCIDRs(8, "10.0.0.0/8"))},
			node:   newTestNode("n"), want: []string{"named", "drawn"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := names(RangesForNode(SortRanges(tt.ranges), tt.node)); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func names(ranges []*Range) (out []string) {
	for _, r := range ranges {
		out = append(out, r.Name)
	}
	return out
}

func TestMatchNode(t *testing.T) {
	expression := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	name := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{expression("metadata.name", op, values...)}}
	}
	newTerm := func(e ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: e}
	}
	node := newTestNode("w1", "size", "7", "zone", "a")
	tests := map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  int // -1 means not selected
	}{
		"In":            {terms: []corev1.NodeSelectorTerm{newTerm(expression("zone", corev1.NodeSelectorOpIn, "b", "a"))}, want: 1},
		"NotIn":         {terms: []corev1.NodeSelectorTerm{newTerm(expression("zone", corev1.NodeSelectorOpNotIn, "a"))}, want: -1},
		"NotInMissing":  {terms: []corev1.NodeSelectorTerm{newTerm(expression("rack", corev1.NodeSelectorOpNotIn, "a"))}, want: 1},
		"Exists":        {terms: []corev1.NodeSelectorTerm{newTerm(expression("zone", corev1.NodeSelectorOpExists))}, want: 1},
		"DoesNotExist":  {terms: []corev1.NodeSelectorTerm{newTerm(expression("rack", corev1.NodeSelectorOpDoesNotExist))}, want: 1},
		"Gt":            {terms: []corev1.NodeSelectorTerm{newTerm(expression("size", corev1.NodeSelectorOpGt, "6"))}, want: 1},
		"Lt":            {terms: []corev1.NodeSelectorTerm{newTerm(expression("size", corev1.NodeSelectorOpLt, "7"))}, want: -1},
		"And":           {terms: []corev1.NodeSelectorTerm{newTerm(expression("zone", corev1.NodeSelectorOpExists), expression("rack", corev1.NodeSelectorOpExists))}, want: -1},
		"Or":            {terms: []corev1.NodeSelectorTerm{newTerm(expression("rack", corev1.NodeSelectorOpExists)), newTerm(expression("zone", corev1.NodeSelectorOpExists))}, want: 1},
		"Name":          {terms: []corev1.NodeSelectorTerm{name(corev1.NodeSelectorOpIn, "w1")}, want: 1},
		"OtherName":     {terms: []corev1.NodeSelectorTerm{name(corev1.NodeSelectorOpIn, "w2")}, want: -1},
		"NotThisName":   {terms: []corev1.NodeSelectorTerm{name(corev1.NodeSelectorOpNotIn, "w1")}, want: -1},
		"NotThatName":   {terms: []corev1.NodeSelectorTerm{name(corev1.NodeSelectorOpNotIn, "w2")}, want: 1},
		"EmptyTerm":     {terms: []corev1.NodeSelectorTerm{{}}, want: -1},
		"LabelAndField": {terms: []corev1.NodeSelectorTerm{{MatchExpressions: newTerm(expression("zone", corev1.NodeSelectorOpExists)).MatchExpressions, MatchFields: name(corev1.NodeSelectorOpIn, "w1").MatchFields}}, want: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, errs := compileSelector(nil, &corev1.NodeSelector{NodeSelectorTerms: tt.terms})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			got, ok := s.matchNode(node)
			if !ok {
				got = -1
			}
			if got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	term := func(e corev1.NodeSelectorRequirement) func(*RangeSpec) {
		return orTerm(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
	}
	field := func(e corev1.NodeSelectorRequirement) func(*RangeSpec) {
		return orTerm(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{e}})
	}
	for name, change := range map[string]func(*RangeSpec){
		"Nothing":      func(*RangeSpec) {},
		"TooFewBits":   withCIDRs(3, "10.0.0.0/24"),
		"TooManyBits":  withCIDRs(29, "0.0.0.0/0"),
		"TooManyBits6": withCIDRs(125, "::/0"),
		"TooSmall":     withCIDRs(9, "10.0.0.0/24"),
		"HostBitsSet":  withCIDRs(4, "10.0.0.1/24"),
		"Operator": func(s *RangeSpec) {
			withCIDRs(4, "10.0.0.0/24")(s)
			term(corev1.NodeSelectorRequirement{Key: "a", Operator: "Like"})(s)
		},
		"NoValues": func(s *RangeSpec) {
			withCIDRs(4, "10.0.0.0/24")(s)
			term(corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpIn})(s)
		},
		"Field": func(s *RangeSpec) {
			withCIDRs(4, "10.0.0.0/24")(s)
			field(corev1.NodeSelectorRequirement{Key: "spec.podCIDR", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}})(s)
		},
		"TwoNames": func(s *RangeSpec) {
			withCIDRs(4, "10.0.0.0/24")(s)
			field(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"a", "b"}})(s)
		},
		"OtherFamily": func(s *RangeSpec) { withCIDRs(8, "10.0.0.0/16")(s); s.CIDRs[IPv6], s.HostBits[IPv6] = s.CIDRs[IPv4], 8 },
	} {
		t.Run(name, func(t *testing.T) {
			var s RangeSpec
			change(&s)
			if r, errs := CompileRange(Ref{Name: "r"}, s); len(errs) == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestDescribeSelector checks the readable form of selectors.
func TestDescribeSelector(t *testing.T) {
	name := func(op corev1.NodeSelectorOperator) func(*RangeSpec) {
		return orTerm(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: op, Values: []string{"w1"}}}})
	}
	for want, change := range map[string][]func(*RangeSpec){
		"all Nodes":                    nil,
		"no Node":                      {orTerm(corev1.NodeSelectorTerm{})},
		"a in (1),b in (2)":            {labelled("a", "1", "b", "2")},
		"a in (1) or metadata.name=w1": {labelled("a", "1"), name(corev1.NodeSelectorOpIn)},
		"metadata.name!=w1":            {name(corev1.NodeSelectorOpNotIn)},
	} {
		if got := newTestRange(t, "r", append(change, withCIDRs(8, "10.0.0.0/16"))...).DescribeSelector(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
