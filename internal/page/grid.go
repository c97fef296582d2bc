package page

import (
	"net/http"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

const (
	// maxCells is the largest pool of which there is a map; of a larger one only the ranges in use are listed.
	maxCells = 1 << 32
	// maxListed bounds these.
	maxListed = 2000
)

// grid is the map of a pool: its addresses, or prefixes, in a row, counted from 0, through all its extents.
type grid struct {
	ID   string   `json:"id"`
	Unit int      `json:"unit"`
	Uses []string `json:"uses"`
	// Extents are first and last address of each part of the pool, those with addresses in use that the
	// spec no longer covers included.
	Extents [][2]string `json:"extents"`
	// Runs are three numbers each: how many free ones come first, how many of one use then, and the use. Nil where
	// there is no map.
	Runs []uint64 `json:"runs"`
	// Ranges are in place of Runs where the pool is too large for a map. More: there are more of them.
	Ranges []listed `json:"ranges,omitempty"`
	More   bool     `json:"more,omitempty"`
}

type listed struct {
	Range string     `json:"range"`
	N     int64      `json:"n"`
	Use   grants.Use `json:"use"`
}

// span is a range that has one use.
type span struct {
	rng netipx.IPRange
	use grants.Use
}

// run is a span in the numbers of a grid.
type run struct {
	first, last uint64
	use         grants.Use
}

// grid answers with the map of a pool.
func (p *Page) grid(r *http.Request) (any, error) {
	v, err := p.view(r)
	if err != nil {
		return nil, err
	}
	out := grid{ID: idOf(v.Key), Unit: v.UnitBits, Uses: uses, Extents: [][2]string{}}
	if v.Declared == nil {
		return out, nil
	}
	taken := p.taken(v.Key)
	parts, err := extentsOf(v, taken)
	if err != nil {
		return nil, err
	}
	total := uint64(0)
	for _, e := range parts {
		out.Extents = append(out.Extents, [2]string{e.rng.From().String(), e.rng.To().String()})
		total += min(e.n, maxCells+1)
	}
	if total > maxCells {
		for _, s := range taken[:min(len(taken), maxListed)] {
			out.Ranges = append(out.Ranges, listed{poolutil.ShowRange(s.rng), poolutil.CountPrefixes(s.rng, min(v.UnitBits, s.rng.From().BitLen())).Int64(), s.use})
		}
		out.More = len(taken) > maxListed
		return out, nil
	}
	out.Runs = encode(layered(numbered(parts, v.UnitBits, taken), gatewayRuns(v, parts), reservedRuns(v, parts)))
	return out, nil
}

// taken are the ranges of a pool that are not free, in order, those of one use that follow each other as one.
func (p *Page) taken(key pools.Key) []span {
	var out []span
	p.Pools.Walk(key, lowest, func(h grants.Entry) bool {
		if n := len(out); n > 0 && out[n-1].use == h.Use && out[n-1].rng.To().Next() == h.Range.From() {
			out[n-1].rng = netipx.IPRangeFrom(out[n-1].rng.From(), h.Range.To())
		} else {
			out = append(out, span{h.Range, h.Use})
		}
		return true
	})
	return out
}

// lowest is before every address: IPv4 comes before IPv6.
var lowest = netip.IPv4Unspecified()

// extent is a part of a pool, of n units; base is the number of the first.
type extent struct {
	rng     netipx.IPRange
	base, n uint64
}

// extentsOf are the parts of a pool, widened to whole units, and whatever else of its addresses is taken.
func extentsOf(v grants.View, taken []span) ([]extent, error) {
	var b netipx.IPSetBuilder
	for _, r := range v.Declared.Ranges() {
		b.AddRange(whole(r, v.UnitBits))
	}
	for _, s := range taken {
		if !v.Declared.ContainsRange(s.rng) {
			b.AddRange(whole(s.rng, v.UnitBits))
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	var out []extent
	base := uint64(0)
	for _, r := range set.Ranges() {
		e := extent{r, base, uint64(poolutil.CountPrefixes(r, v.UnitBits).Int64())}
		base += e.n
		out = append(out, e)
	}
	return out, nil
}

// whole widens a range to whole units of its family.
func whole(r netipx.IPRange, unit int) netipx.IPRange {
	unit = min(unit, r.From().BitLen())
	first, err1 := r.From().Prefix(unit)
	last, err2 := r.To().Prefix(unit)
	if err1 != nil || err2 != nil {
		return r
	}
	return netipx.IPRangeFrom(first.Addr(), netipx.RangeOfPrefix(last).To())
}

// numbered turns spans, in order, into runs. What is in no extent is left out.
func numbered(parts []extent, unit int, spans []span) []run {
	out := make([]run, 0, len(spans))
	i := 0
	for _, s := range spans {
		for i < len(parts) && parts[i].rng.To().Less(s.rng.From()) {
			i++
		}
		if i == len(parts) {
			break
		}
		e := parts[i]
		if s.rng.From().Less(e.rng.From()) {
			continue
		}
		number := func(a netip.Addr) uint64 {
			return e.base + uint64(poolutil.CountPrefixes(netipx.IPRangeFrom(e.rng.From(), a), min(unit, a.BitLen())).Int64()) - 1
		}
		out = append(out, run{number(s.rng.From()), number(s.rng.To()), s.use})
	}
	return out
}

// gatewayRuns are the gateways. A pool of prefixes has none of its own.
func gatewayRuns(v grants.View, parts []extent) []run {
	if len(v.Gateways) == 0 || v.UnitBits < v.Gateways[0].BitLen() {
		return nil
	}
	gateways := slices.Clone(v.Gateways)
	slices.SortFunc(gateways, netip.Addr.Compare)
	var spans []span
	for _, a := range slices.Compact(gateways) {
		if v.Declared.Contains(a) {
			spans = append(spans, span{netipx.IPRangeFrom(a, a), useGateway})
		}
	}
	return numbered(parts, v.UnitBits, spans)
}

// reservedRuns are what the spec names and the pool does not hand out.
func reservedRuns(v grants.View, parts []extent) []run {
	var b netipx.IPSetBuilder
	b.AddSet(v.Declared)
	b.RemoveSet(v.Allocatable)
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	var spans []span
	for _, r := range set.Ranges() {
		r = whole(r, v.UnitBits)
		if n := len(spans); n > 0 && !spans[n-1].rng.To().Less(r.From()) {
			continue // two parts of one unit, which counts once
		}
		spans = append(spans, span{r, useReserved})
	}
	return numbered(parts, v.UnitBits, spans)
}

// layered puts runs over each other, the first on top. Each layer is in order.
func layered(layers ...[]run) []run {
	var out []run
	for _, layer := range layers {
		out = append(out, without(layer, out)...)
		slices.SortFunc(out, func(a, b run) int {
			if a.first < b.first {
				return -1
			}
			return 1
		})
	}
	return out
}

// without are the parts of runs that are not in others; both are in order.
func without(runs, others []run) []run {
	var out []run
	i := 0
	for _, r := range runs {
		for i < len(others) && others[i].last < r.first {
			i++
		}
		for j := i; j < len(others) && others[j].first <= r.last && r.first <= r.last; j++ {
			if r.first < others[j].first {
				out = append(out, run{r.first, others[j].first - 1, r.use})
			}
			r.first = others[j].last + 1
		}
		if r.first <= r.last {
			out = append(out, r)
		}
	}
	return out
}

// encode writes runs with the free space between them.
func encode(runs []run) []uint64 {
	out := make([]uint64, 0, 3*len(runs))
	next := uint64(0)
	for _, r := range runs {
		out = append(out, r.first-next, r.last-r.first+1, uint64(r.use))
		next = r.last + 1
	}
	return out
}
