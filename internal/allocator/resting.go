package allocator

import (
	"slices"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// maxResting bounds the text of status.cooling, in bytes: a pool that is full of what rests is still small enough to be written with every
// grant.
const maxResting = 128 << 10

// resting are the ranges that nobody but the claims that released them may have, each until its time. The zero value is not usable.
type resting struct {
	ranges map[netipx.IPRange]v1alpha1.CoolingRange
	named  map[types.NamespacedName][]netipx.IPRange
	// size is the length of their text.
	size int
}

func newResting() resting {
	return resting{ranges: map[netipx.IPRange]v1alpha1.CoolingRange{}, named: map[types.NamespacedName][]netipx.IPRange{}}
}

// textOf is at least the length of an entry as it is written.
func textOf(c v1alpha1.CoolingRange) int {
	const punctuation = len(`{"first":"","last":"","until":"2006-01-02T15:04:05Z","namespace":"","name":""},`)
	return punctuation + len(c.First) + len(c.Last) + len(c.Namespace) + len(c.Name)
}

func namedBy(c v1alpha1.CoolingRange) types.NamespacedName {
	return types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
}

func (s *resting) add(r netipx.IPRange, c v1alpha1.CoolingRange) {
	s.remove(r)
	s.ranges[r] = c
	s.size += textOf(c)
	if c.Name != "" {
		s.named[namedBy(c)] = append(s.named[namedBy(c)], r)
	}
}

func (s *resting) remove(r netipx.IPRange) bool {
	c, rests := s.ranges[r]
	if !rests {
		return false
	}
	delete(s.ranges, r)
	s.size -= textOf(c)
	name := namedBy(c)
	if s.named[name] = slices.DeleteFunc(s.named[name], func(other netipx.IPRange) bool { return other == r }); len(s.named[name]) == 0 {
		delete(s.named, name)
	}
	return true
}

// folded returns the entries with those joined that touch each other and end within slack of each other: the joined one ends with the last
// of them, and rests for nobody's name. Where that is not enough for max bytes, the names of all others go too.
func (s *resting) folded(slack time.Duration, maxSize int) map[netipx.IPRange]v1alpha1.CoolingRange {
	order := make([]netipx.IPRange, 0, len(s.ranges))
	for r := range s.ranges {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	out := map[netipx.IPRange]v1alpha1.CoolingRange{}
	size := 0
	var last netipx.IPRange
	for _, r := range order {
		c := s.ranges[r]
		if before, is := out[last]; is && last.To().Next() == r.From() && before.Until.Sub(c.Until.Time).Abs() <= slack {
			delete(out, last)
			size -= textOf(before)
			r = netipx.IPRangeFrom(last.From(), r.To())
			until := before.Until
			if until.Before(&c.Until) {
				until = c.Until
			}
			c = v1alpha1.CoolingRange{First: r.From().String(), Last: r.To().String(), Until: until}
		}
		out[r] = c
		size += textOf(c)
		last = r
	}
	if size > maxSize {
		for r, c := range out {
			c.Namespace, c.Name = "", ""
			out[r] = c
		}
	}
	return out
}

// restsUntil is when what begins to rest now may be given to somebody else: whole seconds, and not less than the grace.
func restsUntil(now time.Time, grace time.Duration) metav1.Time {
	until := now.Add(grace)
	if whole := until.Truncate(time.Second); !whole.Equal(until) {
		until = whole.Add(time.Second)
	}
	return metav1.NewTime(until)
}
