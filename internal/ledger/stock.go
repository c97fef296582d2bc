package ledger

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/tidwall/btree"
	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// Order is how free space is handed out.
type Order struct {
	// ByRelease: what nobody is known to have used comes first, and then what was released longest ago; else the smallest
	// free block, lowest address first.
	ByRelease bool
	// Zones are ranges that are handed out to those alone who ask for the zone. They do not overlap. They are numbered from
	// 1; zone 0 is what is in none.
	Zones [][]netipx.IPRange
}

// stock is the free space of one zone.
type stock struct {
	// free is that of the ledger where there are no zones, else its own.
	free *poolutil.Free
	own  bool
	// recent is nil where it is handed out by best fit.
	recent *recency
}

// zone is the stock of which a range is.
type zone struct {
	rng   netipx.IPRange
	stock *stock
}

// Arrange sets the order of a ledger of which nothing is in use. It costs O(free ranges + zones).
func (l *Ledger) Arrange(order Order) {
	l.order, l.zones, l.stocks = order, nil, []*stock{{free: l.free}}
	if len(order.Zones) > 0 {
		l.stocks = []*stock{{free: poolutil.NewFree(nil), own: true}}
	}
	for _, ranges := range order.Zones {
		s := &stock{free: poolutil.NewFree(nil), own: true}
		l.stocks = append(l.stocks, s)
		for _, r := range ranges {
			l.zones = append(l.zones, zone{r, s})
		}
	}
	slices.SortFunc(l.zones, func(a, b zone) int { return a.rng.From().Compare(b.rng.From()) })
	for _, s := range l.stocks {
		if order.ByRelease {
			s.recent = newRecency(maxReleases / len(l.stocks))
		}
	}
	for r := range l.free.All() {
		for s, part := range l.inStocks(r) {
			s.put(part)
		}
	}
}

// inStocks yields the parts of a range, each with its stock.
func (l *Ledger) inStocks(r netipx.IPRange) iter.Seq2[*stock, netipx.IPRange] {
	return func(yield func(*stock, netipx.IPRange) bool) {
		next := r.From()
		i, _ := slices.BinarySearchFunc(l.zones, next, func(z zone, a netip.Addr) int { return z.rng.To().Compare(a) })
		for ; i < len(l.zones) && l.zones[i].rng.From().Compare(r.To()) <= 0; i++ {
			part := common(l.zones[i].rng, r)
			if next.Less(part.From()) && !yield(l.stocks[0], netipx.IPRangeFrom(next, part.From().Prev())) {
				return
			}
			if !yield(l.zones[i].stock, part) {
				return
			}
			next = part.To().Next()
		}
		// Next of the last address of a family is the zero Addr: nothing is left then.
		if next.IsValid() && next.Compare(r.To()) <= 0 {
			yield(l.stocks[0], netipx.IPRangeFrom(next, r.To()))
		}
	}
}

// put makes a range free.
func (s *stock) put(r netipx.IPRange) {
	if s.own {
		s.free.Put(r)
	}
	if s.recent != nil {
		s.recent.put(r)
	}
}

// put makes a range free.
func (l *Ledger) put(r netipx.IPRange) {
	l.free.Put(r)
	for s, part := range l.inStocks(r) {
		s.put(part)
	}
}

// take takes a range, whoever has some of it already.
func (l *Ledger) take(r netipx.IPRange, uses bool) {
	l.free.TakeAny(r)
	for s, part := range l.inStocks(r) {
		if s.own {
			s.free.TakeAny(part)
		}
		if s.recent != nil {
			s.recent.take(part, uses)
		}
	}
}

// end notes that nobody uses a range any more.
func (l *Ledger) end(r netipx.IPRange) {
	if !l.order.ByRelease {
		return
	}
	for in := range l.inSpace(r) {
		for s, part := range l.inStocks(in) {
			s.recent.end(part, l.releases)
		}
	}
	l.releases++
}

// Recall notes that a range was released, later than all that the ledger knows of, unless somebody has it now.
func (l *Ledger) Recall(r netipx.IPRange) {
	if !l.order.ByRelease || !r.IsValid() {
		return
	}
	for in := range l.inSpace(l.whole(r)) {
		for s, part := range l.inStocks(in) {
			if s.recent.fresh.Take(part) {
				s.recent.end(part, l.releases)
				s.recent.put(part)
			}
		}
	}
	l.releases++
}

// Releases yields the free ranges that were in use, the one that was released last first. The ledger must not be changed
// meanwhile.
func (l *Ledger) Releases() iter.Seq[netipx.IPRange] {
	return func(yield func(netipx.IPRange) bool) {
		if !l.order.ByRelease {
			return
		}
		// What a stock has yet to yield, from its latest on.
		next := make([]btree.IterG[*release], len(l.stocks))
		more := make([]bool, len(l.stocks))
		for i, s := range l.stocks {
			next[i] = s.recent.ready.Iter()
			more[i] = next[i].Last()
		}
		for {
			latest := -1
			for i := range next {
				if more[i] && (latest < 0 || before(next[latest].Item(), next[i].Item())) {
					latest = i
				}
			}
			if latest < 0 || !yield(next[latest].Item().rng()) {
				return
			}
			more[latest] = next[latest].Prev()
		}
	}
}

// inOrder returns all that is remembered of releases, what was released longest ago first.
func (l *Ledger) inOrder() (out []*release) {
	for _, s := range l.stocks {
		if s.recent != nil {
			out = append(out, s.recent.released.Items()...)
		}
	}
	slices.SortFunc(out, func(a, b *release) int { return cmp.Or(cmp.Compare(a.order, b.order), a.first.Compare(b.first)) })
	return out
}
