package podcidr

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// take takes, and expects some CIDRs or none.
func take(t *testing.T, b *Books, r *Range, node string, want ...string) {
	t.Helper()
	b.Watch(r)
	got, ok := b.Take(r, aNode(node), noon)
	if diff := cmp.Diff(want, texts(got)); diff != "" || ok != (len(want) > 0) {
		t.Errorf("%s gets (-want +got):\n%s", node, diff)
	}
}

// N1: where one family is exhausted, nothing of the other is taken, however often a Node tries.
func TestDualStackIsAllOrNothing(t *testing.T) {
	b := NewBooks(nil)
	dual := aRange(t, "dual", cut(8, "10.0.0.0/20", "fd00::/119"))
	take(t, b, dual, "a", "10.0.0.0/24", "fd00::/120")
	take(t, b, dual, "b", "10.0.1.0/24", "fd00::100/120")
	for range 20 {
		take(t, b, dual, "c")
	}
	four := aRange(t, "four", cut(8, "10.0.0.0/20"))
	if n := b.roomOf(four); n != 14 {
		t.Errorf("room for %d Nodes of 14", n)
	}
	take(t, b, four, "d", "10.0.2.0/24")
}

// K5, K6: what one family has left over, another range may give.
func TestWhatIsLeftOver(t *testing.T) {
	b := NewBooks(nil)
	dual := aRange(t, "dual", cut(10, "10.0.0.0/20", "fd12:3456:789a:1::/64"))
	if dual.Capacity() != 4 || b.roomOf(dual) != 4 {
		t.Errorf("%d, room for %d", dual.Capacity(), b.roomOf(dual))
	}
	for _, n := range []string{"a", "b", "c", "d"} {
		if _, ok := b.Take(dual, aNode(n), noon); !ok {
			t.Errorf("%s gets nothing", n)
		}
	}
	take(t, b, dual, "e")
	take(t, b, aRange(t, "six", cut(10, "fd12:3456:789a:1::/64")), "e", "fd12:3456:789a:1::1000/118")
}

func (b *Books) roomOf(r *Range) int64 {
	b.Watch(r)
	return b.Room(r)
}

// K15: one CIDR in several ranges, cut in several sizes, and nobody has what another one has.
func TestOneCIDRInSeveralRanges(t *testing.T) {
	b := NewBooks(nil)
	take(t, b, aRange(t, "small", cut(6, "10.0.0.0/8")), "a", "10.0.0.0/26")
	take(t, b, aRange(t, "large", cut(8, "10.0.0.0/8")), "b", "10.0.1.0/24")
	take(t, b, aRange(t, "inside", cut(7, "10.0.0.0/24")), "c", "10.0.0.128/25")
	take(t, b, aRange(t, "small", cut(6, "10.0.0.0/8")), "d", "10.0.0.64/26")
}

// N2, N4: what Nodes have counts by its addresses alone, whoever gave it, and whatever ranges there are.
func TestAdoption(t *testing.T) {
	b := NewBooks([]netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")})
	for _, tt := range []struct {
		node *Node
		want []Clash
	}{
		{node: aNode("foreign").has("192.168.0.0/24")},
		{node: aNode("hostBits").has("10.0.0.77/24")},
		{node: aNode("six").has("fd00::/120")},
		{node: aNode("dual").has("10.0.2.0/24", "fd00::100/120")},
		{node: aNode("twice").has("10.0.0.128/25"), want: []Clash{{Node: "twice", Other: "hostBits", OtherUID: "uid-hostBits", CIDR: netip.MustParsePrefix("10.0.0.0/24")}}},
		{node: aNode("foreign").has("192.168.0.0/24")},
		{node: aNode("dual")},
	} {
		if diff := cmp.Diff(tt.want, b.Set(tt.node), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.node.Name, diff)
		}
	}
	r := aRange(t, "r", cut(8, "10.0.0.0/21"))
	take(t, b, r, "new", "10.0.3.0/24") // and none of 0, 1 and 2
	if n := b.Room(r); n != 4 {
		t.Errorf("room for %d", n)
	}
	b.Drop("uid-hostBits", noon)
	if n := b.Room(r); n != 4 { // twice has half of it still
		t.Errorf("room for %d", n)
	}
}

