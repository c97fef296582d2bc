// Package ledger remembers, for one pool, what is taken, by whom, and on what evidence.
//
// It is pure memory: facts go in (a claim records an address, an IPAddress exists, a grant is in
// flight), free space comes out. A fact is keyed by its source and the UID of the object that
// states it, so a fact is withdrawn only by the object that stated it, and two objects that state
// the same address are both kept: the address is free when the last of them is gone.
package ledger

import (
	"iter"
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
	// Object is an IPAddress (or a block) on the API server.
	Object Source = iota
	// Record is what a claim remembers it was given.
	Record
	// Grant is committed, or about to be, and its object not yet confirmed.
	Grant
	// Pin keeps an address for the claim of a name. It makes the address unavailable, not used.
	Pin
	// Cooling keeps a released address for a while.
	Cooling
	// Kept keeps an address until an operator releases it.
	Kept
	// Shared keeps an address that another pool of the network has, or may still give.
	Shared
	// Draining keeps the addresses of a block that a carved pool is to give back.
	Draining
)

// Uses reports whether a source means that somebody has the address now.
func (s Source) Uses() bool { return s <= Grant }

// Key identifies a fact: the source and the UID of the object that states it. Facts that no object
// states (pins, cooling, held) use a name of their own.
type Key struct {
	Source Source
	UID    types.UID
}

// Owner is the claimant a range is taken for. Pins and ranges at rest have a name and no UID.
type Owner struct {
	// Kind is that of the object; empty where only a name is known.
	Kind            string
	Namespace, Name string
	UID             types.UID
}

// Fact says that a range is not free, and who says so.
type Fact struct {
	Key
	Owner Owner
	Range netipx.IPRange
}

// ownerID is who the range is taken for: whoever the owner is of an object that names none, it is not
// the owner of another such object.
func (h *Fact) ownerID() types.UID {
	if h.Owner.UID == "" {
		return h.UID
	}
	return h.Owner.UID
}

// Ledger is the memory of one pool. The zero value is not usable; it is not safe for concurrent use.
type Ledger struct {
	unit int
	// bits is the length of an address of the space, 0 for an empty one.
	bits  int
	space []netipx.IPRange
	free  *poolutil.Free
	facts map[Key]*Fact
	taken spans
	// owners is the number of those who use something; named counts the facts that name another object as their owner.
	owners int
	named  map[types.UID]int
	// total is the space in units; unavailable is how much of it is not free, used what somebody has.
	total, unavailable, used, outside poolutil.Count
	// parts are in the order of their addresses.
	parts []*part
	views views
	// stocks are the free space by zones, the first one what is in none. zones says which range is of which.
	stocks []*stock
	zones  []zone
	order  Order
	// releases is the number of releases there were.
	releases uint64
}

// Counts are numbers of addresses, or of prefixes where the pool hands out prefixes.
type Counts struct {
	Total, Allocated, Available, OutOfRange int64
	// Owners is the number of objects that use addresses.
	Owners int64
	// LargestFree is the size of the largest contiguous free block.
	LargestFree int64
	// FragmentationPercent is 0 where all free space is contiguous.
	FragmentationPercent int32
}

// New returns a ledger over the ranges of space, of which each owner gets a prefix of unitBits (32
// or 128: single addresses). Facts outside the space are kept and counted as out of range.
func New(space *netipx.IPSet, unitBits int) *Ledger {
	l := &Ledger{unit: unitBits, facts: map[Key]*Fact{}, named: map[types.UID]int{}}
	l.setSpace(space)
	l.stocks = []*stock{{free: l.free}}
	return l
}

// Relayout gives the ledger a new space and order, without parts and views, and keeps every fact, and what it remembers of
// releases. It costs O(facts + releases).
func (l *Ledger) Relayout(space *netipx.IPSet, unitBits int, order Order) {
	facts, released := l.facts, l.inOrder()
	*l = *New(space, unitBits)
	l.Arrange(order)
	for _, r := range released {
		l.Recall(r.rng())
	}
	for _, h := range facts {
		l.Add(*h)
	}
}

func (l *Ledger) setSpace(space *netipx.IPSet) {
	if space != nil {
		l.space = space.Ranges()
	}
	l.free = poolutil.NewFree(space)
	for _, r := range l.space {
		l.bits = r.From().BitLen()
		l.total = l.total.Plus(l.units(r))
	}
}

