// Package ledger records, for one pool, which ranges are taken, for which objects, and on what evidence.
//
// The package has no I/O: facts go in (a claim records an address, an IPAddress exists, a grant is in flight), free
// space comes out. A fact is keyed by its source and the UID of the object that states it. So only the object that
// stated a fact withdraws it, and if two objects state the same address, both facts are kept: the address is free
// when the last of them is gone.
package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Source is the kind of evidence that makes a range taken.
type Source uint8

// The sources, from the most to the least durable.
const (
	// SourceObject is an IPAddress (or a block) on the API server.
	SourceObject Source = iota
	// SourceRecord is the record of a claim: the addresses that it was granted.
	SourceRecord
	// SourceGrant is a grant that is committed, or about to be, and whose object is not confirmed yet.
	SourceGrant
	// SourcePin keeps an address for claims of a certain name. The address is unavailable, but not in use.
	SourcePin
	// SourceCooling keeps a released address for a while.
	SourceCooling
	// SourceHeld keeps an address until an operator releases it.
	SourceHeld
	// SourceExcluded keeps an address that another pool of the network has, or may still grant.
	SourceExcluded
	// SourceDraining keeps the addresses of a block that a carved pool is about to release.
	SourceDraining
)

// IsInUse reports whether a source means that an object has the address now.
func (s Source) IsInUse() bool { return s <= SourceGrant }

// Key identifies a fact: the source and the UID of the object that states it. Facts that no object states (pins,
// cooling, held) use a name of their own instead of a UID.
type Key struct {
	Source Source
	UID    types.UID
}

// Owner is the claimant that a range is taken for. Pins and cooling ranges have a name and no UID.
type Owner struct {
	// Kind is the kind of the object; empty if only a name is known.
	Kind            string
	Namespace, Name string
	UID             types.UID
}

// Fact is a range that is not free, with the evidence for it.
type Fact struct {
	Key
	Owner Owner
	Range netipx.IPRange
}

// ownerID identifies the owner of the range. For an object that names no owner it is the UID of the object itself:
// the owner, whatever it is, differs from the owner of any other object without one.
func (f *Fact) ownerID() types.UID {
	if f.Owner.UID == "" {
		return f.UID
	}
	return f.Owner.UID
}

// Ledger is the ledger of one pool. The zero value is not usable; a Ledger is not safe for concurrent use.
type Ledger struct {
	*freeSpace
	facts      map[Key]*Fact
	takenSpans spanTree
	// ownerCount is the number of objects that use something; namedOwners counts the facts that name another object
	// as their owner.
	ownerCount  int
	namedOwners map[types.UID]int
	// total is the size of the space in units, unavailable is how much of it is not free, used is how much is in use.
	total, unavailable, used, usedOutside poolutil.Count
	// countedRanges are sorted by address.
	countedRanges []*countedRange
	prefixViews   prefixViewIndex
}

// Counts are numbers of addresses, or of prefixes if the pool hands out prefixes.
type Counts struct {
	Total, Allocated, Available, OutOfRange int64
	// Owners is the number of objects that use addresses.
	Owners int64
	// LargestFree is the size of the largest contiguous free block.
	LargestFree int64
	// FragmentationPercent is 0 if all free space is contiguous.
	FragmentationPercent int32
}

// New returns a ledger over the ranges of space. Each owner gets a prefix of unitBits (32 or 128: single addresses).
// Facts outside the space are kept and counted as out of range.
func New(space *netipx.IPSet, unitBits int) *Ledger {
	l := &Ledger{freeSpace: newFreeSpace(newAddressSpace(space, unitBits), space), facts: map[Key]*Fact{}, namedOwners: map[types.UID]int{}}
	for _, r := range l.ranges {
		l.total = l.total.Plus(l.countUnits(r))
	}
	return l
}

// ApplyLayout gives the ledger a new space and order, without counted ranges and prefix views. It keeps every fact
// and the remembered releases. It costs O(facts + releases).
func (l *Ledger) ApplyLayout(space *netipx.IPSet, unitBits int, order AllocationOrder) {
	facts, released := l.facts, l.releasesInOrder()
	*l = *New(space, unitBits)
	l.SetOrder(order)
	for _, r := range released {
		l.RestoreRelease(r.ipRange())
	}
	for _, h := range facts {
		l.AddFact(*h)
	}
}

