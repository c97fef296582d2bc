package tenant

import (
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

func TestMain(m *testing.M) { sim.RunTestMain(m) }

// part is the fraction of the schedules that is run, one in part: all with -full, a third of the fraction with -short.
// To run one alone, pass -full, too:
//
//	go test ./controllers/tenant -run 'TestTenantFaults/shrink/lazy/late-3/17' -args -full
const part = 19

var (
	full   = flag.Bool("full", false, "run every schedule, not a part of them")
	storms = flag.Int("storms", 6, "random runs of each scenario")
)

// isSelected reports whether the n-th schedule is among those that are run, one in part.
func isSelected(n, part int) bool {
	if testing.Short() {
		part *= 3
	}
	return *full || n%part == 0
}

// each runs a scenario in all orders, once undisturbed and then as often as run wants, and logs how often that was.
func each(t *testing.T, run func(t *testing.T, s scenario, o sim.Order, ordinal int, calm result) (runs int)) {
	t.Helper()
	t.Parallel()
	var runs atomic.Int64
	begin := time.Now()
	t.Cleanup(func() { t.Logf("%d runs in %s", runs.Load(), time.Since(begin).Round(time.Second)) })
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for ordinal, name := range slices.Sorted(maps.Keys(orders)) {
				t.Run(name, func(t *testing.T) {
					calm := s.run(t, func(w *world) { w.Order = orders[name] })
					if !t.Failed() {
						runs.Add(1 + int64(run(t, s, orders[name], ordinal, calm)))
					}
				})
			}
		})
	}
}

// TestTenantFaults runs every scenario with every disturbance at every write.
func TestTenantFaults(t *testing.T) {
	enumerate(t, disturbances, func(calm result) int { return calm.writes }, func(w *world, r *faults.Request, i int) bool { return r.IsWrite() && w.Writes == i })
}

// TestTenantFaultsAtEveryRead runs every scenario with every disturbance at every live read.
func TestTenantFaultsAtEveryRead(t *testing.T) {
	enumerate(t, liveReadDisturbances, func(calm result) int { return calm.reads }, func(w *world, r *faults.Request, i int) bool { return !r.IsWrite() && w.Reads() == i })
}

func enumerate(t *testing.T, all []disturbance, calls func(result) int, hit func(*world, *faults.Request, int) bool) {
	t.Helper()
	each(t, func(t *testing.T, s scenario, o sim.Order, ordinal int, calm result) (runs int) {
		t.Helper()
		for j, d := range all {
			t.Run(d.name, func(t *testing.T) {
				for i := 1; i <= calls(calm); i++ {
					if !isSelected(i+j+ordinal, part) {
						continue
					}
					runs++
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						got := s.run(t, func(w *world) {
							w.Order = o
							w.Disturb = func(w *world, r *faults.Request) bool { return hit(w, r, i) && d.do(w, r) }
						})
						if got.end != calm.end && !t.Failed() {
							t.Errorf("it ends as\n%s\nnot, as without a fault, as\n%s", got.end, calm.end)
						}
					})
				}
			})
		}
		return runs
	})
}

// TestTenantManagerPausedAtEveryWrite pauses the manager at every write, for as long as another one needs to take the
// block away and to release it. What the paused manager was about to write, and what it knows, is of a block that may
// be another Cluster's: it used to show that to the load balancer again, as nothing fenced that write and no list was
// newer than its watch.
func TestTenantManagerPausedAtEveryWrite(t *testing.T) {
	each(t, func(t *testing.T, s scenario, o sim.Order, _ int, calm result) (runs int) {
		t.Helper()
		for i := 1; i <= calm.writes && slices.Contains([]string{"shrink", "apart", "Cilium shrinks", "Cilium apart", "moves to Cilium"}, s.name); i++ {
			if !isSelected(i, 1) {
				continue
			}
			runs++
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				s.run(t, func(w *world) {
					w.Order = o
					w.Disturb = func(w *world, r *faults.Request) bool {
						return r.IsWrite() && w.Writes == i && w.PauseBefore(r, 0, 4*grace)
					}
				})
			})
		}
		return runs
	})
}

