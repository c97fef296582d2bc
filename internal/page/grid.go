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
	// maxMapUnits is the size of the largest pool with a map; of a larger pool only the ranges in use are listed.
	maxMapUnits = 1 << 32
	// maxListedRanges limits that list.
	maxListedRanges = 2000
)

// addressMap is the map of a pool: its addresses, or prefixes, in a row, counted from 0, through all its extents.
type addressMap struct {
	ID       string   `json:"id"`
	UnitBits int      `json:"unit"`
	Uses     []string `json:"uses"`
	// Extents are the first and the last address of each part of the pool, including parts with addresses in use that
	// the spec does not cover any more.
	Extents [][2]string `json:"extents"`
	// Runs has three numbers for each run: the number of free units before it, the number of its units, and their use.
	// It is nil where there is no map.
	Runs []uint64 `json:"runs"`
	// Ranges replace Runs where the pool is too large for a map. More reports whether ranges were left out.
	Ranges []listedRange `json:"ranges,omitempty"`
	More   bool          `json:"more,omitempty"`
}

type listedRange struct {
	Range string          `json:"range"`
	Count int64           `json:"n"`
	Use   grants.RangeUse `json:"use"`
}

// usedRange is a range with one use.
type usedRange struct {
	ipRange netipx.IPRange
	use     grants.RangeUse
}

// unitRun is a range of unit numbers of an addressMap.
type unitRun struct {
	first, last uint64
	use         grants.RangeUse
}

// handleMap returns the map of a pool.
func (p *Page) handleMap(r *http.Request) (any, error) {
	v, err := p.viewFromRequest(r)
	if err != nil {
		return nil, err
	}
	out := addressMap{ID: poolID(v.Key), UnitBits: v.UnitBits, Uses: useNames, Extents: [][2]string{}}
	if v.Declared == nil {
		return out, nil
	}
	taken := p.usedRanges(v.Key)
	parts, err := poolExtents(v, taken)
	if err != nil {
		return nil, err
	}
	total := uint64(0)
	for _, e := range parts {
		out.Extents = append(out.Extents, [2]string{e.ipRange.From().String(), e.ipRange.To().String()})
		total += min(e.unitCount, maxMapUnits+1)
	}
	if total > maxMapUnits {
		for _, s := range taken[:min(len(taken), maxListedRanges)] {
			out.Ranges = append(out.Ranges, listedRange{poolutil.ShowRange(s.ipRange), poolutil.CountPrefixes(s.ipRange, min(v.UnitBits, s.ipRange.From().BitLen())).Int64(), s.use})
		}
		out.More = len(taken) > maxListedRanges
		return out, nil
	}
	out.Runs = encodeRuns(layerRuns(toUnitRuns(parts, v.UnitBits, taken), gatewayRuns(v, parts), reservedRuns(v, parts)))
	return out, nil
}

// usedRanges returns the ranges of a pool that are not free, in order; adjacent ranges of one use are merged.
func (p *Page) usedRanges(key pools.Key) []usedRange {
	var out []usedRange
	p.Pools.WalkEntries(key, lowestAddress, func(h grants.TakenRange) bool {
		if n := len(out); n > 0 && out[n-1].use == h.Use && out[n-1].ipRange.To().Next() == h.Range.From() {
			out[n-1].ipRange = netipx.IPRangeFrom(out[n-1].ipRange.From(), h.Range.To())
		} else {
			out = append(out, usedRange{h.Range, h.Use})
		}
		return true
	})
	return out
}

// lowestAddress is lower than every address: IPv4 sorts before IPv6.
var lowestAddress = netip.IPv4Unspecified()

// poolExtent is a contiguous part of a pool, with unitCount units; firstUnit is the number of the first.
type poolExtent struct {
	ipRange              netipx.IPRange
	firstUnit, unitCount uint64
}