// AddFact adds a fact. Adding one again with the same range changes nothing; with another range, it replaces the
// first.
func (l *Ledger) AddFact(h Fact) {
	h.Range = l.widenToUnits(h.Range)
	if old, ok := l.facts[h.Key]; ok {
		if old.Range == h.Range && old.Owner == h.Owner {
			return
		}
		l.RemoveFact(h.Key)
	}
	fact := &h
	l.addOwner(fact)
	l.facts[h.Key] = fact
	l.markTaken(h.Range, h.Source.IsInUse())
	l.prefixViews.visitOverlapping(h.Range, func(v *prefixView, r netipx.IPRange) { v.free.TakeAny(r) })
	l.takenSpans.addFact(fact, l.updateCounts)
}

// RemoveFact withdraws a fact and returns it. What no other fact keeps is free again; what no other fact uses counts
// as released.
func (l *Ledger) RemoveFact(k Key) (Fact, bool) {
	return l.withdrawFact(k, func(r netipx.IPRange, used, more bool) {
		l.updateCounts(r, used, more)
		if used && !more {
			l.recordRelease(r)
		}
	})
}

// RetractFact withdraws a fact that never came true: what no other fact uses counts as never used.
func (l *Ledger) RetractFact(k Key) { l.withdrawFact(k, l.updateCounts) }

func (l *Ledger) withdrawFact(k Key, recount countChangeFunc) (Fact, bool) {
	fact, ok := l.facts[k]
	if !ok {
		return Fact{}, false
	}
	delete(l.facts, k)
	l.removeOwner(fact)
	l.takenSpans.removeFact(fact, recount, func(r netipx.IPRange) {
		for part := range l.partsInSpace(r) {
			l.markFree(part)
		}
		l.prefixViews.visitOverlapping(r, func(v *prefixView, part netipx.IPRange) { v.free.Put(part) })
	})
	return *fact, true
}

// addOwner counts the owner of a fact that is about to be added, removeOwner uncounts that of a fact that was
// removed. Most objects state themselves what they use, so namedOwners contains only owners that other objects name.
func (l *Ledger) addOwner(h *Fact) {
	if !h.Source.IsInUse() {
		return
	}
	id := h.ownerID()
	if !l.isOwner(id) {
		l.ownerCount++
	}
	if id != h.UID {
		l.namedOwners[id]++
	}
}

func (l *Ledger) removeOwner(h *Fact) {
	if !h.Source.IsInUse() {
		return
	}
	id := h.ownerID()
	if id != h.UID {
		if l.namedOwners[id]--; l.namedOwners[id] == 0 {
			delete(l.namedOwners, id)
		}
	}
	if !l.isOwner(id) {
		l.ownerCount--
	}
}

// isOwner reports whether a fact shows that an object uses something: a fact of its own, or one that names it.
func (l *Ledger) isOwner(uid types.UID) bool {
	if l.namedOwners[uid] > 0 {
		return true
	}
	for s := SourceObject; s.IsInUse(); s++ {
		if h := l.facts[Key{Source: s, UID: uid}]; h != nil && h.ownerID() == uid {
			return true
		}
	}
	return false
}

// FindFact returns a fact by its key.
func (l *Ledger) FindFact(k Key) (Fact, bool) {
	if h, ok := l.facts[k]; ok {
		return *h, true
	}
	return Fact{}, false
}

// OverlappingFacts returns the facts that overlap a range, ordered by source and UID. It costs O(n log n) for n
// overlapping facts: if one fact decides, FindOverlappingFact costs less.
func (l *Ledger) OverlappingFacts(r netipx.IPRange) []*Fact {
	var out []*Fact
	l.takenSpans.visitOverlapping(l.widenToUnits(r), func(s *span) bool {
		out = append(out, s.facts...)
		return true
	})
	slices.SortFunc(out, compareFacts)
	return slices.Compact(out) // a fact is one pointer, in each span that it covers
}