// TestTenantSlowReads makes the live reads of some minutes slow, from each read on. What a read shows is as old as its
// start. The user does not wait meanwhile, so the blocks that the Cluster has at the end may be others.
func TestTenantSlowReads(t *testing.T) {
	const readTime, slowTime = 3 * time.Second, 5 * time.Minute
	each(t, func(t *testing.T, s scenario, o sim.Order, ordinal int, calm result) (runs int) {
		t.Helper()
		for i := 1; i <= calm.reads; i++ {
			if !isSelected(i+ordinal, part) {
				continue
			}
			runs++
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				s.run(t, func(w *world) {
					w.Order = o
					var end time.Time
					w.Disturb = func(w *world, r *faults.Request) bool {
						if !r.IsWrite() && w.Reads() == i {
							end = time.Now().Add(slowTime)
						}
						if r.IsWrite() || !time.Now().Before(end) {
							return false
						}
						value, err := w.Execute(r)
						w.DelayStep(0, readTime, func() { w.Answer(r, value, err) })
						return true
					}
				})
			})
		}
		return runs
	})
}

// TestTenantCreatesLate makes the creation of a pool late, for a block that was added and that a user deletes
// meanwhile: by a manager that is paused before it sends the request, or with the request in flight. Nothing in the
// pool's cluster shows that the block was released.
func TestTenantCreatesLate(t *testing.T) {
	ways := map[string]func(*world, *faults.Request) bool{
		"paused, in time": unsent(maxProjectionTime - time.Second), "paused": unsent(40 * time.Second), "paused for long": unsent(4 * grace),
		"on its way": late(0, clientTimeout),
	}
	each(t, func(t *testing.T, s scenario, o sim.Order, _ int, _ result) (runs int) {
		t.Helper()
		if s.name != "apart" && s.name != "Cilium apart" {
			return 0
		}
		for name, becomes := range ways {
			runs++
			t.Run(name, func(t *testing.T) {
				met := false
				s.run(t, func(w *world) {
					w.Order = o
					w.Disturb = func(w *world, r *faults.Request) bool {
						if met || r.Verb != "create" || r.Server != w.work || r.Ref.Name != "ns-prod-lb-1" {
							return false
						}
						met = true
						w.DelayStep(0, time.Second, func() {
							w.PerformAction(remove("b"))
							w.PerformAction(deleteBlock(r.Ref.Name))
						})
						return becomes(w, r)
					}
				})
				if !met {
					t.Error("no pool is made")
				}
			})
		}
		return runs
	})
}

// TestTenantWithImpatientUser runs every scenario with a user who does not wait: the first action is done right before
// a write, the others right before those that follow.
func TestTenantWithImpatientUser(t *testing.T) {
	each(t, func(t *testing.T, s scenario, o sim.Order, ordinal int, calm result) (runs int) {
		t.Helper()
		for i := 1; i <= calm.writes; i++ {
			if !isSelected(i+ordinal, 3) {
				continue
			}
			runs++
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				s.run(t, func(w *world) { w.Order, w.Hurry = o, i })
			})
		}
		return runs
	})
}

// TestTenantWithRandomFaults runs every scenario with random disturbances in a random order of steps, with one manager
// and with two.
func TestTenantWithRandomFaults(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	t.Cleanup(func() { t.Logf("%d runs", runs.Load()) })
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for managers := 1; managers <= 2; managers++ {
				for seed := range *storms {
					if !isSelected(seed, 1) {
						continue
					}
					runs.Add(1)
					t.Run(fmt.Sprintf("%d-%d", managers, seed), func(t *testing.T) {
						s.run(t, func(w *world) { storm(w, managers, uint64(seed)) })
					})
				}
			}
		})
	}
}

func storm(w *world, managers int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(crc32.ChecksumIEEE([]byte(w.name)))+uint64(managers)))
	w.Order, w.Anytime = sim.RandomOrder(r), seed%2 == 0
	if managers > 1 {
		w.start()
	}
	left := 3
	w.Disturb = func(w *world, call *faults.Request) bool {
		if left == 0 || r.IntN(10) > 0 {
			return false
		}
		left--
		all := disturbances
		if !call.IsWrite() {
			all = liveReadDisturbances
		}
		d := all[r.IntN(len(all))]
		w.Tracef("    disturbed: %s", d.name)
		return d.do(w, call)
	}
}
