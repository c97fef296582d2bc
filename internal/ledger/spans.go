package ledger

import (
	"net/netip"
	"slices"

	"github.com/tidwall/btree"
	"go4.org/netipx"
)

// span is a range whose addresses are all held by the same facts.
type span struct {
	first, last netip.Addr
	// facts are ordered by source and UID: one address may have many, as each user can write a record.
	facts []*Fact
	// uses is how many of the facts mean that somebody has the addresses.
	uses int
}

func (s *span) rng() netipx.IPRange { return netipx.IPRangeFrom(s.first, s.last) }

// spans is an interval map: disjoint spans, ordered by address. Facts that overlap split spans at
// their ends, so who holds an address is one lookup.
type spans struct{ tree *btree.BTreeG[*span] }

func (t *spans) init() {
	if t.tree == nil {
		t.tree = btree.NewBTreeGOptions(func(a, b *span) bool { return a.last.Less(b.last) }, btree.Options{NoLocks: true})
	}
}

// with puts a fact among those of the span, without takes it away.
func (s *span) with(h *Fact) {
	i, _ := slices.BinarySearchFunc(s.facts, h, compareFacts)
	s.facts = slices.Insert(s.facts, i, h)
}

func (s *span) without(h *Fact) {
	if i, is := slices.BinarySearchFunc(s.facts, h, compareFacts); is {
		s.facts = slices.Delete(s.facts, i, i+1)
	}
}

// overlapping visits the spans that touch a range, ascending, until the visitor returns false. The visitor must not change
// the tree.
func (t *spans) overlapping(r netipx.IPRange, visit func(*span) bool) {
	t.init()
	t.tree.Ascend(&span{last: r.From()}, func(s *span) bool {
		return !r.To().Less(s.first) && visit(s)
	})
}

// from visits the spans from an address on, ascending, until the visitor returns false.
func (t *spans) from(a netip.Addr, visit func(*span) bool) {
	t.init()
	t.tree.Ascend(&span{last: a}, visit)
}

// cut splits the spans that cross an end of r, and returns those that lie inside it.
func (t *spans) cut(r netipx.IPRange) []*span {
	var touched []*span
	t.overlapping(r, func(s *span) bool {
		touched = append(touched, s)
		return true
	})
	for i, s := range touched {
		if s.first.Less(r.From()) {
			t.tree.Set(&span{first: s.first, last: r.From().Prev(), facts: append([]*Fact(nil), s.facts...), uses: s.uses})
			s.first = r.From()
		}
		if r.To().Less(s.last) {
			inner := &span{first: s.first, last: r.To(), facts: append([]*Fact(nil), s.facts...), uses: s.uses}
			s.first = r.To().Next()
			t.tree.Set(inner)
			touched[i] = inner
		}
	}
	return touched
}

// recount is told of every part that comes into use (used) or comes to be held at all, and, not more, of
// the reverse.
type recount func(r netipx.IPRange, used, more bool)

// add puts a fact on its range.
func (t *spans) add(h *Fact, recount recount) {
	t.init()
	next := h.Range.From()
	gap := func(first, last netip.Addr) {
		s := &span{first: first, last: last, facts: []*Fact{h}}
		recount(s.rng(), false, true)
		if h.Source.Uses() {
			s.uses = 1
			recount(s.rng(), true, true)
		}
		t.tree.Set(s)
	}
	for _, s := range t.cut(h.Range) {
		if next.IsValid() && next.Less(s.first) {
			gap(next, s.first.Prev())
		}
		s.with(h)
		if h.Source.Uses() {
			if s.uses++; s.uses == 1 {
				recount(s.rng(), true, true)
			}
		}
		next = s.last.Next()
	}
	// Next of the last address of a family is the zero Addr: nothing is left then.
	if next.IsValid() && next.Compare(h.Range.To()) <= 0 {
		gap(next, h.Range.To())
	}
}

// remove takes a fact off its range. freed is told of every part that nobody holds any more.
func (t *spans) remove(h *Fact, recount recount, freed func(netipx.IPRange)) {
	for _, s := range t.cut(h.Range) {
		s.without(h)
		if h.Source.Uses() {
			if s.uses--; s.uses == 0 {
				recount(s.rng(), true, false)
			}
		}
		if len(s.facts) == 0 {
			t.tree.Delete(s)
			recount(s.rng(), false, false)
			freed(s.rng())
		}
	}
}
