package ledger

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// prefixView is the free space of one prefix, independent of the space of the ledger.
type prefixView struct {
	ipRange netipx.IPRange
	free    *poolutil.Free
}

// prefixViewIndex contains the views of a ledger, by prefix. Prefixes nest or are disjoint, so a view that overlaps a
// range either contains it, which is true for few of them, or lies in it.
type prefixViewIndex struct {
	byPrefix map[netip.Prefix]*prefixView
	// lengths are the prefix lengths that views have. sortedPrefixes are sorted by their first address.
	lengths        map[int]struct{}
	sortedPrefixes []netip.Prefix
}

// WatchPrefix keeps the free space of a prefix at hand for FindFreePrefix. It costs as much as is taken of the
// prefix, and nothing if the prefix is watched already.
func (l *Ledger) WatchPrefix(p netip.Prefix) {
	if l.prefixViews.byPrefix[p] != nil {
		return
	}
	if l.prefixViews.byPrefix == nil {
		l.prefixViews.byPrefix, l.prefixViews.lengths = map[netip.Prefix]*prefixView{}, map[int]struct{}{}
	}
	v := &prefixView{ipRange: netipx.RangeOfPrefix(p)}
	var all netipx.IPSetBuilder
	all.AddPrefix(p)
	set, _ := all.IPSet() // for one prefix, IPSet returns no error
	v.free = poolutil.NewFree(set)
	l.takenSpans.visitOverlapping(v.ipRange, func(s *span) bool {
		v.free.TakeAny(s.ipRange())
		return true
	})
	l.prefixViews.byPrefix[p] = v
	l.prefixViews.lengths[p.Bits()] = struct{}{}
	i, _ := slices.BinarySearchFunc(l.prefixViews.sortedPrefixes, p, comparePrefixes)
	l.prefixViews.sortedPrefixes = slices.Insert(l.prefixViews.sortedPrefixes, i, p)
}

// FindFreePrefix returns a prefix of a length that is free in a watched prefix: in the smallest free block that
// contains one, the lowest of those. It takes nothing: the caller states it with AddFact. It returns false if there
// is none, or if p is not watched. It costs O(log n).
func (l *Ledger) FindFreePrefix(p netip.Prefix, bits int) (netip.Prefix, bool) {
	v := l.prefixViews.byPrefix[p]
	if v == nil {
		return netip.Prefix{}, false
	}
	found, ok := v.free.BestFitPrefix(bits)
	if ok {
		v.free.Put(netipx.RangeOfPrefix(found))
	}
	return found, ok
}

// FreePrefixCount returns how many prefixes of a length are free in a watched prefix. It costs O(free blocks).
func (l *Ledger) FreePrefixCount(p netip.Prefix, bits int) poolutil.Count {
	if v := l.prefixViews.byPrefix[p]; v != nil {
		return v.free.Prefixes(bits)
	}
	return poolutil.Count{}
}

// visitOverlapping visits the views that overlap a range.
func (v *prefixViewIndex) visitOverlapping(r netipx.IPRange, visit func(*prefixView, netipx.IPRange)) {
	first := r.From()
	for bits := range v.lengths {
		around, err := first.Prefix(bits)
		if err != nil {
			continue
		}
		if w := v.byPrefix[around]; w != nil && around.Addr().Compare(first) <= 0 {
			visit(w, intersectRanges(w.ipRange, r))
		}
	}
	// Then the views that begin later in the range. The ones that begin with it were found above.
	i, _ := slices.BinarySearchFunc(v.sortedPrefixes, first, func(p netip.Prefix, a netip.Addr) int {
		if p.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	for ; i < len(v.sortedPrefixes) && v.sortedPrefixes[i].Addr().Compare(r.To()) <= 0; i++ {
		w := v.byPrefix[v.sortedPrefixes[i]]
		visit(w, intersectRanges(w.ipRange, r))
	}
}

func intersectRanges(a, b netipx.IPRange) netipx.IPRange {
	return netipx.IPRangeFrom(maxAddr(a.From(), b.From()), minAddr(a.To(), b.To()))
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
