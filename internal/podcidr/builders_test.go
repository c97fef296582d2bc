package podcidr

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// withCIDRs adds CIDRs of any family, with the given host bits.
func withCIDRs(hostBits int, cidrs ...string) func(*RangeSpec) {
	return func(s *RangeSpec) {
		for _, text := range cidrs {
			p := netip.MustParsePrefix(text)
			f := FamilyForPrefix(p)
			s.CIDRs[f], s.HostBits[f] = append(s.CIDRs[f], p), hostBits
		}
	}
}

// labelled adds a term that requires labels, given as alternating keys and values.
func labelled(pairs ...string) func(*RangeSpec) {
	return func(s *RangeSpec) {
		var t corev1.NodeSelectorTerm
		for i := 0; i < len(pairs); i += 2 {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: pairs[i], Operator: corev1.NodeSelectorOpIn, Values: []string{pairs[i+1]}})
		}
		orTerm(t)(s)
	}
}

func orTerm(t corev1.NodeSelectorTerm) func(*RangeSpec) {
	return func(s *RangeSpec) {
		if s.NodeSelector == nil {
			s.NodeSelector = &corev1.NodeSelector{}
		}
		s.NodeSelector.NodeSelectorTerms = append(s.NodeSelector.NodeSelectorTerms, t)
	}
}

func grows(f Family, hostBits int) func(*RangeSpec) {
	return func(s *RangeSpec) { s.Elastic[f], s.HostBits[f] = true, hostBits }
}

func newTestRange(tb testing.TB, name string, change ...func(*RangeSpec)) *Range {
	tb.Helper()
	var s RangeSpec
	for _, f := range change {
		f(&s)
	}
	r, errs := CompileRange(Ref{Kind: "ClusterCIDR", Name: name, UID: types.UID("uid-" + name)}, s)
	if len(errs) > 0 {
		tb.Fatal(errs)
	}
	return r
}

// newTestNode returns a Node with labels, given as alternating keys and values.
func newTestNode(name string, pairs ...string) *Node {
	n := &Node{Name: name, UID: types.UID("uid-" + name), CreatedAt: noon, Labels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		n.Labels[pairs[i]] = pairs[i+1]
	}
	return n
}

// has returns the Node with podCIDRs.
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
