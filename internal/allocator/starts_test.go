package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// Starts of a manager that learns of one pool later than of another.

// managerStart is how a manager starts after another one was killed by a write.
type managerStart struct {
	// writeHappens reports whether the write happens. edits is how much the user does before the next manager starts.
	writeHappens bool
	edits        int
	// last is the pool that the next manager reconciles last, empty for any. unlisted reports whether its first list of
	// pools fails.
	last     string
	unlisted bool
}

func (b managerStart) String() string {
	return fmt.Sprintf("landed=%v edits=%d last=%q unlisted=%v", b.writeHappens, b.edits, b.last, b.unlisted)
}

// drawBegin draws a start in a world of some pools.
func drawBegin(r *rand.Rand, names []string) managerStart {
	b := managerStart{writeHappens: r.IntN(4) > 0, edits: r.IntN(5), unlisted: r.IntN(2) == 0}
	if len(names) > 0 && r.IntN(4) > 0 {
		b.last = names[r.IntN(len(names))]
	}
	return b
}

// restart kills the manager that writes, lets the user act, and starts another manager.
func (b managerStart) restart(w *world, r *faults.Request) {
	if b.writeHappens {
		_, _ = w.Execute(r)
	}
	m := w.Manager(r.Client)
	w.Tracef("manager %s is killed; %v", m.Name, b)
	m.Kill()
	w.hasty = true // nothing was at rest
	if w.forced {
		b.edits = 0 // blocks are taken by force only when all is at rest
	}
	for range min(b.edits, len(w.Script)) {
		w.Act()
	}
	next := w.start()
	if b.last != "" {
		w.Order = preferLast(w.Order, next.Name+": reconcile "+b.last)
	}
	if !b.unlisted {
		return
	}
	others := w.Disturb
	w.Disturb = func(w *world, call *faults.Request) bool {
		if call.Client != next.Name || call.Verb != "list" || call.Ref.Kind != faults.Pools {
			return others != nil && others(w, call)
		}
		w.Disturb = others
		w.Answer(call, nil, apierrors.NewTimeoutError("the server is busy", 1))
		return true
	}
}

// preferLast returns an order that takes a step only where there is no other.
func preferLast(o sim.Order, text string) sim.Order {
	return func(steps []sim.Step) sim.Step {
		if rest := slices.DeleteFunc(slices.Clone(steps), func(s sim.Step) bool { return s.Text == text }); len(rest) > 0 {
			return o(rest)
		}
		return o(steps)
	}
}

// poolNames returns the names of the existing pools.
func (w *world) poolNames() (out []string) {
	for _, p := range w.objects().Pools {
		out = append(out, p.GetName())
	}
	return slices.Sorted(slices.Values(out))
}

// TestRestartAtEveryWrite runs every scenario of several pools with a manager that is killed at each of its writes: the
// user goes on before the next manager starts, whose first list of pools may fail, and which learns of one of the pools
// last.
func TestRestartAtEveryWrite(t *testing.T) {
	runs := 0
	for _, s := range slices.Concat(neighbours, carved) {
		t.Run(s.name, func(t *testing.T) {
			for ordinal, name := range names(sim.Orders) {
				t.Run(name, func(t *testing.T) {
					writes := s.run(t, func(w *world) { w.Order = sim.Orders[name] })
					for i := 1; i <= writes; i++ {
						for draw := range draws(i + ordinal) {
							runs++
							t.Run(fmt.Sprint(i, "-", draw), func(t *testing.T) {
								r := rand.New(rand.NewPCG(uint64(i), crc(s.name+name, draw)))
								s.run(t, func(w *world) {
									w.Order = sim.Orders[name]
									w.Disturb = func(w *world, call *faults.Request) bool {
										if !call.IsWrite() || w.Writes != i {
											return false
										}
										w.Disturb = nil
										drawBegin(r, w.poolNames()).restart(w, call)
										return true
									}
								})
							})
						}
					}
				})
			}
		})
	}
	t.Logf("%d runs", runs)
}

// draws returns how many starts are tried at the n-th write.
func draws(n int) int {
	switch {
	case *full:
		return 12
	case !testing.Short() || n%3 == 0:
		return 1
	}
	return 0
}

