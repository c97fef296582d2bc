package ledger

import (
	"net/netip"
	"slices"

	"github.com/tidwall/btree"
	"go4.org/netipx"
)

// span is a range whose addresses all have the same facts.
type span struct {
	first, last netip.Addr
	// facts are ordered by source and UID: one address may have many, because each user can write a record.
	facts []*Fact
	// useCount is the number of the facts that mean that the addresses are in use.
	useCount int
}

func (s *span) ipRange() netipx.IPRange { return netipx.IPRangeFrom(s.first, s.last) }

// spanTree is an interval map: disjoint spans, ordered by address. Facts that overlap split spans at their ends, so
// finding the facts of an address takes one lookup.
type spanTree struct{ tree *btree.BTreeG[*span] }

func (t *spanTree) ensureTree() {
	if t.tree == nil {
		t.tree = btree.NewBTreeGOptions(func(a, b *span) bool { return a.last.Less(b.last) }, btree.Options{NoLocks: true})
	}
}

// addFact adds a fact to those of the span, removeFact removes it.
func (s *span) addFact(h *Fact) {
	i, _ := slices.BinarySearchFunc(s.facts, h, compareFacts)
	s.facts = slices.Insert(s.facts, i, h)
}

func (s *span) removeFact(h *Fact) {
	if i, ok := slices.BinarySearchFunc(s.facts, h, compareFacts); ok {
		s.facts = slices.Delete(s.facts, i, i+1)
	}
}

// visitOverlapping visits the spans that overlap a range, ascending, until visit returns false. visit must not change
// the tree.
func (t *spanTree) visitOverlapping(r netipx.IPRange, visit func(*span) bool) {
	t.ensureTree()
	t.tree.Ascend(&span{last: r.From()}, func(s *span) bool {
		return !r.To().Less(s.first) && visit(s)
	})
}

// visitFrom visits the spans from an address on, ascending, until visit returns false.
func (t *spanTree) visitFrom(a netip.Addr, visit func(*span) bool) {
	t.ensureTree()
	t.tree.Ascend(&span{last: a}, visit)
}

// splitAtEnds splits the spans that cross an end of r, and returns those that lie inside it.
func (t *spanTree) splitAtEnds(r netipx.IPRange) []*span {
	var touched []*span
	t.visitOverlapping(r, func(s *span) bool {
		touched = append(touched, s)
		return true
	})
	for i, s := range touched {
		if s.first.Less(r.From()) {
			t.tree.Set(&span{first: s.first, last: r.From().Prev(), facts: append([]*Fact(nil), s.facts...), useCount: s.useCount})
			s.first = r.From()
		}
		if r.To().Less(s.last) {
			inner := &span{first: s.first, last: r.To(), facts: append([]*Fact(nil), s.facts...), useCount: s.useCount}
			s.first = r.To().Next()
			t.tree.Set(inner)
			touched[i] = inner
		}
	}
	return touched
}

// countChangeFunc is called for every part that comes into use (used), or gets its first fact at all, and, with more
// false, for the reverse.
type countChangeFunc func(r netipx.IPRange, used, more bool)

// addFact adds a fact to its range.
func (t *spanTree) addFact(h *Fact, recount countChangeFunc) {
	t.ensureTree()
	next := h.Range.From()
	gap := func(first, last netip.Addr) {
		s := &span{first: first, last: last, facts: []*Fact{h}}
		recount(s.ipRange(), false, true)
		if h.Source.IsInUse() {
			s.useCount = 1
			recount(s.ipRange(), true, true)
		}
		t.tree.Set(s)
	}
	for _, s := range t.splitAtEnds(h.Range) {
		if next.IsValid() && next.Less(s.first) {
			gap(next, s.first.Prev())
		}
		s.addFact(h)
		if h.Source.IsInUse() {
			if s.useCount++; s.useCount == 1 {
				recount(s.ipRange(), true, true)
			}
		}
		next = s.last.Next()
	}
	// Next of the last address of a family is the zero Addr: nothing is left then.
	if next.IsValid() && next.Compare(h.Range.To()) <= 0 {
		gap(next, h.Range.To())
	}
}

// removeFact removes a fact from its range. It calls freed for every part that has no fact any more.
func (t *spanTree) removeFact(h *Fact, recount countChangeFunc, freed func(netipx.IPRange)) {
	for _, s := range t.splitAtEnds(h.Range) {
		s.removeFact(h)
		if h.Source.IsInUse() {
			if s.useCount--; s.useCount == 0 {
				recount(s.ipRange(), true, false)
			}
		}
		if len(s.facts) == 0 {
			t.tree.Delete(s)
			recount(s.ipRange(), false, false)
			freed(s.ipRange())
		}
	}
}