// units is the number of what the pool hands out in a range. Of another family than the pool's it hands out nothing:
// that counts by address, as its spans are cut.
func (l *Ledger) units(r netipx.IPRange) poolutil.Count {
	if bits := r.From().BitLen(); l.bits != 0 && l.bits != bits {
		return poolutil.CountPrefixes(r, bits)
	}
	return poolutil.CountPrefixes(r, l.unit)
}

// Add states a fact. Stating one again with the same range changes nothing; with another range, it
// replaces the first.
func (l *Ledger) Add(h Fact) {
	h.Range = l.whole(h.Range)
	if old, ok := l.facts[h.Key]; ok {
		if old.Range == h.Range && old.Owner == h.Owner {
			return
		}
		l.Remove(h.Key)
	}
	fact := &h
	l.own(fact)
	l.facts[h.Key] = fact
	l.take(h.Range, h.Source.Uses())
	l.views.touching(h.Range, func(v *view, r netipx.IPRange) { v.free.TakeAny(r) })
	l.taken.add(fact, l.recount)
}

// Remove withdraws a fact and returns it. What nobody else holds is free again; what nobody else uses is released.
func (l *Ledger) Remove(k Key) (Fact, bool) {
	return l.remove(k, func(r netipx.IPRange, used, more bool) {
		l.recount(r, used, more)
		if used && !more {
			l.end(r)
		}
	})
}

// Retract withdraws a fact that never came true: what nobody else uses counts as never used.
func (l *Ledger) Retract(k Key) { l.remove(k, l.recount) }

func (l *Ledger) remove(k Key, recount recount) (Fact, bool) {
	fact, ok := l.facts[k]
	if !ok {
		return Fact{}, false
	}
	delete(l.facts, k)
	l.disown(fact)
	l.taken.remove(fact, recount, func(r netipx.IPRange) {
		for part := range l.inSpace(r) {
			l.put(part)
		}
		l.views.touching(r, func(v *view, part netipx.IPRange) { v.free.Put(part) })
	})
	return *fact, true
}

// own counts the owner of a fact that is about to come, disown that of one that has gone. Most objects say themselves what
// they use: only who is named by others is remembered.
func (l *Ledger) own(h *Fact) {
	if !h.Source.Uses() {
		return
	}
	id := h.ownerID()
	if !l.isOwner(id) {
		l.owners++
	}
	if id != h.UID {
		l.named[id]++
	}
}

func (l *Ledger) disown(h *Fact) {
	if !h.Source.Uses() {
		return
	}
	id := h.ownerID()
	if id != h.UID {
		if l.named[id]--; l.named[id] == 0 {
			delete(l.named, id)
		}
	}
	if !l.isOwner(id) {
		l.owners--
	}
}

// isOwner reports whether a fact says that an object uses something: one of its own, or one that names it.
func (l *Ledger) isOwner(uid types.UID) bool {
	if l.named[uid] > 0 {
		return true
	}
	for s := Object; s.Uses(); s++ {
		if h := l.facts[Key{Source: s, UID: uid}]; h != nil && h.ownerID() == uid {
			return true
		}
	}
	return false
}

// Get returns a fact.
func (l *Ledger) Get(k Key) (Fact, bool) {
	if h, ok := l.facts[k]; ok {
		return *h, true
	}
	return Fact{}, false
}

// Overlapping returns the facts that touch a range, ordered by source and UID. Cost O(n log n) of what touches it: where
// one fact decides, FindOverlapping costs less.
func (l *Ledger) Overlapping(r netipx.IPRange) []*Fact {
	var out []*Fact
	l.taken.overlapping(l.whole(r), func(s *span) bool {
		out = append(out, s.facts...)
		return true
	})
	slices.SortFunc(out, compareFacts)
	return slices.Compact(out) // a fact is one pointer, in each span that it covers
}

// FindOverlapping returns the first fact that touches a range and is as asked, nil if none is: the first by address, of
// one address the first by source and UID. It looks no further, as ranges may have many facts: cost O(log n) and what it
// passes, some facts more than once.
func (l *Ledger) FindOverlapping(r netipx.IPRange, is func(*Fact) bool) *Fact {
	var found *Fact
	l.taken.overlapping(l.whole(r), func(s *span) bool {
		if i := slices.IndexFunc(s.facts, is); i >= 0 {
			found = s.facts[i]
		}
		return found == nil
	})
	return found
}

// Uses calls visit for every range that is in use, ascending, with the facts that say so, until visit returns false.
// Cost O(log n) and what is passed.
func (l *Ledger) Uses(visit func(r netipx.IPRange, facts []*Fact) bool) {
	l.taken.from(netip.Addr{}, func(s *span) bool {
		if s.uses == 0 {
			return true
		}
		return visit(s.rng(), slices.DeleteFunc(slices.Clone(s.facts), func(h *Fact) bool { return !h.Source.Uses() }))
	})
}

