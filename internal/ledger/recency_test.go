package ledger

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// orderOracle is the order of takes in the slow, obvious way: the zone of each address of a small world, and its
// latest release.
type orderOracle struct {
	*oracle

	byRelease bool
	zone      map[netip.Addr]int
	released  map[netip.Addr]int
	clock     int
}

// after records what an operation has released of what was in use before it; if retracted is true, that use never
// came true.
func (o *orderOracle) after(retracted bool, operation func()) {
	was := map[netip.Addr]bool{}
	for _, a := range o.world {
		was[a] = len(o.users(a)) > 0
	}
	operation()
	o.clock++
	for _, a := range o.world {
		switch used := len(o.users(a)) > 0; {
		case used, !o.space[a], was[a] && retracted:
			delete(o.released, a)
		case was[a] && o.byRelease:
			o.released[a] = o.clock
		}
	}
}

func (o *orderOracle) isFree(u netipx.IPRange) bool {
	return !slices.ContainsFunc(o.inside(u), func(a netip.Addr) bool { return !o.space[a] || o.taken[a] || o.held(a) })
}

// next returns what was never in use, by best fit in the first zone that has some, else the unit with the oldest
// release of any of the zones.
func (o *orderOracle) next(zones []int) (best netipx.IPRange, ok bool) {
	for _, z := range zones {
		scratch := *o.oracle
		scratch.taken = map[netip.Addr]bool{}
		for _, a := range o.world {
			if _, was := o.released[a]; was || o.taken[a] || o.zone[a] != z {
				scratch.taken[a] = true
			}
		}
		if best, ok = scratch.takeOne(); ok {
			break
		}
	}
	for _, u := range o.units {
		when, was := o.released[u.From()]
		if _, found := o.released[best.From()]; was && o.isFree(u) && slices.Contains(zones, o.zone[u.From()]) && (!ok || (found && when < o.released[best.From()])) {
			best, ok = u, true
		}
	}
	if ok {
		o.recordTaken(best)
	}
	return best, ok
}

// recordTaken records that a unit is taken and not stated.
func (o *orderOracle) recordTaken(u netipx.IPRange) {
	for _, a := range o.inside(u) {
		o.taken[a] = true
		delete(o.released, a)
	}
}

// drawZones cuts the world into zones: two zones get some ranges, and the rest is in none.
func (o *orderOracle) drawZones(t *rapid.T) AllocationOrder {
	out := AllocationOrder{LeastRecentlyUsed: rapid.Bool().Draw(t, "by release")}
	o.byRelease, o.zone = out.LeastRecentlyUsed, map[netip.Addr]int{}
	if !rapid.Bool().Draw(t, "zones") {
		return out
	}
	out.Zones = make([][]netipx.IPRange, 2)
	for _, u := range o.units {
		if z := rapid.IntRange(0, 2).Draw(t, "zone"); z > 0 {
			out.Zones[z-1] = append(out.Zones[z-1], u)
			for _, a := range o.inside(u) {
				o.zone[a] = z
			}
		}
	}
	return out
}

// drawAmong draws the zones that a caller may take something from.
func (o *orderOracle) drawAmong(t *rapid.T, order AllocationOrder) []int {
	if len(order.Zones) == 0 {
		return []int{0}
	}
	return rapid.SampledFrom([][]int{{0}, {1}, {2}, {1, 2}, {2, 1}}).Draw(t, "among")
}