// FindOverlappingFact returns the first fact that overlaps a range and for which matches returns true, nil if there is
// none: the first by address, and of one address the first by source and UID. It stops there, because ranges may have
// many facts: it costs O(log n) and the facts that it passes, some of them more than once.
func (l *Ledger) FindOverlappingFact(r netipx.IPRange, matches func(*Fact) bool) *Fact {
	var found *Fact
	l.takenSpans.visitOverlapping(l.widenToUnits(r), func(s *span) bool {
		if i := slices.IndexFunc(s.facts, matches); i >= 0 {
			found = s.facts[i]
		}
		return found == nil
	})
	return found
}

// VisitUsedRanges calls visit for every range in use, ascending, with the facts that use it, until visit returns
// false. It costs O(log n) and what it passes.
func (l *Ledger) VisitUsedRanges(visit func(r netipx.IPRange, facts []*Fact) bool) {
	l.takenSpans.visitFrom(netip.Addr{}, func(s *span) bool {
		if s.useCount == 0 {
			return true
		}
		return visit(s.ipRange(), slices.DeleteFunc(slices.Clone(s.facts), func(h *Fact) bool { return !h.Source.IsInUse() }))
	})
}

// VisitUsedOutsideSpace calls visit for every range in use that reaches out of the space, ascending, with the facts
// that use it, until visit returns false. A range that reaches out on both sides may be visited twice. It costs
// O(log n) for each part of the space, and what it passes.
func (l *Ledger) VisitUsedOutsideSpace(visit func(r netipx.IPRange, facts []*Fact) bool) {
	more, at := true, netip.Addr{}
	between := func(end netip.Addr) {
		l.takenSpans.visitFrom(at, func(s *span) bool {
			if end.IsValid() && !s.first.Less(end) {
				return false
			}
			if s.useCount > 0 {
				more = visit(s.ipRange(), slices.DeleteFunc(slices.Clone(s.facts), func(h *Fact) bool { return !h.Source.IsInUse() }))
			}
			return more
		})
	}
	for _, part := range l.ranges {
		if between(part.From()); !more {
			return
		}
		if at = part.To().Next(); !at.IsValid() && part.To().Is6() {
			return
		} else if !at.IsValid() {
			at = netip.IPv6Unspecified()
		}
	}
	between(netip.Addr{})
}

// VisitTakenRanges calls visit for every range that is taken, ascending, beginning with the one that contains or
// follows from, with its facts, until visit returns false. visit must neither keep the facts nor change the ledger.
// It costs O(log n) and what it visits.
func (l *Ledger) VisitTakenRanges(from netip.Addr, visit func(r netipx.IPRange, facts []*Fact) bool) {
	l.takenSpans.visitFrom(from, func(s *span) bool { return visit(s.ipRange(), s.facts) })
}

// Counts returns the statistics. It costs O(1).
func (l *Ledger) Counts() Counts {
	c := Counts{
		Total: l.total.Int64(), Allocated: l.used.Int64(), OutOfRange: l.usedOutside.Int64(),
		Available: l.total.Minus(l.unavailable).Int64(), Owners: int64(l.ownerCount),
		FragmentationPercent: l.free.FragmentationPercent(),
	}
	if largest, found := l.free.LargestBlock(); found {
		c.LargestFree = l.countUnits(largest).Int64()
	}
	return c
}

// updateCounts counts a span that came into use (used), or was taken out of the free space; if more is false, the
// reverse.
func (l *Ledger) updateCounts(r netipx.IPRange, used, more bool) {
	change := poolutil.Count.Plus
	if !more {
		change = poolutil.Count.Minus
	}
	l.updateRangeCounts(r, used, change)
	var inside poolutil.Count
	for part := range l.partsInSpace(r) {
		inside = inside.Plus(l.countUnits(part))
	}
	if !used {
		l.unavailable = change(l.unavailable, inside)
		return
	}
	l.used = change(l.used, inside)
	l.usedOutside = change(l.usedOutside, l.countUnits(r).Minus(inside))
}

func compareFacts(a, b *Fact) int {
	if a.Source != b.Source {
		return int(a.Source) - int(b.Source)
	}
	switch {
	case a.UID < b.UID:
		return -1
	case a.UID > b.UID:
		return 1
	}
	return 0
}
