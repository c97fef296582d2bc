package poolutil

import (
	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

// tester is the common part of *testing.T and *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// universes are the ranges where the arithmetic could go wrong: both ends of both families, and the boundary between
// the halves of a 128-bit number.
var universes = []string{
	"10.0.0.0/26",
	"0.0.0.0-0.0.0.71",
	"255.255.255.190-255.255.255.255",
	"2001:db8::fff0-2001:db8::1:2f",
	"::-::40",
	"2001:db8:0:1:ffff:ffff:ffff:ffdd-2001:db8:0:2::21",
	"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffc0-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
}

// twins applies one history to two Frees and an oracle: the Frees must equal the oracle after every step, and each
// other, as they have the same history.
type twins struct {
	a, b *Free
	o    *oracle
}

func newTwins(universe string) *twins {
	return &twins{NewFree(setOf(universe)), NewFree(setOf(universe)), newOracle(rangeOf(universe))}
}

// outcome is the result of an operation.
type outcome struct {
	Got string
	OK  bool
}

// step does one operation on both Frees; want is the result of the oracle, on which it was done already.
func (w *twins) step(t tester, name string, want outcome, do func(*Free) outcome) {
	t.Helper()
	for _, f := range []*Free{w.a, w.b} {
		if diff := cmp.Diff(want, do(f)); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", name, diff)
		}
	}
	w.check(t)
}

func (w *twins) check(t tester) {
	t.Helper()
	want := w.o.stats()
	for _, f := range []*Free{w.a, w.b} {
		if diff := cmp.Diff(want, statsOf(f)); diff != "" {
			t.Fatalf("free space (-want +got):\n%s", diff)
		}
	}
}

func (w *twins) bestFit(t tester, n int) {
	t.Helper()
	var want outcome
	if i, ok := w.o.bestFit(n); ok {
		w.o.set(i, n, false)
		want = outcome{w.o.span(i, n).String(), true}
	}
	w.step(t, "BestFit", want, func(f *Free) outcome { return rangeOutcome(f.BestFit(uint64(n))) })
}

func (w *twins) bestFitPrefix(t tester, bits int) {
	t.Helper()
	var want outcome
	if p, ok := w.o.bestFitPrefix(bits); ok {
		first, last := w.o.index(p.Addr()), w.o.index(netipx.PrefixLastIP(p))
		w.o.set(first, last-first+1, false)
		want = outcome{p.String(), true}
	}
	w.step(t, "BestFitPrefix", want, func(f *Free) outcome {
		p, ok := f.BestFitPrefix(bits)
		if !ok {
			return outcome{}
		}
		return outcome{p.String(), true}
	})
}

func (w *twins) take(t tester, i, n int) {
	t.Helper()
	ok := w.o.allFree(i, n)
	r := w.o.span(i, n)
	if ok {
		w.o.set(i, n, false)
	}
	w.step(t, "Take", outcome{OK: ok}, func(f *Free) outcome { return outcome{OK: f.Take(r)} })
}

func (w *twins) takeAny(t tester, i, n int) {
	t.Helper()
	w.o.set(i, n, false)
	w.step(t, "TakeAny", outcome{}, func(f *Free) outcome {
		f.TakeAny(w.o.span(i, n))
		return outcome{}
	})
}

// put frees taken addresses, and checks that freeing any other panics and changes nothing.
func (w *twins) put(t tester, i, n int) {
	t.Helper()
	ok := w.o.noneFree(i, n)
	if ok {
		w.o.set(i, n, true)
	}
	w.step(t, "Put", outcome{OK: ok}, func(f *Free) outcome {
		return outcome{OK: !panics(func() { f.Put(w.o.span(i, n)) })}
	})
}

func rangeOutcome(r netipx.IPRange, ok bool) outcome {
	if !ok {
		return outcome{}
	}
	return outcome{r.String(), true}
}
