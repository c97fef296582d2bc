package ledger

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

func rangeOf(text string) netipx.IPRange {
	r, err := poolutil.ParseRange(text)
	if err != nil {
		panic(err)
	}
	return r
}

// pool returns a ledger over a few addresses or prefixes.
func pool(unit int, texts ...string) *Ledger { return New(setOf(texts...), unit) }

func setOf(texts ...string) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, text := range texts {
		b.AddRange(rangeOf(text))
	}
	s, err := b.IPSet()
	if err != nil {
		panic(err)
	}
	return s
}

// fact returns a fact that is stated by an object with the UID of the claim that it is for.
func fact(s Source, claim, text string) Fact {
	return Fact{
		Key:   Key{Source: s, UID: types.UID(claim)},
		Owner: Owner{Namespace: "ns", Name: claim, UID: types.UID(claim)},
		Range: rangeOf(text),
	}
}

func stated(l *Ledger, facts ...Fact) *Ledger {
	for _, f := range facts {
		l.AddFact(f)
	}
	return l
}

// holdersOf returns the sources and UIDs of the facts on a range.
func holdersOf(l *Ledger, text string) []Key {
	var out []Key
	for _, h := range l.OverlappingFacts(rangeOf(text)) {
		out = append(out, h.Key)
	}
	return out
}

func wantCounts(t *testing.T, l *Ledger, reason string, want Counts) {
	t.Helper()
	if diff := cmp.Diff(want, l.Counts()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", reason, diff)
	}
}

// TestFreeWhenLastFactIsGone checks that an address belongs to a claim, not only to its IPAddress (I3).
func TestFreeWhenLastFactIsGone(t *testing.T) {
	l := stated(pool(32, "10.0.0.5"), fact(SourceObject, "a", "10.0.0.5"), fact(SourceRecord, "a", "10.0.0.5"), fact(SourceObject, "b", "10.0.0.5"))
	if diff := cmp.Diff([]Key{{SourceObject, "a"}, {SourceObject, "b"}, {SourceRecord, "a"}}, holdersOf(l, "10.0.0.5")); diff != "" {
		t.Errorf("all of them are known (-want +got):\n%s", diff)
	}
	for _, k := range []Key{{SourceObject, "a"}, {SourceRecord, "a"}} {
		if _, known := l.RemoveFact(k); !known {
			t.Fatalf("%v is not known", k)
		}
		if _, free := l.TakeUnit(); free {
			t.Fatalf("the address is free although %v hold it", holdersOf(l, "10.0.0.5"))
		}
	}
	wantCounts(t, l, "one holds it", Counts{Total: 1, Allocated: 1, Owners: 1})
	l.RemoveFact(Key{SourceObject, "b"})
	wantCounts(t, l, "no claim holds it", Counts{Total: 1, Available: 1, LargestFree: 1})
	if r, free := l.TakeUnit(); !free || r != rangeOf("10.0.0.5") {
		t.Errorf("TakeUnit = %v, %v, want the address", r, free)
	}
}

// TestRemoveUnknown checks that a fact is withdrawn only by the object that stated it.
func TestRemoveUnknown(t *testing.T) {
	l := stated(pool(32, "10.0.0.5"), fact(SourceObject, "a", "10.0.0.5"))
	for _, k := range []Key{{SourceRecord, "a"}, {SourceObject, "b"}} {
		if h, known := l.RemoveFact(k); known || h != (Fact{}) {
			t.Errorf("RemoveFact(%v) = %v, %v, want nothing", k, h, known)
		}
	}
	wantCounts(t, l, "nothing changes", Counts{Total: 1, Allocated: 1, Owners: 1})
}

func TestAddFactReplacesEarlierFact(t *testing.T) {
	tests := map[string]struct {
		reason string
		again  Fact
		want   Counts
		user   Owner
	}{
		"Same": {
			reason: "a watch repeats itself",
			again:  fact(SourceObject, "a", "10.0.0.5"),
			want:   Counts{Total: 4, Allocated: 1, Available: 3, Owners: 1, LargestFree: 2, FragmentationPercent: 33},
		},
		"OtherRange": {
			reason: "another range replaces the first",
			again:  fact(SourceObject, "a", "10.0.0.6/31"),
			want:   Counts{Total: 4, Allocated: 2, Available: 2, Owners: 1, LargestFree: 2},
		},
		"OtherOwner": {
			reason: "an IPAddress that is adopted is its new claim's",
			again:  Fact{Key: Key{SourceObject, "a"}, Owner: Owner{Namespace: "ns", Name: "b", UID: "b"}, Range: rangeOf("10.0.0.5")},
			want:   Counts{Total: 4, Allocated: 1, Available: 3, Owners: 1, LargestFree: 2, FragmentationPercent: 33},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := stated(pool(32, "10.0.0.4/30"), fact(SourceObject, "a", "10.0.0.5"), tc.again)
			wantCounts(t, l, tc.reason, tc.want)
			if got, known := l.FindFact(tc.again.Key); !known || got != tc.again {
				t.Errorf("FindFact = %v, %v, want %v", got, known, tc.again)
			}
			l.RemoveFact(tc.again.Key)
			wantCounts(t, l, "it is one fact, however often it is stated", Counts{Total: 4, Available: 4, LargestFree: 4})
		})
	}
}

