package tenancy

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// growth is a Cluster that grows, with pools whose free space is fragmented.
type growth struct {
	t         *rapid.T
	pools     []Pool
	pieces    [][]int64 // the contiguous free pieces of each pool
	at        *CurrentAllocation
	tried     []PoolAttempt
	shortfall int64
	writes    int
	tries     int
}

func (g *growth) largest(pool int) int64 {
	most := int64(0)
	for _, n := range g.pieces[pool] {
		most = max(most, n)
	}
	return most
}

func (g *growth) updateStatuses() {
	for i := range g.pools {
		g.pools[i].LargestFreeBlock = g.largest(i)
	}
}

// allocate serves the requested block from the smallest piece that is large enough.
func (g *growth) allocate() {
	if g.at == nil {
		return
	}
	for i, p := range g.pools {
		if p.Ref != g.at.Pool || p.Availability != PoolOpen {
			continue
		}
		best := -1
		for j, n := range g.pieces[i] {
			if n >= int64(g.at.Count) && (best < 0 || n < g.pieces[i][best]) {
				best = j
			}
		}
		if g.at.Phase, g.at.Reason = v1alpha1.AllocationFailed, full; best >= 0 {
			g.pieces[i][best] -= int64(g.at.Count)
			g.shortfall -= int64(g.at.Count)
			g.at = nil // granted: no longer a request
			g.writes++
			return
		}
	}
}

func (g *growth) act() Decision {
	d := DecideGrowthBlock(AllocationRequest{Count: int32(max(0, g.shortfall)), Pools: g.pools, Current: g.at, Attempts: ParseAttempts(FormatAttempts(g.tried))})
	if FormatAttempts(d.Attempts) != FormatAttempts(g.tried) {
		g.tried = d.Attempts
		g.writes++
	}
	switch d.Action {
	case ActionCreate:
		if int64(d.Count) > g.shortfall || d.Count < 1 {
			g.t.Fatalf("asks for %d, and lacks %d", d.Count, g.shortfall)
		}
		g.at = &CurrentAllocation{Pool: d.Pool, Count: d.Count, Phase: v1alpha1.AllocationPending}
		g.tries++
		g.writes++
	case ActionReplace:
		g.at = nil
		g.writes++
	case ActionDone, ActionWait, ActionExhausted:
	}
	return d
}

func (g *growth) settle() Decision {
	var last Decision
	for range 100 * (len(g.pools) + 1) {
		before := g.writes
		g.allocate()
		g.updateStatuses()
		if last = g.act(); g.writes == before {
			return last
		}
	}
	g.t.Fatalf("it never comes to rest: %+v", g)
	return last
}

func (g *growth) free() (n int64) {
	for i, p := range g.pools {
		if p.Availability == PoolOpen {
			for _, piece := range g.pieces[i] {
				n += piece
			}
		}
	}
	return n
}

// TestGrowthTakesPieces checks that a Cluster that needs addresses gets as many as there are, however small the
// pieces, and that nothing is written when there are no more.
func TestGrowthTakesPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &growth{t: t, shortfall: rapid.Int64Range(1, 40).Draw(t, "lacks")}
		for i := range rapid.IntRange(1, 3).Draw(t, "pools") {
			g.pools = append(g.pools, Pool{Ref: newPoolRef(string(rune('a' + i))), Availability: PoolAvailability(rapid.SampledFrom([]int{int(PoolOpen), int(PoolOpen), int(PoolClosed)}).Draw(t, "state"))})
			g.pieces = append(g.pieces, rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 4).Draw(t, "pieces"))
		}
		for range 4 {
			lacked, free := g.shortfall, g.free()
			last := g.settle()
			if got := lacked - max(0, g.shortfall); got < min(lacked, free) {
				t.Fatalf("%d were lacking, %d free, and %d given: %+v", lacked, free, got, last)
			}
			if (g.shortfall > 0) != (last.Action == ActionExhausted) {
				t.Fatalf("%d are lacking, and it says %+v", g.shortfall, last)
			}
			if g.shortfall <= 0 && (len(g.tried) > 0 || g.at != nil) {
				t.Fatalf("nothing is lacking, and something is left: %+v", g)
			}
			i := rapid.IntRange(0, len(g.pools)-1).Draw(t, "freed")
			g.pools[i].Availability = PoolOpen
			g.pieces[i] = append(g.pieces[i], rapid.Int64Range(1, 9).Draw(t, "piece"))
			g.shortfall = max(0, g.shortfall) + rapid.Int64Range(0, 5).Draw(t, "more")
		}
	})
}