// TestOrderAgainstOracle checks that the ledger hands out what a scan of every address gives, by zone (U53) and by
// release or best fit (U50), with other facts, across a change of the space, and for prefixes.
func TestOrderAgainstOracle(t *testing.T) {
	for _, world := range worlds {
		t.Run(world, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, world)
				o := &orderOracle{oracle: m.o, released: map[netip.Addr]int{}}
				order, unit := o.drawZones(t), m.l.unitBits
				m.l.SetOrder(order)
				t.Repeat(map[string]func(*rapid.T){
					"": func(t *rapid.T) {
						equal(t, "Counts", o.counts(), m.l.Counts())
						o.checkZones(t, m.l, len(order.Zones))
					},
					"add":      func(t *rapid.T) { o.after(false, func() { m.add(drawFact(t, m.extent(t))) }) },
					"addAlike": func(t *rapid.T) { o.after(false, func() { m.add(drawFact(t, m.l.UnitRange(m.extent(t).From()))) }) },
					"remove":   func(t *rapid.T) { o.after(false, func() { m.remove(t, drawKey(t)) }) },
					"retract": func(t *rapid.T) {
						k := drawKey(t)
						o.after(true, func() { delete(o.facts, k) })
						m.l.RetractFact(k)
					},
					"grant": func(t *rapid.T) {
						among := o.drawAmong(t, order)
						want, free := o.next(among)
						equal(t, "HasFreeInZones", free, m.l.HasFreeInZones(among))
						got, ok := m.l.TakeUnitInZones(among)
						equal(t, "TakeUnitInZones finds one", free, ok)
						equal(t, "TakeUnitInZones", want, got)
						if ok && rapid.Bool().Draw(t, "stated") {
							o.after(false, func() { m.add(drawFact(t, got)) })
						}
					},
					"block": func(t *rapid.T) { // by best fit, independent of the order
						if r, ok := m.l.TakeBlock(3); ok {
							for _, a := range o.inside(r) {
								equal(t, "the zone of a block", 0, o.zone[a])
							}
							o.recordTaken(r)
							o.after(false, func() { m.add(drawFact(t, r)) })
						}
					},
					"untake": m.returnUnit,
					"relayout": func(t *rapid.T) {
						var space netipx.IPSetBuilder
						for range rapid.IntRange(0, 3).Draw(t, "pieces") {
							space.AddRange(o.whole(m.extent(t)))
						}
						set, err := space.IPSet()
						if err != nil {
							t.Fatal(err)
						}
						order = o.drawZones(t)
						m.l.ApplyLayout(set, unit, order)
						if !order.LeastRecentlyUsed {
							clear(o.released)
						}
						o.after(false, func() { o.relayout(set, unit) })
					},
				})
			})
		})
	}
}

// checkZones compares how much is free in each zone, and how many releases are remembered.
func (o *orderOracle) checkZones(t *rapid.T, l *Ledger, zones int) {
	per := len(o.inside(o.units[0]))
	for z := range zones + 1 {
		free := 0
		for _, u := range o.units {
			if o.zone[u.From()] == z && o.isFree(u) {
				free++
			}
		}
		equal(t, fmt.Sprintf("FreeCountInZone(%d)", z), int64(free), l.FreeCountInZone(z))
	}
	remembered, free := 0, 0
	for r := range l.ReleasedRanges() {
		remembered += len(o.inside(r)) / per
	}
	for _, u := range o.units {
		if _, was := o.released[u.From()]; was && o.isFree(u) {
			free++
		}
	}
	equal(t, "ReleasedRanges", free, remembered)
}

func single(text string) netipx.IPRange {
	a := netip.MustParseAddr(text)
	return netipx.IPRangeFrom(a, a)
}

