package cooling

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func rest(t *testing.T, text string, after time.Duration) Entry {
	t.Helper()
	r, err := parseEntry(text)
	if err != nil {
		t.Fatal(err)
	}
	r.Until = noon.Add(after)
	return r
}

// trackedRests is the content of a set according to its callbacks.
type trackedRests map[netipx.IPRange]Entry

func (w trackedRests) begun(r Entry) { w[r.Range] = r }
func (w trackedRests) ended(r Entry) { delete(w, r.Range) }

func setOf(t *testing.T) (*Set, trackedRests) {
	t.Helper()
	w := trackedRests{}
	s := NewSet(w.begun, w.ended)
	t.Cleanup(func() {
		size := 0
		for _, r := range w {
			size += textLength(r)
		}
		if !reflect.DeepEqual(s.entries, map[netipx.IPRange]Entry(w)) || s.TextSize() != size {
			t.Errorf("has %v in %d bytes, and reported %v in %d", s.entries, s.TextSize(), w, size)
		}
	})
	return s, w
}

// fill fills a set with addresses that do not touch, and returns how many there are.
func fill(t *testing.T, s *Set, name string, until time.Duration) (n int) {
	t.Helper()
	ip := netip.MustParseAddr("10.9.0.0")
	for s.TryAdd(Entry{
		Range: netipx.IPRangeFrom(ip, ip), Until: noon.Add(until), Claim: types.NamespacedName{Namespace: "ns", Name: fmt.Sprint(name, n)},
	}, time.Minute) {
		ip = ip.Next().Next()
		n++
	}
	return n
}

func TestTextRoundTrips(t *testing.T) {
	groups := []v1alpha1.CoolingGroup{
		{Until: metav1.NewTime(noon), Addresses: "10.0.0.5 shop/web-0, 10.0.0.8-10.0.0.10"},
		{Until: metav1.NewTime(noon.Add(time.Minute)), Addresses: "10.0.0.0/30, fd00::1 shop/web-1"},
	}
	rests, err := ParseGroups(groups)
	if err != nil || len(rests) != 4 {
		t.Fatal(rests, err)
	}
	slices.Reverse(rests)
	if got := FormatGroups(rests); !reflect.DeepEqual(got[0], groups[0]) || len(got) != 2 || got[1].Addresses != "10.0.0.0/30, fd00::1 shop/web-1" {
		t.Errorf("%+v", got)
	}
	rests, err = ParseGroups([]v1alpha1.CoolingGroup{{Addresses: "10.0.0.1, nonsense, 10.0.0.2"}})
	if err == nil || len(rests) != 2 {
		t.Errorf("what can be read is left out, or the rest passes: %v, %v", rests, err)
	}
}

// TestEndOfCooling checks that an entry cools down for at least the grace period and at most an eighth longer, so that
// all entries end at some ten times.
func TestEndOfCooling(t *testing.T) {
	for _, grace := range []time.Duration{time.Second, 9 * time.Second, time.Minute, time.Hour, 30 * 24 * time.Hour} {
		ends := map[time.Time]bool{}
		for i := range 1000 {
			now := noon.Add(grace / 1000 * time.Duration(i))
			until := EndOfCooling(now, grace)
			if rest := until.Sub(now); rest < grace || rest >= grace+max(grace/stepsPerGrace, time.Second) {
				t.Fatalf("with a grace of %v it rests for %v", grace, rest)
			}
			ends[until] = true
		}
		if len(ends) > stepsPerGrace+3 {
			t.Errorf("with a grace of %v rests end at %d moments", grace, len(ends))
		}
	}
}

// TestRangesAreMergedOnlyWhenFull checks that every range keeps its own time and name while there is room.
func TestRangesAreMergedOnlyWhenFull(t *testing.T) {
	s, w := setOf(t)
	for _, text := range []string{"10.0.0.1 ns/a", "10.0.0.2 ns/b"} {
		if !s.TryAdd(rest(t, text, time.Minute), time.Minute) {
			t.Fatal(text)
		}
	}
	if len(w) != 2 || !slices.Equal(s.RangesForClaim(types.NamespacedName{Namespace: "ns", Name: "b"}), []netipx.IPRange{rest(t, "10.0.0.2", 0).Range}) {
		t.Error(w)
	}
}

// TestFullSet checks that ranges that touch and end at similar times are merged, that no entry ends too early, and
// that an entry without room is not added.
func TestFullSet(t *testing.T) {
	s, w := setOf(t)
	for text, after := range map[string]time.Duration{
		"10.0.0.1 ns/a": time.Minute, "10.0.0.2-10.0.0.3 ns/b": 65 * time.Second, // end together
		"10.0.0.4 ns/c": time.Hour, // ends much later
		"10.0.0.6 ns/d": time.Hour, // touches nothing
	} {
		s.ForceAdd(rest(t, text, after))
	}
	named := fill(t, s, "name", time.Minute)
	if s.TextSize() > MaxTextSize || named < 200 {
		t.Errorf("%d in %d bytes", named, s.TextSize())
	}
	for text, after := range map[string]time.Duration{"10.0.0.1-10.0.0.3": 65 * time.Second, "10.0.0.4": time.Hour, "10.0.0.6": time.Hour} {
		want := rest(t, text, after)
		if got := w[want.Range]; got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if s.TryAdd(rest(t, "10.1.0.1-10.1.200.200", time.Minute), time.Minute) || s.TryAdd(rest(t, "10.0.0.7-10.0.0.250", 3*time.Hour), time.Minute) {
		t.Error("there is room for what touches nothing, or nothing that ends with it")
	}
	before := len(w)
	for i := range 100 { // it touches ranges on both sides
		if text := fmt.Sprintf("10.9.0.%d", 1+2*i); !s.TryAdd(rest(t, text, time.Minute), time.Minute) {
			t.Fatalf("no room for %s", text)
		}
	}
	var b netipx.IPSetBuilder
	for r := range w {
		b.AddRange(r)
	}
	all, err := b.IPSet()
	if err != nil {
		t.Fatal(err)
	}
	if !all.ContainsRange(rest(t, "10.9.0.0-10.9.0.200", 0).Range) || len(w) >= before {
		t.Errorf("%d ranges, before %d: %v", len(w), before, all.Ranges())
	}
}

// TestFullSetGrowsToTwiceItsTextAtMost checks that, however many entries are added, each is never longer than two
// addresses, and the number of entries does not grow.
func TestFullSetGrowsToTwiceItsTextAtMost(t *testing.T) {
	s, _ := setOf(t)
	fill(t, s, "", time.Minute)
	for _, r := range s.All() {
		next := r.Range.To().Next()
		if s.rangeByLast[next] != (netipx.IPRange{}) || s.rangeByFirst[next] != (netipx.IPRange{}) {
			continue
		}
		s.TryAdd(Entry{Range: netipx.IPRangeFrom(next, next), Until: r.Until}, time.Minute)
	}
	if s.TextSize() > 2*MaxTextSize {
		t.Errorf("%d bytes", s.TextSize())
	}
}

// TestRangesAreFormattedAsPrefixes checks that a range that is a prefix is formatted as a prefix.
func TestRangesAreFormattedAsPrefixes(t *testing.T) {
	r, err := poolutil.ParseRange("10.0.0.0-10.0.0.255")
	if err != nil {
		t.Fatal(err)
	}
	if got := FormatGroups([]Entry{{Range: r, Until: noon}})[0].Addresses; got != "10.0.0.0/24" {
		t.Error(got)
	}
}
