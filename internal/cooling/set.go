package cooling

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// MaxTextSize bounds the text of the cooling entries of a pool, in bytes: some 120 single addresses with names of
	// usual length, or 300 without names. If single addresses are merged into ranges, the text can grow to twice this
	// size.
	MaxTextSize = 4 << 10
	// compactThreshold is the number of entries to add before another attempt to merge a set without names.
	compactThreshold = 16
)

// Set contains the cooling ranges of a pool. The zero value is not usable. It is not safe for concurrent use.
type Set struct {
	// onAdd is called for each range that is added to the set, onRemove for each that is removed.
	onAdd, onRemove func(Entry)

	entries       map[netipx.IPRange]Entry
	rangesByClaim map[types.NamespacedName][]netipx.IPRange
	// rangeByFirst and rangeByLast are the ranges by their first and last addresses.
	rangeByFirst, rangeByLast   map[netip.Addr]netipx.IPRange
	textSize, addedSinceCompact int
	// cachedGroups is the result of FormatGroups for the entries, nil if they have changed since.
	cachedGroups []v1alpha1.CoolingGroup
}

// NewSet returns an empty set that calls begun for each range that is added, and ended for each that is removed.
func NewSet(begun, ended func(Entry)) *Set {
	return &Set{
		onAdd: begun, onRemove: ended,
		entries: map[netipx.IPRange]Entry{}, rangesByClaim: map[types.NamespacedName][]netipx.IPRange{},
		rangeByFirst: map[netip.Addr]netipx.IPRange{}, rangeByLast: map[netip.Addr]netipx.IPRange{},
	}
}

// Len returns the number of ranges.
func (s *Set) Len() int { return len(s.entries) }

// TextSize returns the length of the text of all ranges, in bytes.
func (s *Set) TextSize() int { return s.textSize }

// All returns the entries, in no particular order.
func (s *Set) All() []Entry { return slices.Collect(maps.Values(s.entries)) }

// Groups returns the set in the form of a pool's status. The caller must not modify the result: it is cached, so that
// an unchanged status is not formatted again with each commit.
func (s *Set) Groups() []v1alpha1.CoolingGroup {
	if s.cachedGroups == nil {
		s.cachedGroups = FormatGroups(s.All())
	}
	return s.cachedGroups
}

// Get returns the entry with exactly this range.
func (s *Set) Get(r netipx.IPRange) (Entry, bool) {
	rest, ok := s.entries[r]
	return rest, ok
}

// RangesForClaim returns the ranges that cool down for claims of a name.
func (s *Set) RangesForClaim(name types.NamespacedName) []netipx.IPRange {
	return s.rangesByClaim[name]
}

// ForceAdd adds an entry regardless of its size, because it is on record already. It replaces an entry of the same
// range.
func (s *Set) ForceAdd(rest Entry) {
	s.Remove(rest.Range)
	s.entries[rest.Range] = rest
	s.rangeByFirst[rest.Range.From()], s.rangeByLast[rest.Range.To()] = rest.Range, rest.Range
	s.textSize += textLength(rest)
	if rest.Claim.Name != "" {
		s.rangesByClaim[rest.Claim] = append(s.rangesByClaim[rest.Claim], rest.Range)
	}
	s.addedSinceCompact++
	s.cachedGroups = nil
	s.onAdd(rest)
}

// Remove removes the entry of a range.
func (s *Set) Remove(r netipx.IPRange) {
	rest, ok := s.entries[r]
	if !ok {
		return
	}
	delete(s.entries, r)
	if s.rangeByFirst[r.From()] == r {
		delete(s.rangeByFirst, r.From())
	}
	if s.rangeByLast[r.To()] == r {
		delete(s.rangeByLast, r.To())
	}
	s.textSize -= textLength(rest)
	if s.rangesByClaim[rest.Claim] = slices.DeleteFunc(s.rangesByClaim[rest.Claim], func(other netipx.IPRange) bool { return other == r }); len(s.rangesByClaim[rest.Claim]) == 0 {
		delete(s.rangesByClaim, rest.Claim)
	}
	s.cachedGroups = nil
	s.onRemove(rest)
}

// TryAdd adds an entry if there is room, and reports whether it did. If there is none, it merges ranges that touch
// each other and whose ends are at most one step apart: the merged range ends with the later of them, and has no
// claim. If that is not enough, all entries lose their claims; after that, only a range that touches another one has
// room.
func (s *Set) TryAdd(rest Entry, step time.Duration) bool {
	if !s.hasRoomFor(rest) && (s.addedSinceCompact >= compactThreshold || len(s.rangesByClaim) > 0) {
		s.compactEntries(step)
	}
	if !s.hasRoomFor(rest) {
		rest.Claim = types.NamespacedName{}
	}
	if s.hasRoomFor(rest) {
		s.ForceAdd(rest)
		return true
	}
	joined, ok := s.mergeAdjacent(rest, step)
	if ok {
		s.ForceAdd(joined)
		s.addedSinceCompact--
	}
	return ok
}

func textLength(rest Entry) int { return len(separator) + len(formatEntry(rest)) }

func (s *Set) hasRoomFor(rest Entry) bool { return s.textSize+textLength(rest) <= MaxTextSize }

// mergeAdjacent removes the ranges that touch an entry, and returns the entry merged with them. ok reports whether
// there was one.
func (s *Set) mergeAdjacent(rest Entry, step time.Duration) (joined Entry, ok bool) {
	for _, r := range []netipx.IPRange{s.rangeByLast[rest.Range.From().Prev()], s.rangeByFirst[rest.Range.To().Next()]} {
		other, near := s.entries[r]
		if !near || other.Until.Sub(rest.Until).Abs() > step {
			continue
		}
		s.Remove(r)
		rest, ok = mergeEntries(rest, other), true
	}
	return rest, ok
}

func mergeEntries(a, b Entry) Entry {
	if b.Range.From().Less(a.Range.From()) {
		a, b = b, a
	}
	out := Entry{Range: netipx.IPRangeFrom(a.Range.From(), b.Range.To()), Until: a.Until}
	if out.Until.Before(b.Until) {
		out.Until = b.Until
	}
	return out
}

// compactEntries merges all ranges that touch each other, and drops the claims if that leaves less than a quarter of
// the room.
func (s *Set) compactEntries(step time.Duration) {
	order := s.All()
	slices.SortFunc(order, func(a, b Entry) int { return a.Range.From().Compare(b.Range.From()) })
	for _, rest := range order {
		if _, still := s.entries[rest.Range]; !still {
			continue // merged already
		}
		if joined, ok := s.mergeAdjacent(rest, step); ok {
			s.Remove(rest.Range)
			s.ForceAdd(joined)
		}
	}
	if s.textSize > MaxTextSize*3/4 {
		for _, rest := range s.All() {
			if rest.Claim.Name != "" {
				rest.Claim = types.NamespacedName{}
				s.ForceAdd(rest)
			}
		}
	}
	s.addedSinceCompact = 0
}
