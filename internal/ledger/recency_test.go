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

// orderOracle is the order of takes the slow, obvious way: which zone each address of a small world is of, and when it was
// released last.
type orderOracle struct {
	*oracle

	byRelease bool
	zone      map[netip.Addr]int
	released  map[netip.Addr]int
	clock     int
}

// after notes what an operation has released, of what was in use before it. Retracted: that never came true.
func (o *orderOracle) after(retracted bool, operation func()) {
	was := map[netip.Addr]bool{}
	for _, a := range o.world {
		was[a] = len(o.users(a)) > 0
	}
	operation()
	o.clock++
	for _, a := range o.world {
		switch is := len(o.users(a)) > 0; {
		case is, !o.space[a], was[a] && retracted:
			delete(o.released, a)
		case was[a] && o.byRelease:
			o.released[a] = o.clock
		}
	}
}

func (o *orderOracle) isFree(u netipx.IPRange) bool {
	return !slices.ContainsFunc(o.inside(u), func(a netip.Addr) bool { return !o.space[a] || o.taken[a] || o.held(a) })
}

// next is what never was in use, by best fit in the first zone that has some, else the unit of any of the zones that was
// released longest ago.
func (o *orderOracle) next(zones []int) (best netipx.IPRange, ok bool) {
	for _, z := range zones {
		fresh := *o.oracle
		fresh.taken = map[netip.Addr]bool{}
		for _, a := range o.world {
			if _, was := o.released[a]; was || o.taken[a] || o.zone[a] != z {
				fresh.taken[a] = true
			}
		}
		if best, ok = fresh.takeOne(); ok {
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
		o.stands(best)
	}
	return best, ok
}

// stands notes that a unit is taken, and stated by nobody.
func (o *orderOracle) stands(u netipx.IPRange) {
	for _, a := range o.inside(u) {
		o.taken[a] = true
		delete(o.released, a)
	}
}

// drawZones cuts the world into zones: of what there is, two have some, and the rest is in none.
func (o *orderOracle) drawZones(t *rapid.T) Order {
	out := Order{ByRelease: rapid.Bool().Draw(t, "by release")}
	o.byRelease, o.zone = out.ByRelease, map[netip.Addr]int{}
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

// drawAmong draws the zones that somebody may have something of.
func (o *orderOracle) drawAmong(t *rapid.T, order Order) []int {
	if len(order.Zones) == 0 {
		return []int{0}
	}
	return rapid.SampledFrom([][]int{{0}, {1}, {2}, {1, 2}, {2, 1}}).Draw(t, "among")
}

// U50, U53: what is handed out is what looking at every address gives, of each zone and by release or by best fit, whatever
// keeps addresses besides, over a change of the space, and in prefixes too.
func TestOrderAgainstOracle(t *testing.T) {
	for _, world := range worlds {
		t.Run(world, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, world)
				o := &orderOracle{oracle: m.o, released: map[netip.Addr]int{}}
				order, unit := o.drawZones(t), m.l.unit
				m.l.Arrange(order)
				t.Repeat(map[string]func(*rapid.T){
					"": func(t *rapid.T) {
						equal(t, "Counts", o.counts(), m.l.Counts())
						o.checkZones(t, m.l, len(order.Zones))
					},
					"add":      func(t *rapid.T) { o.after(false, func() { m.add(hold(t, m.extent(t))) }) },
					"addAlike": func(t *rapid.T) { o.after(false, func() { m.add(hold(t, m.l.Unit(m.extent(t).From()))) }) },
					"remove":   func(t *rapid.T) { o.after(false, func() { m.remove(t, drawKey(t)) }) },
					"retract": func(t *rapid.T) {
						k := drawKey(t)
						o.after(true, func() { delete(o.facts, k) })
						m.l.Retract(k)
					},
					"grant": func(t *rapid.T) {
						among := o.drawAmong(t, order)
						want, free := o.next(among)
						equal(t, "HasFreeIn", free, m.l.HasFreeIn(among))
						got, ok := m.l.TakeOneOf(among)
						equal(t, "TakeOneOf finds one", free, ok)
						equal(t, "TakeOneOf", want, got)
						if ok && rapid.Bool().Draw(t, "stated") {
							o.after(false, func() { m.add(hold(t, got)) })
						}
					},
					"block": func(t *rapid.T) { // by best fit, and beside the order
						if r, ok := m.l.TakeBlock(3); ok {
							for _, a := range o.inside(r) {
								equal(t, "the zone of a block", 0, o.zone[a])
							}
							o.stands(r)
							o.after(false, func() { m.add(hold(t, r)) })
						}
					},
					"untake": m.untake,
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
						m.l.Relayout(set, unit, order)
						if !order.ByRelease {
							clear(o.released)
						}
						o.after(false, func() { o.relayout(set, unit) })
					},
				})
			})
		})
	}
}

