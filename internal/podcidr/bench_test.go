package podcidr

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkTake measures the cost of a Node, which must not grow with the number of Nodes.
func BenchmarkTake(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			r := newTestRange(b, "r", withCIDRs(8, "10.0.0.0/8", "fd00::/64"))
			r6 := newTestRange(b, "r6", withCIDRs(4, "11.0.0.0/8"))
			books := NewAllocations(nil)
			books.TrackRanges(r, r6)
			for i := range n {
				if _, ok := books.AllocateForNode(r6, &Node{UID: types.UID(fmt.Sprint(i))}, noon); !ok {
					b.Fatal("full")
				}
			}
			node := &Node{UID: "x", Name: "x"}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, ok := books.AllocateForNode(r6, node, noon); !ok {
					b.Fatal("full")
				}
				books.WithdrawGrant(node.UID)
			}
		})
	}
}

// BenchmarkPlan plans for Nodes over ranges that each select some of them: for all that wait, and for as many as one
// commit grants.
func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct{ nodes, ranges, most int }{{10_000, 1, 10_000}, {10_000, 300, 10_000}, {5000, 1000, 5000}, {5000, 1000, 128}} {
		b.Run(fmt.Sprintf("%d of %dx%d", c.most, c.nodes, c.ranges), func(b *testing.B) {
			var all []*Range
			for i := range c.ranges {
				all = append(all, newTestRange(b, fmt.Sprint(i), labelled("group", fmt.Sprint(i)), withCIDRs(4, "10.0.0.0/8")))
			}
			var nodes []*Node
			for i := range c.nodes {
				nodes = append(nodes, newTestNode(fmt.Sprint(i), "group", fmt.Sprint(i%c.ranges), "kubernetes.io/os", "linux", "kubernetes.io/arch", "amd64"))
			}
			b.ResetTimer()
			for range b.N {
				if d := PlanGrants(NewAllocations(nil), all, nodes, c.most, noon); len(d.Grants) != c.most {
					b.Fatalf("%d", len(d.Grants))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(c.most), "µs/node")
		})
	}
}
