package poolutil

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

// oracle is the simple and slow implementation of free space: every address of a small universe, and whether it is
// free. Addresses outside the universe are never free. It shares no arithmetic with Free.
type oracle struct {
	addrs []netip.Addr
	free  []bool
}

// run is a contiguous run of free addresses, by index.
type run struct{ from, n int }

func newOracle(universe netipx.IPRange) *oracle {
	o := &oracle{}
	for a := universe.From(); a.IsValid() && a.Compare(universe.To()) <= 0; a = a.Next() {
		o.addrs = append(o.addrs, a)
	}
	o.free = slices.Repeat([]bool{true}, len(o.addrs))
	return o
}

func (o *oracle) span(i, n int) netipx.IPRange {
	return netipx.IPRangeFrom(o.addrs[i], o.addrs[i+n-1])
}

func (o *oracle) index(a netip.Addr) int { return slices.Index(o.addrs, a) }

func (o *oracle) runs() []run {
	var out []run
	for i, free := range o.free {
		switch {
		case !free:
		case i > 0 && o.free[i-1]:
			out[len(out)-1].n++
		default:
			out = append(out, run{i, 1})
		}
	}
	return out
}

// bySize returns the runs from small to large; those of one size from low to high.
func (o *oracle) bySize() []run {
	runs := o.runs()
	slices.SortStableFunc(runs, func(a, b run) int { return a.n - b.n })
	return runs
}

func (o *oracle) allFree(i, n int) bool {
	return i >= 0 && i+n <= len(o.free) && !slices.Contains(o.free[i:i+n], false)
}

func (o *oracle) noneFree(i, n int) bool { return !slices.Contains(o.free[i:i+n], true) }

func (o *oracle) set(i, n int, free bool) {
	for j := i; j < i+n; j++ {
		o.free[j] = free
	}
}

func (o *oracle) bestFit(n int) (int, bool) {
	for _, r := range o.bySize() {
		if n > 0 && r.n >= n {
			return r.from, true
		}
	}
	return 0, false
}

func (o *oracle) bestFitPrefix(bits int) (netip.Prefix, bool) {
	for _, r := range o.bySize() {
		for i := r.from; i < r.from+r.n; i++ {
			p, err := o.addrs[i].Prefix(bits)
			if err == nil && p.Addr() == o.addrs[i] && o.span(r.from, r.n).Contains(netipx.PrefixLastIP(p)) {
				return p, true
			}
		}
	}
	return netip.Prefix{}, false
}

// stats are the figures of free space that a status shows.
type stats struct {
	Blocks        []string
	Count         int
	Size, Largest int64
	Empty         bool
	Fragmentation int32
}

func (o *oracle) stats() stats {
	s := stats{Count: len(o.runs()), Empty: len(o.runs()) == 0}
	for _, r := range o.runs() {
		s.Blocks = append(s.Blocks, o.span(r.from, r.n).String())
		s.Size += int64(r.n)
		s.Largest = max(s.Largest, int64(r.n))
	}
	if s.Size > 0 {
		s.Fragmentation = int32(100 * (s.Size - s.Largest) / s.Size)
	}
	return s
}

func statsOf(f *Free) stats {
	s := stats{Count: f.Blocks(), Size: freeCount(f), Largest: f.Largest(), Empty: f.Empty(), Fragmentation: f.FragmentationPercent()}
	for r := range f.All() {
		s.Blocks = append(s.Blocks, r.String())
	}
	return s
}

// freeCount returns the number of free addresses, at most math.MaxInt64.
func freeCount(f *Free) int64 {
	if f.Empty() {
		return 0
	}
	return saturatedNext(f.total.SubWrap64(1))
}

func rangeOf(s string) netipx.IPRange {
	r, err := ParseRange(s)
	if err != nil {
		panic(err)
	}
	return r
}

// panics reports whether do panics.
func panics(do func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	do()
	return false
}

func TestOracleStats(t *testing.T) {
	o := newOracle(rangeOf("10.0.0.0/29"))
	o.set(2, 1, false)
	want := stats{Blocks: []string{"10.0.0.0-10.0.0.1", "10.0.0.3-10.0.0.7"}, Count: 2, Size: 7, Largest: 5, Fragmentation: 28}
	if diff := cmp.Diff(want, o.stats()); diff != "" {
		t.Errorf("the oracle itself is wrong (-want +got):\n%s", diff)
	}
}
