package nodeipam_test

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// These tests start managers that learn one kind of objects later than another.

// managerStart is how a manager starts after another one was killed by a write.
type managerStart struct {
	// writeHappens reports whether the write happens. edits is how many actions the user does before the next manager
	// starts.
	writeHappens bool
	edits        int
	// after is when the list of each kind arrives. The list of a kind in stale began at the start, and shows the
	// objects of that time; any other list began when it arrives.
	after map[faults.Kind]time.Duration
	stale map[faults.Kind]bool
	// failing are the kinds whose first read by the manager fails.
	failing map[faults.Kind]bool
}

func (b managerStart) String() string {
	return fmt.Sprintf("landed=%v edits=%d after=%v stale=%v failing=%v", b.writeHappens, b.edits, b.after, b.stale, b.failing)
}

// drawBegin draws a start: the kinds become known in any order, some while the user goes on, and any first read may
// fail.
func drawBegin(r *rand.Rand) managerStart {
	b := managerStart{writeHappens: r.IntN(4) > 0, edits: r.IntN(4), after: map[faults.Kind]time.Duration{}, stale: map[faults.Kind]bool{}, failing: map[faults.Kind]bool{}}
	for i, place := range r.Perm(len(kinds)) {
		b.after[kinds[i]] = time.Duration(place) * []time.Duration{0, time.Second, pause}[r.IntN(3)]
		b.stale[kinds[i]] = r.IntN(2) == 0
	}
	for _, kind := range []faults.Kind{faults.ConfigMaps, faults.Nodes, faults.ClusterCIDRs, faults.Allocations} {
		b.failing[kind] = r.IntN(2) == 0
	}
	return b
}

// restart kills the manager that writes, runs actions of the user, and starts another manager.
func (b managerStart) restart(w *world, q *faults.Request) {
	if b.writeHappens {
		_, _ = w.Execute(q)
	}
	m := w.Manager(q.Client)
	w.Tracef("manager %s is killed; %v", m.Name, b)
	q.Answer(nil, sim.ErrKilled)
	m.Kill()
	for range min(b.edits, len(w.Script)) {
		w.Act()
	}
	w.learnKind = func(m *manager, kind faults.Kind) {
		if after := b.after[kind]; after > 0 && !b.stale[kind] {
			w.DelayStep(0, after, func() { w.relist(m, kind, 0) })
		} else {
			w.relist(m, kind, after)
		}
	}
	next := w.startSite(m.fleet)
	w.learnKind = nil
	w.Disturb = func(w *world, q *faults.Request) bool {
		if q.Client != next.Name || q.IsWrite() || !b.failing[q.Ref.Kind] {
			return false
		}
		delete(b.failing, q.Ref.Kind)
		w.Tracef("%s fails", q)
		w.Answer(q, nil, sim.ErrTimeout)
		return true
	}
}

// TestRestartAtEveryWrite runs each scenario with a manager that is killed at each of its writes. The next one learns
// Clusters, ClusterCIDRs, blocks, ServiceCIDRs and Nodes in any order, and the first read of each may fail, as may that
// of the ConfigMap.
func TestRestartAtEveryWrite(t *testing.T) {
	t.Parallel()
	draws := 4
	if testing.Short() {
		draws = 1
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range names(sim.Orders) {
				t.Run(name, func(t *testing.T) {
					writes := s.run(t, func(w *world) { w.Order = sim.Orders[name] })
					for i := 1; i <= writes; i++ {
						for draw := range draws {
							t.Run(fmt.Sprint(i, "-", draw), func(t *testing.T) { s.start(t, name, i, draw) })
						}
					}
				})
			}
		})
	}
}

// start runs the scenario with another start at its n-th write.
func (s scenario) start(t *testing.T, name string, n, draw int) {
	t.Helper()
	s.served = -1 // depends on when the user comes
	b := drawBegin(rand.New(rand.NewPCG(uint64(n), uint64(crc32.ChecksumIEEE(fmt.Append(nil, s.name, name, draw))))))
	s.run(t, func(w *world) {
		w.Order, w.Impatient = sim.Orders[name], true
		w.Disturb = func(w *world, q *faults.Request) bool {
			if !q.IsWrite() || w.Writes < n {
				return false
			}
			w.Disturb = nil
			b.restart(w, q)
			return true
		}
	})
}
