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
	// MaxText bounds the text of the rests of a pool, in bytes: some 120 single addresses with usual names, or 300
	// without. Where single addresses grow to ranges it doubles.
	MaxText = 4 << 10
	// worthFolding is how many rests without a name have come before it is tried again to join them.
	worthFolding = 16
)

// Set is what rests of a pool. The zero value is not usable. It is not safe for concurrent use.
type Set struct {
	// begun and ended are told of each range that is in the set from now on, and that is not any more.
	begun, ended func(Rest)

	rests map[netipx.IPRange]Rest
	names map[types.NamespacedName][]netipx.IPRange
	// first and last are the ranges by their ends.
	first, last map[netip.Addr]netipx.IPRange
	size, fresh int
	// text is what Format makes of it, nil: it has changed.
	text []v1alpha1.CoolingGroup
}

// NewSet returns an empty set, that tells of each range that comes and goes.
func NewSet(begun, ended func(Rest)) *Set {
	return &Set{
		begun: begun, ended: ended,
		rests: map[netipx.IPRange]Rest{}, names: map[types.NamespacedName][]netipx.IPRange{},
		first: map[netip.Addr]netipx.IPRange{}, last: map[netip.Addr]netipx.IPRange{},
	}
}

// Len is the number of ranges.
func (s *Set) Len() int { return len(s.rests) }

// Size is the length of the text of all ranges, in bytes.
func (s *Set) Size() int { return s.size }

// All returns the ranges, in no order.
func (s *Set) All() []Rest { return slices.Collect(maps.Values(s.rests)) }

// Groups returns the set as a status has it. It is not to be changed: a status that stays is not made anew with each
// commit.
func (s *Set) Groups() []v1alpha1.CoolingGroup {
	if s.text == nil {
		s.text = Format(s.All())
	}
	return s.text
}

// Get returns the rest of exactly this range.
func (s *Set) Get(r netipx.IPRange) (Rest, bool) {
	rest, is := s.rests[r]
	return rest, is
}

// For returns the ranges that rest for a name.
func (s *Set) For(name types.NamespacedName) []netipx.IPRange { return s.names[name] }

// Put adds a rest, whatever its size: it is on record already. It takes the place of one of the same range.
func (s *Set) Put(rest Rest) {
	s.Remove(rest.Range)
	s.rests[rest.Range] = rest
	s.first[rest.Range.From()], s.last[rest.Range.To()] = rest.Range, rest.Range
	s.size += lengthOf(rest)
	if rest.For.Name != "" {
		s.names[rest.For] = append(s.names[rest.For], rest.Range)
	}
	s.fresh++
	s.text = nil
	s.begun(rest)
}

// Remove takes a range out.
func (s *Set) Remove(r netipx.IPRange) {
	rest, is := s.rests[r]
	if !is {
		return
	}
	delete(s.rests, r)
	if s.first[r.From()] == r {
		delete(s.first, r.From())
	}
	if s.last[r.To()] == r {
		delete(s.last, r.To())
	}
	s.size -= lengthOf(rest)
	if s.names[rest.For] = slices.DeleteFunc(s.names[rest.For], func(other netipx.IPRange) bool { return other == r }); len(s.names[rest.For]) == 0 {
		delete(s.names, rest.For)
	}
	s.text = nil
	s.ended(rest)
}

// Add adds a rest if there is room, and reports whether it did. Where there is none, ranges are joined that touch each
// other and end within a step of each other: what is joined ends with the last of them, and rests for nobody's name. If
// that is not enough, all names go; then only what touches another range has room.
func (s *Set) Add(rest Rest, step time.Duration) bool {
	if !s.fits(rest) && (s.fresh >= worthFolding || len(s.names) > 0) {
		s.fold(step)
	}
	if !s.fits(rest) {
		rest.For = types.NamespacedName{}
	}
	if s.fits(rest) {
		s.Put(rest)
		return true
	}
	joined, is := s.join(rest, step)
	if is {
		s.Put(joined)
		s.fresh--
	}
	return is
}

func lengthOf(rest Rest) int { return len(separator) + len(textOf(rest)) }

func (s *Set) fits(rest Rest) bool { return s.size+lengthOf(rest) <= MaxText }

// join takes out the ranges that touch a rest, and returns that joined with them. False: there are none.
func (s *Set) join(rest Rest, step time.Duration) (joined Rest, is bool) {
	for _, r := range []netipx.IPRange{s.last[rest.Range.From().Prev()], s.first[rest.Range.To().Next()]} {
		other, near := s.rests[r]
		if !near || other.Until.Sub(rest.Until).Abs() > step {
			continue
		}
		s.Remove(r)
		rest, is = union(rest, other), true
	}
	return rest, is
}

func union(a, b Rest) Rest {
	if b.Range.From().Less(a.Range.From()) {
		a, b = b, a
	}
	out := Rest{Range: netipx.IPRangeFrom(a.Range.From(), b.Range.To()), Until: a.Until}
	if out.Until.Before(b.Until) {
		out.Until = b.Until
	}
	return out
}

// fold joins all that touch each other, and drops the names where that leaves less than a quarter of the room.
func (s *Set) fold(step time.Duration) {
	order := s.All()
	slices.SortFunc(order, func(a, b Rest) int { return a.Range.From().Compare(b.Range.From()) })
	for _, rest := range order {
		if _, still := s.rests[rest.Range]; !still {
			continue // joined already
		}
		if joined, is := s.join(rest, step); is {
			s.Remove(rest.Range)
			s.Put(joined)
		}
	}
	if s.size > MaxText*3/4 {
		for _, rest := range s.All() {
			if rest.For.Name != "" {
				rest.For = types.NamespacedName{}
				s.Put(rest)
			}
		}
	}
	s.fresh = 0
}