func TestCountsBySource(t *testing.T) {
	tests := map[string]struct {
		source Source
		reason string
		used   int64
	}{
		"Object":  {source: SourceObject, used: 1, reason: "an IPAddress has an owner"},
		"Record":  {source: SourceRecord, used: 1, reason: "what a living claim remembers is taken"},
		"Grant":   {source: SourceGrant, used: 1, reason: "what is promised is taken"},
		"Pin":     {source: SourcePin, reason: "kept for a name, and no claim has it"},
		"Cooling": {source: SourceCooling, reason: "rests, and no claim has it"},
		"Held":    {source: SourceHeld, reason: "kept back, and no claim has it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := stated(pool(32, "10.0.0.4/31"), fact(tc.source, "a", "10.0.0.4"))
			wantCounts(t, l, tc.reason, Counts{Total: 2, Allocated: tc.used, Owners: tc.used, Available: 1, LargestFree: 1})
			if r, free := l.TakeUnit(); !free || r != rangeOf("10.0.0.5") {
				t.Errorf("TakeUnit = %v, %v, want the other address", r, free)
			}
			if r, free := l.TakeUnit(); free {
				t.Errorf("TakeUnit = %v, which is not free: %s", r, tc.reason)
			}
		})
	}
}

func TestOutOfRange(t *testing.T) {
	l := stated(pool(32, "10.0.0.4/30"), fact(SourceObject, "a", "10.9.9.9"), fact(SourceRecord, "a", "10.9.9.9"), fact(SourceGrant, "b", "10.0.0.7-10.0.0.9"),
		fact(SourceHeld, "moved", "10.9.9.8"))
	wantCounts(t, l, "counted once, with the part of a block that sticks out, and not what no claim has",
		Counts{Total: 4, Allocated: 1, Available: 3, OutOfRange: 3, Owners: 2, LargestFree: 3})
	for text, want := range map[string]bool{"10.0.0.4/30": true, "10.0.0.5": true, "10.0.0.7-10.0.0.8": false, "10.9.9.9": false} {
		if got := l.IsInSpace(rangeOf(text)); got != want {
			t.Errorf("IsInSpace(%s) = %v, want %v", text, got, want)
		}
	}
	for _, k := range []Key{{SourceObject, "a"}, {SourceRecord, "a"}, {SourceGrant, "b"}, {SourceHeld, "moved"}} {
		l.RemoveFact(k)
	}
	wantCounts(t, l, "what was never in the space does not come into it", Counts{Total: 4, Available: 4, LargestFree: 4})
}

// TestUsesNamesUsers checks that the objects that use a pool can be named to the user that deletes it (B71).
func TestUsesNamesUsers(t *testing.T) {
	l := stated(pool(32, "10.0.0.4/30"), fact(SourcePin, "vip", "10.0.0.5"), fact(SourceObject, "a", "10.0.0.5"), fact(SourceCooling, "c", "10.0.0.6"))
	var got []Key
	l.VisitUsedRanges(func(_ netipx.IPRange, facts []*Fact) bool {
		for _, h := range facts {
			got = append(got, h.Key)
		}
		return true
	})
	if diff := cmp.Diff([]Key{{SourceObject, "a"}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTakeUnit(t *testing.T) {
	l := stated(pool(32, "10.0.0.0/29", "10.0.1.4/31"), fact(SourceObject, "a", "10.0.0.1"))
	for _, want := range []string{"10.0.0.0", "10.0.1.4", "10.0.1.5", "10.0.0.2"} {
		if r, free := l.TakeUnit(); !free || r != rangeOf(want) {
			t.Errorf("TakeUnit = %v, %v, want %s: the smallest free block first, then the lowest address", r, free, want)
		}
	}
	l.UndoTake(rangeOf("10.0.1.4"))
	if r, _ := l.TakeUnit(); r != rangeOf("10.0.1.4") {
		t.Errorf("TakeUnit = %v, want the returned unit", r)
	}
}

// TestUntakeFreePanics checks that an impossible state stops the program rather than grant an address twice.
func TestUntakeFreePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("UndoTake accepted a free address")
		}
	}()
	pool(32, "10.0.0.4/30").UndoTake(rangeOf("10.0.0.4"))
}

func TestVisitUsedOutsideSpace(t *testing.T) {
	for name, tc := range map[string]struct {
		l    *Ledger
		want string
	}{
		"before, between and after": {stated(pool(32, "10.0.0.4/30", "10.0.0.16/30"), fact(SourceObject, "a", "10.0.0.3"), fact(SourceRecord, "in", "10.0.0.5"), fact(SourceRecord, "b", "10.0.0.9"),
			fact(SourceCooling, "rests", "10.0.0.10"), fact(SourceRecord, "c", "10.0.0.99")), "10.0.0.3 10.0.0.9 10.0.0.99"},
		"one that sticks out":           {stated(pool(32, "10.0.0.4/30"), fact(SourceRecord, "a", "10.0.0.6-10.0.0.9")), "10.0.0.6-10.0.0.9"},
		"of another family":             {stated(pool(32, "10.0.0.4/30"), fact(SourceRecord, "a", "fd00::1")), "fd00::1"},
		"after the end of IPv4":         {stated(pool(32, "255.255.255.252/30"), fact(SourceRecord, "in", "255.255.255.253"), fact(SourceRecord, "a", "fd00::1")), "fd00::1"},
		"of a pool that hands out none": {stated(pool(32), fact(SourceRecord, "a", "10.0.0.1")), "10.0.0.1"},
		"none":                          {stated(pool(128, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124"), fact(SourceRecord, "in", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			tc.l.VisitUsedOutsideSpace(func(r netipx.IPRange, _ []*Fact) bool {
				got = append(got, poolutil.ShowRange(r))
				return true
			})
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
			visited := 0
			tc.l.VisitUsedOutsideSpace(func(netipx.IPRange, []*Fact) bool { visited++; return false })
			if visited != min(len(got), 1) {
				t.Errorf("%d are visited after the end", visited)
			}
		})
	}
}