// checkZones compares how much is free in each zone, and how much is remembered of what was released.
func (o *orderOracle) checkZones(t *rapid.T, l *Ledger, zones int) {
	per := len(o.inside(o.units[0]))
	for z := range zones + 1 {
		free := 0
		for _, u := range o.units {
			if o.zone[u.From()] == z && o.isFree(u) {
				free++
			}
		}
		equal(t, fmt.Sprintf("FreeInZone of %d", z), int64(free), l.FreeInZone(z))
	}
	remembered, free := 0, 0
	for r := range l.Releases() {
		remembered += len(o.inside(r)) / per
	}
	for _, u := range o.units {
		if _, was := o.released[u.From()]; was && o.isFree(u) {
			free++
		}
	}
	equal(t, "Releases", free, remembered)
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

// have states that somebody has a range.
func have(l *Ledger, r netipx.IPRange) Key {
	k := Key{Source: Record, UID: types.UID(r.From().String())}
	l.Add(Fact{Key: k, Owner: Owner{Name: string(k.UID), UID: k.UID}, Range: r})
	return k
}

// U50: what is recalled comes after what was never used, in its order; what somebody has, or is not in the space, does not
// count, nor what is said twice.
func TestRecall(t *testing.T) {
	l := New(set(t, "10.0.0.1-10.0.0.5"), 32)
	l.Arrange(Order{ByRelease: true})
	have(l, single("10.0.0.3"))
	for _, text := range []string{"10.0.0.4", "10.0.0.1", "10.0.0.3", "10.0.0.4", "10.9.9.9"} {
		l.Recall(single(text))
	}
	var got []string
	for r, ok := l.TakeOne(); ok; r, ok = l.TakeOne() {
		got = append(got, r.From().String())
	}
	if want := []string{"10.0.0.2", "10.0.0.5", "10.0.0.4", "10.0.0.1"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// U52: as many releases are remembered as there is room for. What is forgotten comes first, as what was released longest ago
// does.
func TestReleasesAreBounded(t *testing.T) {
	l := New(set(t, "10.0.0.0-10.0.0.9"), 32)
	l.Arrange(Order{ByRelease: true})
	l.stocks[0].recent.most = 3
	var all []Key
	for range 10 {
		r, _ := l.TakeOne()
		all = append(all, have(l, r))
	}
	for _, i := range []int{9, 2, 5, 1, 7} {
		l.Remove(all[i])
	}
	if n := len(l.inOrder()); n != 3 {
		t.Errorf("%d are remembered", n)
	}
	var got []string
	for r, ok := l.TakeOne(); ok; r, ok = l.TakeOne() {
		got = append(got, r.From().String())
	}
	if want := []string{"10.0.0.2", "10.0.0.9", "10.0.0.5", "10.0.0.1", "10.0.0.7"}; !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// U52: a pool of any size costs nothing but its releases, and of these no more than there is room for.
func TestReleasesOfAHugePool(t *testing.T) {
	for _, world := range []string{"10.0.0.0-10.255.255.255", "fd00::-fd00::ffff:ffff:ffff:ffff"} {
		var beginning, end runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&beginning)
		l := New(set(t, world), netipx.MustParseIPRange(world).From().BitLen())
		l.Arrange(Order{ByRelease: true})
		for range 3 * maxReleases {
			r, ok := l.TakeOne()
			if !ok {
				t.Fatal("full")
			}
			l.Remove(have(l, r))
		}
		runtime.GC()
		runtime.ReadMemStats(&end)
		if n := l.stocks[0].recent.released.Len(); n != maxReleases || l.stocks[0].recent.ready.Len() != n {
			t.Errorf("%s: %d are remembered, %d ready", world, n, l.stocks[0].recent.ready.Len())
		}
		if used := int64(end.HeapAlloc) - int64(beginning.HeapAlloc); used > 16<<20 {
			t.Errorf("%s: %d bytes", world, used)
		}
		runtime.KeepAlive(l)
	}
}

// BenchmarkOrder takes an address and gives another back, all over a pool of 2^20 of which nine in ten are taken, and as many
// were released before as are remembered.
func BenchmarkOrder(b *testing.B) {
	for _, byRelease := range []bool{false, true} {
		b.Run(map[bool]string{false: "BestFit", true: "LeastRecentlyUsed"}[byRelease], func(b *testing.B) {
			step := crowded(b, byRelease)
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

func crowded(tb testing.TB, byRelease bool) (step func()) {
	tb.Helper()
	l := New(set(tb, "10.0.0.0-10.15.255.255"), 32)
	l.Arrange(Order{ByRelease: byRelease})
	random := rand.New(rand.NewPCG(1, 2))
	taken := make([]Key, 0, 1<<20)
	for range 1 << 20 {
		r, _ := l.TakeOne()
		taken = append(taken, have(l, r))
	}
	random.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
	for range len(taken) / 10 {
		l.Remove(taken[len(taken)-1])
		taken = taken[:len(taken)-1]
	}
	return func() {
		i := random.IntN(len(taken))
		l.Remove(taken[i])
		r, ok := l.TakeOne()
		if !ok {
			panic(fmt.Sprint("full with ", len(taken)))
		}
		taken[i] = have(l, r)
	}
}
