package poolutil

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"go4.org/netipx"
)

// fragmented returns a /12 of 2^20 addresses with 90 % of them taken at random.
func fragmented() *Free {
	f := NewFree(setOf("10.0.0.0/12"))
	rng := rand.New(rand.NewPCG(1, 2))
	order := rng.Perm(1 << 20)
	for _, i := range order[:len(order)*9/10] {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		f.Take(netipx.IPRangeFrom(a, a))
	}
	return f
}

func setOf(texts ...string) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, s := range texts {
		r, err := ParseRange(s)
		if err != nil {
			panic(err)
		}
		b.AddRange(r)
	}
	s, err := b.IPSet()
	if err != nil {
		panic(err)
	}
	return s
}

// ring returns a step that takes an address and frees one that was taken long before: a pool that stays at 90 %.
func ring(f *Free) func() {
	const held = 1 << 12
	var taken [held]netipx.IPRange
	i := 0
	return func() {
		if taken[i].IsValid() {
			f.Put(taken[i])
		}
		taken[i], _ = f.BestFit(1)
		i = (i + 1) % held
	}
}

func BenchmarkBestFit(b *testing.B) {
	for name, f := range map[string]*Free{"IPv4 2^20 at 90%": fragmented(), "IPv6 /64": NewFree(setOf("fd00::/64"))} {
		b.Run(name, func(b *testing.B) {
			step := ring(f)
			for range 1 << 13 {
				step()
			}
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

func BenchmarkBestFitPrefix(b *testing.B) {
	f := NewFree(setOf("fd00::/48"))
	b.ReportAllocs()
	for b.Loop() {
		p, ok := f.BestFitPrefix(64)
		if !ok {
			b.Fatal("full")
		}
		f.Put(netipx.RangeOfPrefix(p))
	}
}

// TestNoAllocations checks that the allocator's hot path allocates no memory.
func TestNoAllocations(t *testing.T) {
	for name, f := range map[string]*Free{"IPv4": fragmented(), "IPv6": NewFree(setOf("fd00::/64"))} {
		step := ring(f)
		for range 1 << 13 {
			step()
		}
		if n := testing.AllocsPerRun(1<<12, step); n != 0 {
			t.Errorf("%s: %v allocations per BestFit and Put", name, n)
		}
	}
}
