package podcidr

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// cut is a range of host bits and CIDRs, of both families.
func cut(hostBits int, cidrs ...string) func(*Spec) {
	return func(s *Spec) {
		for _, text := range cidrs {
			p := netip.MustParsePrefix(text)
			f := FamilyOf(p)
			s.CIDRs[f], s.HostBits[f] = append(s.CIDRs[f], p), hostBits
		}
	}
}

// labelled adds a term that wants labels, key and value by turns.
func labelled(pairs ...string) func(*Spec) {
	return func(s *Spec) {
		var t corev1.NodeSelectorTerm
		for i := 0; i < len(pairs); i += 2 {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: pairs[i], Operator: corev1.NodeSelectorOpIn, Values: []string{pairs[i+1]}})
		}
		orTerm(t)(s)
	}
}

func orTerm(t corev1.NodeSelectorTerm) func(*Spec) {
	return func(s *Spec) {
		if s.Selector == nil {
			s.Selector = &corev1.NodeSelector{}
		}
		s.Selector.NodeSelectorTerms = append(s.Selector.NodeSelectorTerms, t)
	}
}

func grows(f Family, hostBits int) func(*Spec) {
	return func(s *Spec) { s.Elastic[f], s.HostBits[f] = true, hostBits }
}

func aRange(tb testing.TB, name string, change ...func(*Spec)) *Range {
	tb.Helper()
	var s Spec
	for _, f := range change {
		f(&s)
	}
	r, errs := Compile(Ref{Kind: "ClusterCIDR", Name: name, UID: types.UID("uid-" + name)}, s)
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return r
}

// aNode is a Node with labels, key and value by turns.
func aNode(name string, pairs ...string) *Node {
	n := &Node{Name: name, UID: types.UID("uid-" + name), Created: noon, Labels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		n.Labels[pairs[i]] = pairs[i+1]
	}
	return n
}

// has is the Node with podCIDRs.
func (n *Node) has(cidrs ...string) *Node {
	out := *n
	out.CIDRs = nil
	for _, c := range cidrs {
		out.CIDRs = append(out.CIDRs, netip.MustParsePrefix(c))
	}
	return &out
}

func texts(cidrs []netip.Prefix) (out []string) {
	for _, p := range cidrs {
		out = append(out, p.String())
	}
	return out
}