// UsesOutside calls visit for every range in use that reaches out of the space, ascending, with the facts that say so,
// until visit returns false. One that reaches out on both sides may come twice. Cost O(log n) for each part of the space,
// and what is passed.
func (l *Ledger) UsesOutside(visit func(r netipx.IPRange, facts []*Fact) bool) {
	more, at := true, netip.Addr{}
	between := func(end netip.Addr) {
		l.taken.from(at, func(s *span) bool {
			if end.IsValid() && !s.first.Less(end) {
				return false
			}
			if s.uses > 0 {
				more = visit(s.rng(), slices.DeleteFunc(slices.Clone(s.facts), func(h *Fact) bool { return !h.Source.Uses() }))
			}
			return more
		})
	}
	for _, part := range l.space {
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

// Taken calls visit for every range that is taken, ascending, from the one that has an address or follows
// it, with the facts that say so, until visit returns false. Visit must not keep the facts nor change the
// ledger. Cost O(log n) and what is visited.
func (l *Ledger) Taken(from netip.Addr, visit func(r netipx.IPRange, facts []*Fact) bool) {
	l.taken.from(from, func(s *span) bool { return visit(s.rng(), s.facts) })
}

// InSpace reports whether a range lies wholly in what the pool hands out.
func (l *Ledger) InSpace(r netipx.IPRange) bool {
	for part := range l.inSpace(r) {
		return part == r
	}
	return false
}

// Free yields the free ranges, ascending. The ledger must not be changed meanwhile.
func (l *Ledger) Free() iter.Seq[netipx.IPRange] { return l.free.All() }

// Unit returns the whole unit (address or prefix) that contains an address.
func (l *Ledger) Unit(a netip.Addr) netipx.IPRange { return l.whole(netipx.IPRangeFrom(a, a)) }

// Counts returns the statistics. O(1).
func (l *Ledger) Counts() Counts {
	c := Counts{
		Total: l.total.Int64(), Allocated: l.used.Int64(), OutOfRange: l.outside.Int64(),
		Available: l.total.Minus(l.unavailable).Int64(), Owners: int64(l.owners),
		FragmentationPercent: l.free.FragmentationPercent(),
	}
	if largest, found := l.free.LargestBlock(); found {
		c.LargestFree = l.units(largest).Int64()
	}
	return c
}

// recount notes that a span came into use, or was taken out of the free space; or the reverse.
func (l *Ledger) recount(r netipx.IPRange, used, more bool) {
	change := poolutil.Count.Plus
	if !more {
		change = poolutil.Count.Minus
	}
	l.recountParts(r, used, change)
	var inside poolutil.Count
	for part := range l.inSpace(r) {
		inside = inside.Plus(l.units(part))
	}
	if !used {
		l.unavailable = change(l.unavailable, inside)
		return
	}
	l.used = change(l.used, inside)
	l.outside = change(l.outside, l.units(r).Minus(inside))
}

// inSpace yields the parts of a range that lie in the space.
func (l *Ledger) inSpace(r netipx.IPRange) func(func(netipx.IPRange) bool) {
	return func(yield func(netipx.IPRange) bool) {
		i, _ := slices.BinarySearchFunc(l.space, r.From(), func(s netipx.IPRange, a netip.Addr) int {
			return s.To().Compare(a)
		})
		for ; i < len(l.space) && l.space[i].From().Compare(r.To()) <= 0; i++ {
			from, to := l.space[i].From(), l.space[i].To()
			if from.Less(r.From()) {
				from = r.From()
			}
			if r.To().Less(to) {
				to = r.To()
			}
			if !yield(netipx.IPRangeFrom(from, to)) {
				return
			}
		}
	}
}

// whole widens a range to whole units, so that a stray address makes its whole prefix taken. An address
// of another family than the pool's concerns only itself.
func (l *Ledger) whole(r netipx.IPRange) netipx.IPRange {
	bits := r.From().BitLen()
	if l.unit >= bits || (l.bits != 0 && l.bits != bits) {
		return r
	}
	first, err1 := r.From().Prefix(l.unit)
	last, err2 := r.To().Prefix(l.unit)
	if err1 != nil || err2 != nil {
		return r
	}
	return netipx.IPRangeFrom(first.Addr(), netipx.RangeOfPrefix(last).To())
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
