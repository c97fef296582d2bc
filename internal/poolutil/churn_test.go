package poolutil

import (
	"math/rand/v2"
	"testing"

	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// firstFit is the policy with which best fit is compared: it takes from the lowest block that is large enough.
func firstFit(f *Free, n uint64) (netipx.IPRange, bool) {
	for r := range f.All() {
		if uint64(Size(r)) >= n {
			b := blockFromRange(r)
			r = block{b.first, b.first.AddWrap(uint128.From64(n - 1))}.ipRange(f.v4)
			return r, f.Take(r)
		}
	}
	return netipx.IPRange{}, false
}

// churn simulates tenants that come and go in a /20 that is 60 to 90 % full. It returns the size of the largest free
// block, averaged over all steps, and the number of failed requests. The random sizes and departures are the same for
// both policies.
func churn(seed uint64, size func(*rand.Rand) uint64, fit func(*Free, uint64) (netipx.IPRange, bool)) (largest float64, failed int) {
	const steps = 4000
	f := NewFree(setOf("10.0.0.0/20"))
	rng := rand.New(rand.NewPCG(seed, 1))
	var tenants []netipx.IPRange
	for range steps {
		n, leaver := size(rng), rng.Float64()
		if used := 4096 - freeCount(f); used > 4096*6/10 && (used > 4096*9/10 || leaver < 0.5) {
			i := int(leaver * float64(len(tenants)))
			f.Put(tenants[i])
			tenants[i] = tenants[len(tenants)-1]
			tenants = tenants[:len(tenants)-1]
		} else if r, ok := fit(f, n); ok {
			tenants = append(tenants, r)
		} else {
			failed++
		}
		largest += float64(f.Largest()) / steps
	}
	return largest, failed
}

// TestBestFitKeepsLargerBlocks checks that best fit preserves larger contiguous blocks over the life of a pool, and
// that single addresses fill the holes between them (B60).
func TestBestFitKeepsLargerBlocks(t *testing.T) {
	for name, size := range map[string]func(*rand.Rand) uint64{
		"Blocks": func(r *rand.Rand) uint64 { return uint64(1 + r.IntN(64)) },
		"MostlySingles": func(r *rand.Rand) uint64 {
			n := uint64(8 + r.IntN(57))
			if r.IntN(10) < 7 {
				n = 1
			}
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			var best, first float64
			var bestFailed, firstFailed int
			const seeds = 20
			for seed := range uint64(seeds) {
				b, bf := churn(seed, size, (*Free).BestFit)
				f, ff := churn(seed, size, firstFit)
				best, first, bestFailed, firstFailed = best+b/seeds, first+f/seeds, bestFailed+bf, firstFailed+ff
			}
			t.Logf("largest free block on average: best fit %.1f, first fit %.1f; failed: %d, %d", best, first, bestFailed, firstFailed)
			if best < first {
				t.Errorf("best fit keeps %.1f addresses in one block, first fit %.1f", best, first)
			}
		})
	}
}