// TestDecideGrowthBlock checks that the result of an allocation decides, and that a pool's report only determines how
// much to ask for next (F7).
func TestDecideGrowthBlock(t *testing.T) {
	five := func(names ...string) (out []PoolAttempt) {
		for _, n := range names {
			out = append(out, PoolAttempt{Pool: newPoolRef(n), Count: 5, Reason: full})
		}
		return out
	}
	refused := &CurrentAllocation{Pool: newPoolRef("b"), Count: 5, Phase: v1alpha1.AllocationFailed, Reason: full}
	waiting := &CurrentAllocation{Pool: newPoolRef("a"), Count: 3, Phase: v1alpha1.AllocationPending}
	last := &CurrentAllocation{Pool: newPoolRef("a"), Count: 1, Phase: v1alpha1.AllocationFailed, Reason: full}
	ones := []PoolAttempt{{Pool: newPoolRef("a"), Count: 1, Reason: full}, {Pool: newPoolRef("b"), Count: 1, Reason: full}}
	none := []Pool{openPool("a", 0), openPool("b", 0)}
	tests := map[string]struct {
		reason string
		pools  []Pool
		at     *CurrentAllocation
		tried  []PoolAttempt
		count  int32
		want   string
	}{
		"First":     {reason: "a report of no room is no reason to pass a pool over", pools: none, count: 5, want: "Try a 5"},
		"Asked":     {reason: "what was asked for is answered first, however many are lacking now", pools: none, at: waiting, count: 5, want: "Wait  0"},
		"Second":    {reason: "its failure makes it the next one's turn", pools: none, tried: five("a"), count: 5, want: "Try b 5"},
		"Reported":  {reason: "no pool has five in a row: what is reported", pools: []Pool{openPool("a", 0), openPool("b", 2)}, at: refused, tried: five("a"), count: 5, want: "Replace a 2"},
		"Half":      {reason: "nothing is reported: half", pools: none, at: refused, tried: five("a"), count: 5, want: "Replace a 2"},
		"More":      {reason: "what failed for five fails for six", pools: none, tried: five("a", "b"), count: 6, want: "Try a 3"},
		"Last":      {reason: "it waits with a single one at the first", pools: none, at: last, tried: ones, count: 5, want: "Exhausted  0"},
		"Room":      {reason: "until there is room for what is lacking", pools: []Pool{openPool("a", 0), openPool("b", 7)}, at: last, tried: ones, count: 5, want: "Replace b 5"},
		"SomeRoom":  {reason: "or for some of it", pools: []Pool{openPool("a", 0), openPool("b", 3)}, at: last, tried: ones, count: 5, want: "Replace b 3"},
		"Satisfied": {reason: "no Service needs what was not granted", pools: none, at: last, tried: ones, count: 0, want: "Replace  0"},
		"Nothing":   {reason: "what was tried is forgotten", pools: none, tried: ones, count: 0, want: "Done  0"},
		"NoPools":   {reason: "says what is wrong", count: 2, want: "Exhausted  0"},
		"Gone":      {reason: "a pool that is not listed any more answers no request", pools: none[1:], at: waiting, count: 2, want: "Replace b 2"},
		"Deleting":  {reason: "the name is not free", pools: none, at: &CurrentAllocation{Pool: newPoolRef("a"), Count: 5, Deleting: true}, tried: five("a"), count: 5, want: "Wait  0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := DecideGrowthBlock(AllocationRequest{Count: tc.count, Pools: tc.pools, Current: tc.at, Attempts: tc.tried})
			if got := fmt.Sprintf("%s %s %d", d.Action, d.Pool.Name, d.Count); got != tc.want {
				t.Errorf("%s: got %q, want %q (%+v)", tc.reason, got, tc.want, d)
			}
			if d.Action == ActionExhausted && d.Message == "" {
				t.Errorf("%s: it does not say why", tc.reason)
			}
		})
	}
}
