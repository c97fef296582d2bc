package poolutil

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"go4.org/netipx"
	"lukechampine.com/uint128"
)

// newMostlyTaken returns p with nine in ten of its first 2^20 addresses taken one by one at random, and these
// addresses.
func newMostlyTaken(p string) (*Free, []netipx.IPRange) {
	f := NewFree(setOf(p))
	rng := rand.New(rand.NewPCG(1, 2))
	base := addressNumber(netip.MustParsePrefix(p).Addr())
	var taken []netipx.IPRange
	for _, i := range rng.Perm(1 << 20)[:(1<<20)/10*9] {
		n := base.AddWrap(uint128.From64(uint64(i)))
		r := block{n, n}.ipRange(f.v4)
		f.Take(r)
		taken = append(taken, r)
	}
	return f, taken
}

// BenchmarkPutBestFit frees an address chosen at random and takes another, across the whole pool, so that the
// processor's cache does not distort the result.
func BenchmarkPutBestFit(b *testing.B) {
	for _, p := range []string{"10.0.0.0/12", "2001:db8::/64"} {
		b.Run(p, func(b *testing.B) {
			f, taken := newMostlyTaken(p)
			rng := rand.New(rand.NewPCG(3, 4))
			b.ReportAllocs()
			for b.Loop() {
				i := rng.IntN(len(taken))
				f.Put(taken[i])
				taken[i], _ = f.BestFit(1)
			}
		})
	}
}

// BenchmarkBestFitPrefixFragmented takes aligned pairs of addresses where half of the free pairs are not aligned.
func BenchmarkBestFitPrefixFragmented(b *testing.B) {
	f, _ := newMostlyTaken("10.0.0.0/12")
	b.ReportAllocs()
	for b.Loop() {
		p, ok := f.BestFitPrefix(31)
		if !ok {
			b.Fatal("full")
		}
		f.Put(netipx.RangeOfPrefix(p))
	}
}

// TestNoAllocationsFragmented checks the design target L0, 0 allocations, also where addresses are freed across the
// whole pool.
func TestNoAllocationsFragmented(t *testing.T) {
	for _, p := range []string{"10.0.0.0/12", "2001:db8::/64"} {
		f, taken := newMostlyTaken(p)
		i := 0
		if n := testing.AllocsPerRun(1<<14, func() {
			f.Put(taken[i])
			taken[i], _ = f.BestFit(1)
			i++
		}); n != 0 {
			t.Errorf("%s: %v allocations per Put and BestFit", p, n)
		}
	}
}
