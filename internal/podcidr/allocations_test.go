package podcidr

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// take allocates for a Node, and expects the given CIDRs, or none.
func take(t *testing.T, b *Allocations, r *Range, node string, want ...string) {
	t.Helper()
	b.TrackRanges(r)
	got, ok := b.AllocateForNode(r, newTestNode(node), noon)
	if diff := cmp.Diff(want, texts(got)); diff != "" || ok != (len(want) > 0) {
		t.Errorf("%s gets (-want +got):\n%s", node, diff)
	}
}

// TestDualStackIsAllOrNothing checks N1: where one family is exhausted, nothing of the other is taken, however often a
// Node tries.
func TestDualStackIsAllOrNothing(t *testing.T) {
	b := NewAllocations(nil)
	dual := newTestRange(t, "dual", withCIDRs(8, "10.0.0.0/20", "fd00::/119"))
	take(t, b, dual, "a", "10.0.0.0/24", "fd00::/120")
	take(t, b, dual, "b", "10.0.1.0/24", "fd00::100/120")
	for range 20 {
		take(t, b, dual, "c")
	}
	four := newTestRange(t, "four", withCIDRs(8, "10.0.0.0/20"))
	if n := b.roomOf(four); n != 14 {
		t.Errorf("room for %d Nodes of 14", n)
	}
	take(t, b, four, "d", "10.0.2.0/24")
}

// TestRemainderOfOneFamilyIsGranted checks K5 and K6: another range may grant what is left over of one family.
func TestRemainderOfOneFamilyIsGranted(t *testing.T) {
	b := NewAllocations(nil)
	dual := newTestRange(t, "dual", withCIDRs(10, "10.0.0.0/20", "fd12:3456:789a:1::/64"))
	if dual.Capacity() != 4 || b.roomOf(dual) != 4 {
		t.Errorf("%d, room for %d", dual.Capacity(), b.roomOf(dual))
	}
	for _, n := range []string{"a", "b", "c", "d"} {
		if _, ok := b.AllocateForNode(dual, newTestNode(n), noon); !ok {
			t.Errorf("%s gets nothing", n)
		}
	}
	take(t, b, dual, "e")
	take(t, b, newTestRange(t, "six", withCIDRs(10, "fd12:3456:789a:1::/64")), "e", "fd12:3456:789a:1::1000/118")
}

func (as *Allocations) roomOf(r *Range) int64 {
	as.TrackRanges(r)
	return as.CountFree(r)
}

// TestOneCIDRInSeveralRanges checks K15: with one CIDR in several ranges, cut into several sizes, no two Nodes get
// overlapping CIDRs.
func TestOneCIDRInSeveralRanges(t *testing.T) {
	b := NewAllocations(nil)
	take(t, b, newTestRange(t, "small", withCIDRs(6, "10.0.0.0/8")), "a", "10.0.0.0/26")
	take(t, b, newTestRange(t, "large", withCIDRs(8, "10.0.0.0/8")), "b", "10.0.1.0/24")
	take(t, b, newTestRange(t, "inside", withCIDRs(7, "10.0.0.0/24")), "c", "10.0.0.128/25")
	take(t, b, newTestRange(t, "small", withCIDRs(6, "10.0.0.0/8")), "d", "10.0.0.64/26")
}

// TestAdoptionOfNodeCIDRs checks N2 and N4: the CIDRs of Nodes count by their addresses alone, whichever allocator set
// them, and whatever ranges there are.
func TestAdoptionOfNodeCIDRs(t *testing.T) {
	b := NewAllocations([]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")})
	for _, tt := range []struct {
		node *Node
		want []Conflict
	}{
		{node: newTestNode("foreign").has("192.168.0.0/24")},
		{node: newTestNode("hostBits").has("10.0.0.77/24")},
		{node: newTestNode("six").has("fd00::/120")},
		{node: newTestNode("dual").has("10.0.2.0/24", "fd00::100/120")},
		{node: newTestNode("twice").has("10.0.0.128/25"), want: []Conflict{{NodeName: "twice", OtherNodeName: "hostBits", OtherNodeUID: "uid-hostBits", OtherCIDR: netip.MustParsePrefix("10.0.0.0/24")}}},
		{node: newTestNode("foreign").has("192.168.0.0/24")},
		{node: newTestNode("dual")},
	} {
		if diff := cmp.Diff(tt.want, b.RecordNode(tt.node), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.node.Name, diff)
		}
	}
	r := newTestRange(t, "r", withCIDRs(8, "10.0.0.0/21"))
	take(t, b, r, "new", "10.0.3.0/24") // and none of 0, 1 and 2
	if n := b.CountFree(r); n != 4 {
		t.Errorf("room for %d", n)
	}
	b.ReleaseNode("uid-hostBits", noon)
	if n := b.CountFree(r); n != 4 { // twice still has half of it
		t.Errorf("room for %d", n)
	}
}