// poolExtents returns the parts of a pool, widened to whole units, and the other addresses of it that are taken.
func poolExtents(v grants.PoolView, taken []usedRange) ([]poolExtent, error) {
	var b netipx.IPSetBuilder
	for _, r := range v.Declared.Ranges() {
		b.AddRange(alignToUnits(r, v.UnitBits))
	}
	for _, s := range taken {
		if !v.Declared.ContainsRange(s.ipRange) {
			b.AddRange(alignToUnits(s.ipRange, v.UnitBits))
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	var out []poolExtent
	base := uint64(0)
	for _, r := range set.Ranges() {
		e := poolExtent{r, base, uint64(poolutil.CountPrefixes(r, v.UnitBits).Int64())}
		base += e.unitCount
		out = append(out, e)
	}
	return out, nil
}

// alignToUnits widens a range to whole units of its family.
func alignToUnits(r netipx.IPRange, unit int) netipx.IPRange {
	unit = min(unit, r.From().BitLen())
	first, err1 := r.From().Prefix(unit)
	last, err2 := r.To().Prefix(unit)
	if err1 != nil || err2 != nil {
		return r
	}
	return netipx.IPRangeFrom(first.Addr(), netipx.RangeOfPrefix(last).To())
}

// toUnitRuns turns ordered ranges into runs. Ranges outside the extents are left out.
func toUnitRuns(parts []poolExtent, unit int, spans []usedRange) []unitRun {
	out := make([]unitRun, 0, len(spans))
	i := 0
	for _, s := range spans {
		for i < len(parts) && parts[i].ipRange.To().Less(s.ipRange.From()) {
			i++
		}
		if i == len(parts) {
			break
		}
		e := parts[i]
		if s.ipRange.From().Less(e.ipRange.From()) {
			continue
		}
		number := func(a netip.Addr) uint64 {
			return e.firstUnit + uint64(poolutil.CountPrefixes(netipx.IPRangeFrom(e.ipRange.From(), a), min(unit, a.BitLen())).Int64()) - 1
		}
		out = append(out, unitRun{number(s.ipRange.From()), number(s.ipRange.To()), s.use})
	}
	return out
}

// gatewayRuns returns the runs of the gateways. A pool of prefixes has none of its own.
func gatewayRuns(v grants.PoolView, parts []poolExtent) []unitRun {
	if len(v.Gateways) == 0 || v.UnitBits < v.Gateways[0].BitLen() {
		return nil
	}
	gateways := slices.Clone(v.Gateways)
	slices.SortFunc(gateways, netip.Addr.Compare)
	var spans []usedRange
	for _, a := range slices.Compact(gateways) {
		if v.Declared.Contains(a) {
			spans = append(spans, usedRange{netipx.IPRangeFrom(a, a), useGateway})
		}
	}
	return toUnitRuns(parts, v.UnitBits, spans)
}

// reservedRuns returns the runs that the spec declares and the pool does not hand out.
func reservedRuns(v grants.PoolView, parts []poolExtent) []unitRun {
	var b netipx.IPSetBuilder
	b.AddSet(v.Declared)
	b.RemoveSet(v.Allocatable)
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	var spans []usedRange
	for _, r := range set.Ranges() {
		r = alignToUnits(r, v.UnitBits)
		if n := len(spans); n > 0 && !spans[n-1].ipRange.To().Less(r.From()) {
			continue // a second part of a unit that is already counted
		}
		spans = append(spans, usedRange{r, useReserved})
	}
	return toUnitRuns(parts, v.UnitBits, spans)
}

// layerRuns merges ordered layers of runs; a run of an earlier layer hides those of later ones.
func layerRuns(layers ...[]unitRun) []unitRun {
	var out []unitRun
	for _, layer := range layers {
		out = append(out, subtractRuns(layer, out)...)
		slices.SortFunc(out, func(a, b unitRun) int {
			if a.first < b.first {
				return -1
			}
			return 1
		})
	}
	return out
}

// subtractRuns returns the parts of runs that are not in others; both are ordered.
func subtractRuns(runs, others []unitRun) []unitRun {
	var out []unitRun
	i := 0
	for _, r := range runs {
		for i < len(others) && others[i].last < r.first {
			i++
		}
		for j := i; j < len(others) && others[j].first <= r.last && r.first <= r.last; j++ {
			if r.first < others[j].first {
				out = append(out, unitRun{r.first, others[j].first - 1, r.use})
			}
			r.first = others[j].last + 1
		}
		if r.first <= r.last {
			out = append(out, r)
		}
	}
	return out
}

// encodeRuns encodes runs together with the free space before each.
func encodeRuns(runs []unitRun) []uint64 {
	out := make([]uint64, 0, 3*len(runs))
	next := uint64(0)
	for _, r := range runs {
		out = append(out, r.first-next, r.last-r.first+1, uint64(r.use))
		next = r.last + 1
	}
	return out
}
