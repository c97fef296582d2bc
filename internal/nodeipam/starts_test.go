package nodeipam_test

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// Starts of a manager that knows one kind of objects later than another.

// begin is how a manager starts after another one was killed by a write.
type begin struct {
	// landed: the write happens. edits is how much the user does before the next manager starts.
	landed bool
	edits  int
	// after is when the list of each kind arrives. One of another kind than of those in stale began then; one in stale began at
	// the start, and shows what was there.
	after map[faults.Kind]time.Duration
	stale map[faults.Kind]bool
	// failing are the kinds of which the first read of the manager fails.
	failing map[faults.Kind]bool
}

func (b begin) String() string {
	return fmt.Sprintf("landed=%v edits=%d after=%v stale=%v failing=%v", b.landed, b.edits, b.after, b.stale, b.failing)
}

// drawBegin draws a start: the kinds become known in any order, some while the user goes on, and any first read fails.
func drawBegin(r *rand.Rand) begin {
	b := begin{landed: r.IntN(4) > 0, edits: r.IntN(4), after: map[faults.Kind]time.Duration{}, stale: map[faults.Kind]bool{}, failing: map[faults.Kind]bool{}}
	for i, place := range r.Perm(len(kinds)) {
		b.after[kinds[i]] = time.Duration(place) * []time.Duration{0, time.Second, pause}[r.IntN(3)]
		b.stale[kinds[i]] = r.IntN(2) == 0
	}
	for _, kind := range []faults.Kind{faults.ConfigMaps, faults.Nodes, faults.ClusterCIDRs, faults.Allocations} {
		b.failing[kind] = r.IntN(2) == 0
	}
	return b
}

// restart has the manager that writes be killed, the user do something, and another manager start.
func (b begin) restart(w *world, q *faults.Request) {
	if b.landed {
		_, _ = w.do(q)
	}
	m := w.manager(q.Client)
	w.Notef("manager %s is killed; %v", m.name, b)
	q.Answer(nil, schedule.ErrKilled)
	m.dead = true
	m.kill()
	for range min(b.edits, len(w.script)) {
		w.act()
	}
	w.learn = func(m *manager, kind faults.Kind) {
		if after := b.after[kind]; after > 0 && !b.stale[kind] {
			w.After(0, after, func() { w.relist(m, kind, 0) })
		} else {
			w.relist(m, kind, after)
		}
	}
	next := w.startSite(m.fleet)
	w.learn = nil
	w.disturb = func(w *world, q *faults.Request) bool {
		if q.Client != next.name || q.Write() || !b.failing[q.Ref.Kind] {
			return false
		}
		delete(b.failing, q.Ref.Kind)
		w.Notef("%s fails", q)
		w.answer(q, nil, schedule.ErrTimeout)
		return true
	}
}

// TestStarts runs each scenario with a manager that is killed at each of its writes. The next one knows Clusters, ClusterCIDRs,
// blocks, ServiceCIDRs and Nodes in any order, and the first read of each may fail, as that of the ConfigMap.
func TestStarts(t *testing.T) {
	t.Parallel()
	draws := 4
	if testing.Short() {
		draws = 1
	}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range names(orders) {
				t.Run(name, func(t *testing.T) {
					writes := s.run(t, func(w *world) { w.order = orders[name] })
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
	s.served = -1 // by when the user comes
	b := drawBegin(rand.New(rand.NewPCG(uint64(n), uint64(crc32.ChecksumIEEE(fmt.Append(nil, s.name, name, draw))))))
	s.run(t, func(w *world) {
		w.order, w.impatient = orders[name], true
		w.disturb = func(w *world, q *faults.Request) bool {
			if !q.Write() || w.Writes < n {
				return false
			}
			w.disturb = nil
			b.restart(w, q)
			return true
		}
	})
}