// TestCoolingCIDRsArePassedOver checks that a CIDR is free when the UID of its Node is gone, and is passed over for a
// while, but keeps no Node waiting.
func TestCoolingCIDRsArePassedOver(t *testing.T) {
	b := NewAllocations(nil)
	r := newTestRange(t, "r", withCIDRs(8, "10.0.0.0/22"))
	for n, p := range map[string]string{"a": "10.0.0.0/24", "b": "10.0.1.0/24", "c": "10.0.2.0/24"} {
		b.RecordNode(newTestNode(n).has(p))
	}
	b.ReleaseNode("uid-b", noon.Add(-time.Minute))
	b.ReleaseNode("uid-a", noon)
	if n := b.roomOf(r); n != 3 {
		t.Errorf("room for %d", n)
	}
	take(t, b, r, "d", "10.0.3.0/24")
	take(t, b, r, "e", "10.0.1.0/24") // nothing else is left, and it has been cooling for longer
	take(t, b, r, "f", "10.0.0.0/24")
	take(t, b, r, "g")
	b.ReleaseNode("uid-c", noon)
	b.ReleaseNode("uid-d", noon)
	if got, ok := b.AllocateForNode(r, newTestNode("h"), noon.Add(coolingPeriod)); !ok || got[0].String() != "10.0.2.0/24" {
		t.Errorf("%v", got)
	}
}

// TestGrantEndsWithPodCIDRs checks that a grant ends when its Node has any podCIDRs, as it can no longer land.
func TestGrantEndsWithPodCIDRs(t *testing.T) {
	b := NewAllocations(nil)
	r := newTestRange(t, "r", withCIDRs(8, "10.0.0.0/23"))
	take(t, b, r, "a", "10.0.0.0/24")
	take(t, b, r, "b", "10.0.1.0/24")
	b.RecordNode(newTestNode("a").has("192.168.0.0/24"))
	take(t, b, r, "c", "10.0.0.0/24")
	b.WithdrawGrant("uid-c")
	take(t, b, r, "d", "10.0.0.0/24")
	b.RecordNode(newTestNode("d").has("10.0.0.0/24"))
	b.WithdrawGrant("uid-d")
	take(t, b, r, "e")
}

// TestDiscontiguousRanges checks K44: four discontiguous ranges serve 32 Nodes, eight each.
func TestDiscontiguousRanges(t *testing.T) {
	b := NewAllocations(nil)
	ranges := []*Range{
		newTestRange(t, "1", withCIDRs(8, "10.0.0.0/21")), newTestRange(t, "2", withCIDRs(8, "10.3.8.0/21")),
		newTestRange(t, "3", withCIDRs(8, "10.7.0.0/21")), newTestRange(t, "4", withCIDRs(8, "192.168.8.0/21")),
	}
	var nodes []*Node
	for i := range 33 {
		nodes = append(nodes, newTestNode(string(rune('A'+i))))
	}
	d := PlanGrants(b, ranges, nodes, 100, noon)
	if len(d.Grants) != 32 || len(d.Refusals) != 1 {
		t.Errorf("%d have something, %d have nothing", len(d.Grants), len(d.Refusals))
	}
	var all []netip.Prefix
	from := map[string]int{}
	for _, g := range d.Grants {
		if slices.ContainsFunc(all, g.CIDRs[0].Overlaps) {
			t.Errorf("%v twice", g.CIDRs[0])
		}
		all = append(all, g.CIDRs[0])
		from[g.RangeRef.Name]++
		if r := ranges[slices.IndexFunc(ranges, func(r *Range) bool { return r.Ref == g.RangeRef })]; g.CIDRs[0].Bits() != 24 || !r.ContainsAll(g.CIDRs) {
			t.Errorf("%s gives %v", r.Name, g.CIDRs)
		}
	}
	if diff := cmp.Diff(map[string]int{"1": 8, "2": 8, "3": 8, "4": 8}, from); diff != "" {
		t.Errorf("Nodes of each (-want +got):\n%s", diff)
	}
}

// TestCoolingPiecesMakeRoom checks that CIDRs that cool in pieces are free for a Node that needs a larger one, where
// no Node has any of the remainder.
func TestCoolingPiecesMakeRoom(t *testing.T) {
	b := NewAllocations(nil)
	large := newTestRange(t, "large", withCIDRs(8, "10.0.0.0/24"))
	b.TrackRanges(large)
	for _, n := range []*Node{newTestNode("a").has("10.0.0.0/26"), newTestNode("b").has("10.0.0.64/26")} {
		b.RecordNode(n)
	}
	b.ReleaseNode("uid-a", noon)
	if n := b.roomOf(large); n != 0 {
		t.Errorf("room for %d Nodes while b has a piece", n)
	}
	b.ReleaseNode("uid-b", noon)
	if n := b.roomOf(large); n != 1 {
		t.Errorf("room for %d Nodes of what rests in two pieces", n)
	}
	take(t, b, large, "c", "10.0.0.0/24")
	if n := b.roomOf(large); n != 0 {
		t.Errorf("room for %d Nodes then", n)
	}
}