// specKinds are kinds of specs that differ in what they grant of their addresses. Some keep the first address for a
// name.
var specKinds = []struct {
	name string
	spec func(first, last int) v1alpha1.NetworkPoolSpec
}{
	{"plain", func(first, last int) v1alpha1.NetworkPoolSpec { return Pool(from(first, last), reserve, carvable) }},
	{"pinned", func(first, last int) v1alpha1.NetworkPoolSpec {
		return Pool(from(first, last), reserve, carvable, vipAt(first))
	}},
	{"reserved pin", func(first, last int) v1alpha1.NetworkPoolSpec {
		return Pool(from(first, last), reserve, carvable, vipAt(first), func(s *v1alpha1.NetworkPoolSpec) {
			s.Reserved = []v1alpha1.ReservedRange{{Addresses: from(first, first)}}
		})
	}},
	{"pin outside tenantAllocation", func(first, last int) v1alpha1.NetworkPoolSpec {
		return Pool(from(first, last), reserve, carvable, vipAt(first), func(s *v1alpha1.NetworkPoolSpec) {
			s.TenantAllocation = &v1alpha1.TenantAllocation{Start: at(last), End: at(last)}
		})
	}},
	{"reserved", func(first, last int) v1alpha1.NetworkPoolSpec {
		return Pool(from(first, last), reserve, carvable, func(s *v1alpha1.NetworkPoolSpec) {
			s.Reserved = []v1alpha1.ReservedRange{{Addresses: from(last, last)}}
		})
	}},
	{"subnets", func(first, last int) v1alpha1.NetworkPoolSpec {
		return Pool(from(first, last), carvable, func(s *v1alpha1.NetworkPoolSpec) {
			s.Subnets = []v1alpha1.Subnet{{CIDR: "10.0.0.0/29"}, {CIDR: "10.0.0.8/29"}}
		})
	}},
	{"prefixes", func(first, _ int) v1alpha1.NetworkPoolSpec {
		return v1alpha1.NetworkPoolSpec{CIDR: at(first&^3) + "/30", AllocationPrefixLength: new(int32(31)), PreAllocations: v1alpha1.PreAllocations{"vip": at(first &^ 3)}}
	}},
}

func at(n int) string { return fmt.Sprint("10.0.0.", n) }

func from(first, last int) string { return at(first) + "-" + at(last) }

// vipAt keeps an address for the claim vip.
func vipAt(n int) func(*v1alpha1.NetworkPoolSpec) {
	return func(s *v1alpha1.NetworkPoolSpec) { s.PreAllocations = v1alpha1.PreAllocations{"vip": at(n)} }
}

// drawNeighbours draws a scenario of two or three pools of one network, each of its kind: their specs are edited while
// claims come and go. The result depends on the order; that no address is granted twice does not.
func drawNeighbours(r *rand.Rand) scenario {
	all := []string{poolName, neighbour, "third"}[:2+r.IntN(2)]
	kindOf := map[string]int{}
	for _, p := range all {
		kindOf[p] = r.IntN(len(specKinds))
	}
	draw := func(pool string) v1alpha1.NetworkPoolSpec {
		first := r.IntN(12)
		return specKinds[kindOf[pool]].spec(first, first+1+r.IntN(4))
	}
	s := scenario{name: "kinds", spec: draw(poolName), ordered: true}
	for _, p := range all[1:] {
		if spec := draw(p); p == "third" && r.IntN(3) == 0 {
			s.script = append(s.script, makeChild(p, poolName, 0, 2))
			kindOf[p] = -1
		} else {
			s.script = append(s.script, makeNamed(p, spec))
		}
	}
	names := []string{"a", "b", "c", "d", "e", "f", "vip"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		s.script = append(s.script, addTo(all[r.IntN(len(all))], name))
		if p := all[r.IntN(len(all))]; kindOf[p] >= 0 && r.IntN(2) == 0 {
			spec := draw(p)
			s.script = append(s.script, edit(p, "another spec", func(s *v1alpha1.NetworkPoolSpec) { *s = spec }))
		}
		if r.IntN(4) == 0 {
			s.script = append(s.script, remove(names[r.IntN(len(names))]))
		}
	}
	// A pool is created when the others have claims, or before.
	if r.IntN(2) == 0 {
		last := len(all) - 2
		made := s.script[last]
		s.script = slices.Insert(slices.Delete(s.script, last, last+1), last+r.IntN(3), made)
	}
	if r.IntN(4) == 0 {
		s.script = append(s.script, dropOf(all[r.IntN(len(all))]))
		for _, name := range names { // otherwise two managers in turns check whether it can go
			s.script = append(s.script, remove(name))
		}
	}
	for i, a := range s.script {
		s.script[i] = sim.NewAttempt(a.Text, func(w *world) bool {
			a.Do(w) // a pool may not exist yet, or any more
			return true
		})
	}
	return s
}

// makeNamed adds a pool of some spec.
func makeNamed(name string, spec v1alpha1.NetworkPoolSpec) action {
	return makePlain(name, "", func(s *v1alpha1.NetworkPoolSpec) { *s = spec })
}

// TestRandomPoolsOfDifferentKinds runs random scenarios of pools whose specs differ in kind, with random disturbances:
// managers are killed, lists fail, and the next manager learns of the pools in any order.
func TestRandomPoolsOfDifferentKinds(t *testing.T) {
	for seed := range 4 * seeds() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), crc("kinds", 0)))
			drawNeighbours(r).run(t, func(w *world) {
				w.Order, w.Anytime = sim.RandomOrder(r), seed%2 == 0
				w.hasty = true
				left := 3
				w.Disturb = func(w *world, call *faults.Request) bool {
					if left == 0 || r.IntN(8) > 0 {
						return false
					}
					left--
					switch {
					case !call.IsWrite():
						w.Answer(call, nil, sim.ErrTimeout)
					case r.IntN(2) == 0:
						drawBegin(r, w.poolNames()).restart(w, call)
					default:
						d := disturbances[r.IntN(len(disturbances))]
						w.Tracef("    disturbed: %s", d.name)
						return d.do(w, call)
					}
					return true
				}
			})
		})
	}
}
