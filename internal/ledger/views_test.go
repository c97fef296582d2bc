package ledger

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
)

// TestViewsAgainstSet checks that the free space of each watched prefix is that prefix without what is taken: for
// nested prefixes, at the ends of a family, watched before and after facts are added.
func TestViewsAgainstSet(t *testing.T) {
	for _, world := range [][]string{
		{"10.0.0.0/26", "10.0.0.0/28", "10.0.0.16/28", "10.0.0.20/30", "10.0.0.128/26"},
		{"0.0.0.0/26", "0.0.0.0/32", "0.0.0.32/27"},
		{"255.255.255.128/25", "255.255.255.252/30", "255.255.255.255/32"},
		{"::/121", "::40/122"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff80/121", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124"},
	} {
		for seed := range uint64(20) {
			checkViewsAgainstSet(t, rand.New(rand.NewPCG(seed, 3)), world)
		}
	}
}

func checkViewsAgainstSet(t *testing.T, r *rand.Rand, world []string) {
	t.Helper()
	var all []netip.Prefix
	for _, text := range world {
		all = append(all, netip.MustParsePrefix(text))
	}
	l, facts := New(&netipx.IPSet{}, all[0].Addr().BitLen()), map[Key]netipx.IPRange{}
	var watched []netip.Prefix
	for range 200 {
		key := Key{Source: Source(r.IntN(int(SourceDraining) + 1)), UID: types.UID(rune('a' + r.IntN(9)))}
		switch p := all[r.IntN(len(all))]; r.IntN(5) {
		case 0:
			l.WatchPrefix(p)
			if !slices.Contains(watched, p) {
				watched = append(watched, p)
			}
		case 1:
			l.RemoveFact(key)
			delete(facts, key)
		default:
			whole := netipx.RangeOfPrefix(netip.PrefixFrom(p.Addr(), max(p.Bits()-1, 0)).Masked())
			first := whole.From()
			for range r.IntN(100) {
				if next := first.Next(); next.IsValid() && whole.Contains(next) {
					first = next
				}
			}
			last := first
			for range r.IntN(20) {
				if next := last.Next(); next.IsValid() {
					last = next
				}
			}
			facts[key] = netipx.IPRangeFrom(first, last)
			l.AddFact(Fact{Key: key, Owner: Owner{Name: string(key.UID), UID: key.UID}, Range: facts[key]})
		}
		for _, p := range watched {
			var b netipx.IPSetBuilder
			b.AddPrefix(p)
			for _, taken := range facts {
				b.RemoveRange(taken)
			}
			want, err := b.IPSet()
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Collect(l.prefixViews.byPrefix[p].free.All()); !slices.Equal(got, want.Ranges()) {
				t.Fatalf("%v has %v free, and %v is", p, got, want.Ranges())
			}
			if free, ok := l.FindFreePrefix(p, p.Addr().BitLen()); ok == (len(want.Ranges()) == 0) || (ok && !want.Contains(free.Addr())) {
				t.Fatalf("the first of %v is %v, and %v is free", p, free, want.Ranges())
			}
		}
	}
	if _, ok := l.FindFreePrefix(netip.MustParsePrefix("192.0.2.0/24"), 32); ok {
		t.Error("something is free in what is not watched")
	}
}
