package ledger

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
)

// TestCountersAgainstFullCount checks that the counts that are updated at each change equal a full count.
func TestCountersAgainstFullCount(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var b netipx.IPSetBuilder
		var parts []netipx.IPRange
		for _, p := range []string{"10.0.0.0/28", "10.0.0.16/28", "10.0.0.64/28"} {
			prefix := netip.MustParsePrefix(p)
			b.AddPrefix(prefix)
			parts = append(parts, netipx.RangeOfPrefix(prefix))
		}
		b.Remove(netip.MustParseAddr("10.0.0.1"))
		space, err := b.IPSet()
		if err != nil {
			t.Fatal(err)
		}
		l := New(space, 32)
		l.SetCountedRanges(parts)
		for range 400 {
			key := Key{Source: Source(r.IntN(int(SourceDraining) + 1)), UID: types.UID(rune('a' + r.IntN(12)))}
			if r.IntN(3) == 0 {
				l.RemoveFact(key)
			} else {
				first := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(90))})
				last := first
				for range r.IntN(20) {
					last = last.Next()
				}
				l.AddFact(Fact{Key: key, Owner: Owner{Name: string(key.UID), UID: key.UID}, Range: netipx.IPRangeFrom(first, last)})
			}
			for _, p := range l.countedRanges {
				want := l.countRange(p.ipRange)
				if *p != want {
					t.Fatalf("seed %d: %v has %+v, and there is %+v", seed, p.ipRange, *p, want)
				}
				used, free := l.UsageInRange(p.ipRange)
				if used != want.used.Int64() || free != want.total.Minus(want.unavailable).Int64() {
					t.Fatalf("seed %d: UsageInRange = %d and %d", seed, used, free)
				}
			}
		}
	}
}

func TestHasCoolingOrHeld(t *testing.T) {
	block := netipx.RangeOfPrefix(netip.MustParsePrefix("10.0.0.16/28"))
	at := func(s string) netipx.IPRange {
		a := netip.MustParseAddr(s)
		return netipx.IPRangeFrom(a, a)
	}
	tests := map[string]struct {
		source Source
		at     string
		want   bool
	}{
		"Rests":     {SourceCooling, "10.0.0.17", true},
		"Held":      {SourceHeld, "10.0.0.31", true},
		"Elsewhere": {SourceCooling, "10.0.0.32", false},
		"InUse":     {SourceObject, "10.0.0.17", false},
		"Pinned":    {SourcePin, "10.0.0.17", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := New(&netipx.IPSet{}, 32)
			l.AddFact(Fact{Key: Key{Source: tt.source, UID: "a"}, Range: at(tt.at)})
			if got := l.HasCoolingOrHeld(block); got != tt.want {
				t.Errorf("HasCoolingOrHeld = %v", got)
			}
		})
	}
}