func set(tb testing.TB, text string) *netipx.IPSet {
	tb.Helper()
	var b netipx.IPSetBuilder
	b.AddRange(netipx.MustParseIPRange(text))
	out, err := b.IPSet()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// addFact states that an object has a range.
func addFact(l *Ledger, r netipx.IPRange) Key {
	k := Key{Source: SourceRecord, UID: types.UID(r.From().String())}
	l.AddFact(Fact{Key: k, Owner: Owner{Name: string(k.UID), UID: k.UID}, Range: r})
	return k
}

// TestRestoreRelease checks that restored releases come after what was never used, in their order (U50), and that
// ranges that are taken, outside of the space or restored twice do not count.
func TestRestoreRelease(t *testing.T) {
	l := New(set(t, "10.0.0.1-10.0.0.5"), 32)
	l.SetOrder(AllocationOrder{LeastRecentlyUsed: true})
	addFact(l, single("10.0.0.3"))
	for _, text := range []string{"10.0.0.4", "10.0.0.1", "10.0.0.3", "10.0.0.4", "10.9.9.9"} {
		l.RestoreRelease(single(text))
	}
	var got []string
	for r, ok := l.TakeUnit(); ok; r, ok = l.TakeUnit() {
		got = append(got, r.From().String())
	}
	if want := []string{"10.0.0.2", "10.0.0.5", "10.0.0.4", "10.0.0.1"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// TestReleasesAreBounded checks that only as many releases are remembered as allowed (U52), and that those that are
// forgotten come first, as the oldest releases do.
func TestReleasesAreBounded(t *testing.T) {
	l := New(set(t, "10.0.0.0-10.0.0.9"), 32)
	l.SetOrder(AllocationOrder{LeastRecentlyUsed: true})
	l.freeByZone[0].leastRecentlyUsed.maxReleases = 3
	var all []Key
	for range 10 {
		r, _ := l.TakeUnit()
		all = append(all, addFact(l, r))
	}
	for _, i := range []int{9, 2, 5, 1, 7} {
		l.RemoveFact(all[i])
	}
	if n := len(l.releasesInOrder()); n != 3 {
		t.Errorf("%d are remembered", n)
	}
	var got []string
	for r, ok := l.TakeUnit(); ok; r, ok = l.TakeUnit() {
		got = append(got, r.From().String())
	}
	if want := []string{"10.0.0.2", "10.0.0.9", "10.0.0.5", "10.0.0.1", "10.0.0.7"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// TestReleasesOfAHugePool checks that a pool of any size costs only its releases, and that their number is bounded
// (U52).
func TestReleasesOfAHugePool(t *testing.T) {
	for _, world := range []string{"10.0.0.0-10.255.255.255", "fd00::-fd00::ffff:ffff:ffff:ffff"} {
		var beginning, end runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&beginning)
		l := New(set(t, world), netipx.MustParseIPRange(world).From().BitLen())
		l.SetOrder(AllocationOrder{LeastRecentlyUsed: true})
		for range 3 * maxRememberedReleases {
			r, ok := l.TakeUnit()
			if !ok {
				t.Fatal("full")
			}
			l.RemoveFact(addFact(l, r))
		}
		runtime.GC()
		runtime.ReadMemStats(&end)
		if n := l.freeByZone[0].leastRecentlyUsed.released.Len(); n != maxRememberedReleases || l.freeByZone[0].leastRecentlyUsed.freeReleases.Len() != n {
			t.Errorf("%s: %d are remembered, %d ready", world, n, l.freeByZone[0].leastRecentlyUsed.freeReleases.Len())
		}
		if used := int64(end.HeapAlloc) - int64(beginning.HeapAlloc); used > 16<<20 {
			t.Errorf("%s: %d bytes", world, used)
		}
		runtime.KeepAlive(l)
	}
}

// BenchmarkOrder takes one address and releases another, all over a pool of 2^20 addresses, nine in ten of them
// taken, with the maximum number of remembered releases.
func BenchmarkOrder(b *testing.B) {
	for _, byRelease := range []bool{false, true} {
		b.Run(map[bool]string{false: "BestFit", true: "LeastRecentlyUsed"}[byRelease], func(b *testing.B) {
			step := newFullLedger(b, byRelease)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

func newFullLedger(tb testing.TB, byRelease bool) (step func()) {
	tb.Helper()
	l := New(set(tb, "10.0.0.0-10.15.255.255"), 32)
	l.SetOrder(AllocationOrder{LeastRecentlyUsed: byRelease})
	random := rand.New(rand.NewPCG(1, 2))
	taken := make([]Key, 0, 1<<20)
	for range 1 << 20 {
		r, _ := l.TakeUnit()
		taken = append(taken, addFact(l, r))
	}
	random.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
	for range len(taken) / 10 {
		l.RemoveFact(taken[len(taken)-1])
		taken = taken[:len(taken)-1]
	}
	return func() {
		i := random.IntN(len(taken))
		l.RemoveFact(taken[i])
		r, ok := l.TakeUnit()
		if !ok {
			panic(fmt.Sprint("full with ", len(taken)))
		}
		taken[i] = addFact(l, r)
	}
}
