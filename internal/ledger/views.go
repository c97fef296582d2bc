package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// view is the free space of one prefix, whatever the space of the ledger is.
type view struct {
	rng  netipx.IPRange
	free *poolutil.Free
}

// views are those of a ledger, by prefix. Prefixes nest or are disjoint, so what has some of a range is either around it,
// of which there are few, or in it.
type views struct {
	of map[netip.Prefix]*view
	// lengths are how many there are of each prefix length, inOrder are all by their first address.
	lengths map[int]int
	inOrder []netip.Prefix
}

// Watch has the free space of a prefix kept at hand, for TakeIn. It costs as much as is taken of it, and nothing where it
// is kept already.
func (l *Ledger) Watch(p netip.Prefix) {
	if l.views.of[p] != nil {
		return
	}
	if l.views.of == nil {
		l.views.of, l.views.lengths = map[netip.Prefix]*view{}, map[int]int{}
	}
	v := &view{rng: netipx.RangeOfPrefix(p)}
	var all netipx.IPSetBuilder
	all.AddPrefix(p)
	set, _ := all.IPSet() // of one prefix, there is a set
	v.free = poolutil.NewFree(set)
	l.taken.overlapping(v.rng, func(s *span) bool {
		v.free.TakeAny(s.rng())
		return true
	})
	l.views.of[p] = v
	l.views.lengths[p.Bits()]++
	i, _ := slices.BinarySearchFunc(l.views.inOrder, p, comparePrefixes)
	l.views.inOrder = slices.Insert(l.views.inOrder, i, p)
}

// Unwatch ends what Watch began.
func (l *Ledger) Unwatch(p netip.Prefix) {
	if l.views.of[p] == nil {
		return
	}
	delete(l.views.of, p)
	if l.views.lengths[p.Bits()]--; l.views.lengths[p.Bits()] == 0 {
		delete(l.views.lengths, p.Bits())
	}
	if i, is := slices.BinarySearchFunc(l.views.inOrder, p, comparePrefixes); is {
		l.views.inOrder = slices.Delete(l.views.inOrder, i, i+1)
	}
}

// FirstIn returns a prefix of a length that is free in a watched one: in the smallest free block that holds one, the lowest
// of those. It takes nothing: the caller states it with Add. False: there is none, or nobody watches that. O(log n).
func (l *Ledger) FirstIn(p netip.Prefix, bits int) (netip.Prefix, bool) {
	v := l.views.of[p]
	if v == nil {
		return netip.Prefix{}, false
	}
	found, ok := v.free.BestFitPrefix(bits)
	if ok {
		v.free.Put(netipx.RangeOfPrefix(found))
	}
	return found, ok
}

// FreeIn is how many prefixes of a length are free in a watched one. It costs O(free blocks).
func (l *Ledger) FreeIn(p netip.Prefix, bits int) poolutil.Count {
	if v := l.views.of[p]; v != nil {
		return v.free.Prefixes(bits)
	}
	return poolutil.Count{}
}

// touching visits the views that have some of a range.
func (v *views) touching(r netipx.IPRange, visit func(*view, netipx.IPRange)) {
	first := r.From()
	for bits := range v.lengths {
		around, err := first.Prefix(bits)
		if err != nil {
			continue
		}
		if w := v.of[around]; w != nil && around.Addr().Compare(first) <= 0 {
			visit(w, common(w.rng, r))
		}
	}
	// Those that begin later in the range. The ones that begin with it were found above.
	i, _ := slices.BinarySearchFunc(v.inOrder, first, func(p netip.Prefix, a netip.Addr) int {
		if p.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	for ; i < len(v.inOrder) && v.inOrder[i].Addr().Compare(r.To()) <= 0; i++ {
		w := v.of[v.inOrder[i]]
		visit(w, common(w.rng, r))
	}
}

func common(a, b netipx.IPRange) netipx.IPRange {
	return netipx.IPRangeFrom(later(a.From(), b.From()), earlier(a.To(), b.To()))
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
