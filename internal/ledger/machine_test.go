package ledger

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// worlds are ranges where the arithmetic could go wrong: the middle and both ends of either family.
var worlds = []string{
	"10.0.0.32-10.0.0.71",
	"0.0.0.0-0.0.0.39",
	"255.255.255.216-255.255.255.255",
	"2001:db8::fff0-2001:db8::1:17",
	"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffd8-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
}

// machine drives a Ledger and its oracle through one history.
type machine struct {
	l *Ledger
	o *oracle
}

func newMachine(t *rapid.T, world string) *machine {
	m := &machine{o: newOracle(netipx.MustParseIPRange(world))}
	space, unit := m.layout(t)
	m.l = New(space, unit)
	m.o.relayout(space, unit)
	return m
}

// layout draws a unit of 1, 4 or 8 addresses and a space of up to three pieces of whole units.
func (m *machine) layout(t *rapid.T) (*netipx.IPSet, int) {
	unit := m.o.world[0].BitLen() - rapid.SampledFrom([]int{0, 0, 2, 3}).Draw(t, "host bits")
	m.o.cut(unit)
	var space netipx.IPSetBuilder
	for range rapid.IntRange(0, 3).Draw(t, "pieces") {
		space.AddRange(m.o.whole(m.extent(t)))
	}
	set, err := space.IPSet()
	if err != nil {
		t.Fatal(err)
	}
	return set, unit
}

// extent draws a range of the world, of up to 12 addresses.
func (m *machine) extent(t *rapid.T) netipx.IPRange {
	size := len(m.o.world)
	i := rapid.IntRange(0, size-1).Draw(t, "from")
	n := rapid.IntRange(1, min(size-i, 12)).Draw(t, "n")
	return netipx.IPRangeFrom(m.o.world[i], m.o.world[i+n-1])
}

