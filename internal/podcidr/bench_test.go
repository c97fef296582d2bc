package podcidr

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// The cost of a Node is to stay what it is, however many there are.
func BenchmarkTake(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			r := aRange(b, "r", cut(8, "10.0.0.0/8", "fd00::/64"))
			r6 := aRange(b, "r6", cut(4, "11.0.0.0/8"))
			books := NewBooks(nil)
			books.Watch(r, r6)
			for i := range n {
				if _, ok := books.Take(r6, &Node{UID: types.UID(fmt.Sprint(i))}, noon); !ok {
					b.Fatal("full")
				}
			}
			node := &Node{UID: "x", Name: "x"}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, ok := books.Take(r6, node, noon); !ok {
					b.Fatal("full")
				}
				books.Withdraw(node.UID)
			}
		})
	}
}

// Nodes over ranges of which each selects some: all that wait, and those of one commit.
func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct{ nodes, ranges, most int }{{10_000, 1, 10_000}, {10_000, 300, 10_000}, {5000, 1000, 5000}, {5000, 1000, 128}} {
		b.Run(fmt.Sprintf("%d of %dx%d", c.most, c.nodes, c.ranges), func(b *testing.B) {
			var all []*Range
			for i := range c.ranges {
				all = append(all, aRange(b, fmt.Sprint(i), labelled("group", fmt.Sprint(i)), cut(4, "10.0.0.0/8")))
			}
			var nodes []*Node
			for i := range c.nodes {
				nodes = append(nodes, aNode(fmt.Sprint(i), "group", fmt.Sprint(i%c.ranges), "kubernetes.io/os", "linux", "kubernetes.io/arch", "amd64"))
			}
			b.ResetTimer()
			for range b.N {
				if d := Plan(NewBooks(nil), all, nodes, c.most, noon); len(d.Grants) != c.most {
					b.Fatalf("%d", len(d.Grants))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(c.most), "µs/node")
		})
	}
}
