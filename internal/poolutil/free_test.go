package poolutil

import (
	"math/rand/v2"
	"testing"
)

// TestFreeDeep uses a universe that is large enough for a tree of three levels, and fills and empties it twice. The
// other tests' universes fit into one node.
func TestFreeDeep(t *testing.T) {
	for _, universe := range []string{"10.0.0.0/18", "2001:db8::ffff:ffff:ffff:e000-2001:db8:0:1::1fff"} {
		t.Run(universe, func(t *testing.T) {
			w := newTwins(universe)
			rng := rand.New(rand.NewPCG(1, 2))
			for range 2 {
				for k, i := range rng.Perm(len(w.o.addrs)) {
					w.a.Take(w.o.span(i, 1))
					w.b.Take(w.o.span(i, 1))
					w.o.free[i] = false
					if k%1500 == 0 {
						w.check(t)
					}
				}
				for k, i := range rng.Perm(len(w.o.addrs)) {
					if !w.o.free[i] {
						w.a.Put(w.o.span(i, 1))
						w.b.Put(w.o.span(i, 1))
						w.o.free[i] = true
					}
					if k%1500 == 0 {
						w.check(t)
						w.bestFit(t, 1+k%5)
						i := rng.IntN(len(w.o.addrs) - 300)
						w.takeAny(t, i, 300)
						w.put(t, i, 300)
						rest := w.o.runs()
						w.take(t, rest[0].from, rest[0].n)
						w.put(t, rest[0].from, rest[0].n)
					}
				}
				// Put back what best fit took meanwhile.
				for i, free := range w.o.free {
					if !free {
						w.put(t, i, 1)
					}
				}
				w.check(t)
			}
		})
	}
}

// FuzzFree reads its input as a universe and a list of operations of three bytes.
func FuzzFree(f *testing.F) {
	f.Add([]byte{0, 0, 5, 0, 1, 3, 2, 4, 1, 4})
	f.Add([]byte{2, 2, 60, 5, 0, 9, 0, 1, 28, 0})
	f.Add([]byte{6, 3, 10, 40, 4, 12, 3})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) == 0 || len(program) > 600 {
			return
		}
		w := newTwins(universes[int(program[0])%len(universes)])
		for p := program[1:]; len(p) >= 3; p = p[3:] {
			i := int(p[1]) % len(w.o.addrs)
			n := 1 + int(p[2])%(len(w.o.addrs)-i)
			switch p[0] % 5 {
			case 0:
				w.bestFit(t, int(p[2]))
			case 1:
				w.bestFitPrefix(t, w.o.addrs[0].BitLen()-int(p[2])%8)
			case 2:
				w.take(t, i, n)
			case 3:
				w.takeAny(t, i, n)
			case 4:
				w.put(t, i, n)
			}
		}
	})
}