func drawKey(t *rapid.T) Key {
	return Key{
		Source: Source(rapid.IntRange(int(SourceObject), int(SourceHeld)).Draw(t, "source")),
		UID:    types.UID(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")),
	}
}

// drawFact draws a fact of one of three owners, so that facts are restated and owners have several facts. One of the
// owners states some facts itself.
func drawFact(t *rapid.T, r netipx.IPRange) Fact {
	name := rapid.SampledFrom([]string{"x", "y", "a"}).Draw(t, "owner")
	return Fact{Key: drawKey(t), Owner: Owner{Namespace: "ns", Name: name, UID: types.UID(name)}, Range: r}
}

func (m *machine) add(h Fact) {
	m.l.AddFact(h)
	m.o.add(h)
}

func (m *machine) remove(t *rapid.T, k Key) {
	want, known := m.o.facts[k]
	delete(m.o.facts, k)
	got, ok := m.l.RemoveFact(k)
	equal(t, "RemoveFact finds it", known, ok)
	equal(t, "RemoveFact", want, got)
}

func (m *machine) takeOne(t *rapid.T) (netipx.IPRange, bool) {
	want, free := m.o.takeOne()
	got, ok := m.l.TakeUnit()
	equal(t, "TakeUnit finds one", free, ok)
	equal(t, "TakeUnit", want, got)
	return got, ok
}

// returnUnit returns one of the units that were taken and never stated.
func (m *machine) returnUnit(t *rapid.T) {
	if len(m.o.taken) == 0 {
		t.Skip("nothing is taken and not stated")
	}
	unstated := slices.SortedFunc(maps.Keys(m.o.taken), netip.Addr.Compare)
	r := m.l.UnitRange(rapid.SampledFrom(unstated).Draw(t, "unstated"))
	m.l.UndoTake(r)
	m.o.stated(r)
}

// check compares the statistics, and the users of each address.
func (m *machine) check(t *rapid.T) {
	equal(t, "Counts", m.o.counts(), m.l.Counts())
	equal(t, "HasFree", len(m.o.free()) > 0, m.l.HasFreeInZones([]int{0}))
	uses := usesOf(t, m.l)
	for _, a := range m.o.world {
		equalFacts(t, "VisitUsedRanges", netipx.IPRangeFrom(a, a), m.o.users(a), uses[a])
	}
}

// ask compares what both know about a range.
func (m *machine) ask(t *rapid.T) {
	r := m.extent(t)
	equal(t, "UnitRange", m.o.whole(netipx.IPRangeFrom(r.From(), r.From())), m.l.UnitRange(r.From()))
	equal(t, "IsInSpace", m.o.inSpace(r), m.l.IsInSpace(r))
	var got []Fact
	for _, h := range m.l.OverlappingFacts(r) {
		got = append(got, *h)
		known, ok := m.l.FindFact(h.Key)
		equal(t, "FindFact finds it", true, ok)
		equal(t, "FindFact", *h, known)
	}
	equalFacts(t, "OverlappingFacts", r, m.o.overlapping(m.o.whole(r)), got)

	asked := Source(rapid.IntRange(int(SourceObject), int(SourceDraining)).Draw(t, "asked for"))
	want, found := m.o.firstOverlapping(m.o.whole(r), asked), []Fact(nil)
	if h := m.l.FindOverlappingFact(r, func(h *Fact) bool { return h.Source >= asked }); h != nil {
		found = append(found, *h)
	}
	equalFacts(t, "FindOverlappingFact", r, want, found)
}

// usesOf returns what VisitUsedRanges visits, by address. The visits must be ascending and must not overlap.
func usesOf(t *rapid.T, l *Ledger) map[netip.Addr][]Fact {
	out := map[netip.Addr][]Fact{}
	var last netip.Addr
	l.VisitUsedRanges(func(r netipx.IPRange, facts []*Fact) bool {
		if last.IsValid() && !last.Less(r.From()) {
			t.Fatalf("%s is visited after %s", r, last)
		}
		last = r.To()
		var users []Fact
		for _, h := range facts {
			if h.Source.IsInUse() { // always true: see TestUsesNamesUsers
				users = append(users, *h)
			}
		}
		if len(users) == 0 {
			t.Fatalf("%s is visited, and has no user", r)
		}
		slices.SortFunc(users, byKey)
		for a := r.From(); a.IsValid() && a.Compare(r.To()) <= 0; a = a.Next() {
			out[a] = users
		}
		return true
	})
	return out
}

func equal[T comparable](t *rapid.T, name string, want, got T) {
	if got != want {
		t.Fatalf("%s: got %v, want %v", name, got, want)
	}
}

func equalFacts(t *rapid.T, name string, of netipx.IPRange, want, got []Fact) {
	if !slices.Equal(want, got) {
		t.Fatalf("%s of %s: got %v, want %v", name, of, got, want)
	}
}

// TestLedgerAgainstOracle checks that the ledger agrees with the oracle, whatever is stated and withdrawn in whatever
// order: I1 (no address twice), I2 (nothing leaks).
func TestLedgerAgainstOracle(t *testing.T) {
	for _, world := range worlds {
		t.Run(world, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				m := newMachine(t, world)
				t.Repeat(map[string]func(*rapid.T){
					"":         m.check,
					"add":      func(t *rapid.T) { m.add(drawFact(t, m.extent(t))) },
					"addAlike": func(t *rapid.T) { m.add(drawFact(t, m.l.UnitRange(m.extent(t).From()))) },
					"remove":   func(t *rapid.T) { m.remove(t, drawKey(t)) },
					"ask":      m.ask,
					"takeOne":  func(t *rapid.T) { m.takeOne(t) },
					"grant": func(t *rapid.T) {
						if r, ok := m.takeOne(t); ok {
							m.add(drawFact(t, r))
						}
					},
					"untake": m.returnUnit,
					"relayout": func(t *rapid.T) {
						space, unit := m.layout(t)
						m.l.ApplyLayout(space, unit, AllocationOrder{})
						m.o.relayout(space, unit)
					},
				})
			})
		})
	}
}
