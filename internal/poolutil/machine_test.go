package poolutil

import (
	"testing"

	"pgregory.net/rapid"
)

// TestFreeAgainstOracle checks that any operations in any order have the result of the oracle (B60, B61, B62, B63).
func TestFreeAgainstOracle(t *testing.T) {
	for _, universe := range universes {
		t.Run(universe, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newTwins(universe)
				size := len(w.o.addrs)
				extent := func(t *rapid.T) (i, n int) {
					i = rapid.IntRange(0, size-1).Draw(t, "from")
					return i, rapid.IntRange(1, min(size-i, 12)).Draw(t, "n")
				}
				t.Repeat(map[string]func(*rapid.T){
					"": func(t *rapid.T) { w.check(t) },
					"bestFit": func(t *rapid.T) {
						w.bestFit(t, rapid.IntRange(0, 17).Draw(t, "n"))
					},
					"bestFitPrefix": func(t *rapid.T) {
						w.bestFitPrefix(t, w.o.addrs[0].BitLen()-rapid.IntRange(-1, 7).Draw(t, "host bits"))
					},
					"take": func(t *rapid.T) {
						i, n := extent(t)
						w.take(t, i, n)
					},
					"takeAny": func(t *rapid.T) {
						i, n := extent(t)
						w.takeAny(t, i, n)
					},
					"put": func(t *rapid.T) {
						i, n := extent(t)
						w.put(t, i, n)
					},
				})
			})
		})
	}
}