// A CIDR is free when the UID is gone, and passed over for a while, but keeps nobody waiting.
func TestWhatRests(t *testing.T) {
	b := NewBooks(nil)
	r := aRange(t, "r", cut(8, "10.0.0.0/22"))
	for n, p := range map[string]string{"a": "10.0.0.0/24", "b": "10.0.1.0/24", "c": "10.0.2.0/24"} {
		b.Set(aNode(n).has(p))
	}
	b.Drop("uid-b", noon.Add(-time.Minute))
	b.Drop("uid-a", noon)
	if n := b.roomOf(r); n != 3 {
		t.Errorf("room for %d", n)
	}
	take(t, b, r, "d", "10.0.3.0/24")
	take(t, b, r, "e", "10.0.1.0/24") // nothing else is left; it has rested for longer
	take(t, b, r, "f", "10.0.0.0/24")
	take(t, b, r, "g")
	b.Drop("uid-c", noon)
	b.Drop("uid-d", noon)
	if got, ok := b.Take(r, aNode("h"), noon.Add(restFor)); !ok || got[0].String() != "10.0.2.0/24" {
		t.Errorf("%v", got)
	}
}

// A grant ends when the Node has podCIDRs, whichever: it can land no more.
func TestAGrantEndsWithPodCIDRs(t *testing.T) {
	b := NewBooks(nil)
	r := aRange(t, "r", cut(8, "10.0.0.0/23"))
	take(t, b, r, "a", "10.0.0.0/24")
	take(t, b, r, "b", "10.0.1.0/24")
	b.Set(aNode("a").has("192.168.0.0/24"))
	take(t, b, r, "c", "10.0.0.0/24")
	b.Withdraw("uid-c")
	take(t, b, r, "d", "10.0.0.0/24")
	b.Set(aNode("d").has("10.0.0.0/24"))
	b.Withdraw("uid-d")
	take(t, b, r, "e")
}

// K44: four discontiguous ranges serve 32 Nodes, eight each.
func TestDiscontiguous(t *testing.T) {
	b := NewBooks(nil)
	ranges := []*Range{
		aRange(t, "1", cut(8, "10.0.0.0/21")), aRange(t, "2", cut(8, "10.3.8.0/21")),
		aRange(t, "3", cut(8, "10.7.0.0/21")), aRange(t, "4", cut(8, "192.168.8.0/21")),
	}
	var nodes []*Node
	for i := range 33 {
		nodes = append(nodes, aNode(string(rune('A'+i))))
	}
	d := Plan(b, ranges, nodes, 100, noon)
	if len(d.Grants) != 32 || len(d.Refused) != 1 {
		t.Errorf("%d have something, %d have nothing", len(d.Grants), len(d.Refused))
	}
	var all []netip.Prefix
	from := map[string]int{}
	for _, g := range d.Grants {
		if slices.ContainsFunc(all, g.CIDRs[0].Overlaps) {
			t.Errorf("%v twice", g.CIDRs[0])
		}
		all = append(all, g.CIDRs[0])
		from[g.From.Name]++
		if r := ranges[slices.IndexFunc(ranges, func(r *Range) bool { return r.Ref == g.From })]; g.CIDRs[0].Bits() != 24 || !r.Has(g.CIDRs) {
			t.Errorf("%s gives %v", r.Name, g.CIDRs)
		}
	}
	if diff := cmp.Diff(map[string]int{"1": 8, "2": 8, "3": 8, "4": 8}, from); diff != "" {
		t.Errorf("Nodes of each (-want +got):\n%s", diff)
	}
}

// What rests in pieces is free for a Node that needs more, where no Node has any of the rest.
func TestRoomOfWhatRestsInPieces(t *testing.T) {
	b := NewBooks(nil)
	large := aRange(t, "large", cut(8, "10.0.0.0/24"))
	b.Watch(large)
	for _, n := range []*Node{aNode("a").has("10.0.0.0/26"), aNode("b").has("10.0.0.64/26")} {
		b.Set(n)
	}
	b.Drop("uid-a", noon)
	if n := b.roomOf(large); n != 0 {
		t.Errorf("room for %d Nodes while b has a piece", n)
	}
	b.Drop("uid-b", noon)
	if n := b.roomOf(large); n != 1 {
		t.Errorf("room for %d Nodes of what rests in two pieces", n)
	}
	take(t, b, large, "c", "10.0.0.0/24")
	if n := b.roomOf(large); n != 0 {
		t.Errorf("room for %d Nodes then", n)
	}
}
