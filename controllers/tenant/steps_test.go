package tenant

import (
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// otherSteps returns what the allocator and the load balancer can do next. They have no clocks: if they had nothing to
// do, they have nothing to do before something changes.
func (w *world) otherSteps() []sim.Step {
	var steps []sim.Step
	if v := w.mgmt.ResourceVersion(); v != w.allocatorIdleVersion {
		if s := allocated(w); s != nil {
			steps = append(steps, *s)
		} else {
			w.allocatorIdleVersion = v
		}
	}
	if v, mood := w.work.ResourceVersion(), w.lb.currentMood(); v != mood.idleVersion && !w.ended && !w.down && !mood.frozen {
		all := w.lb.steps(w)
		if len(all) == 0 && !mood.stuck {
			mood.idleVersion = v
		}
		steps = append(steps, all...)
	}
	return steps
}

// connectionSteps returns the steps in which a manager lists blocks for the first time, and connects to the workload
// cluster.
func (w *world) connectionSteps(p *process) []sim.Step {
	var steps []sim.Step
	if !p.synced {
		steps = append(steps, sim.Step{Class: sim.WatchEvent, Text: p.Name + ": the first list of blocks", Run: func() {
			p.synced = true
			w.relist(p, faults.Allocations, 0)
		}})
	}
	if !p.connected && !p.unreachable && !w.down && !w.ended {
		steps = append(steps, sim.Step{Class: sim.WatchEvent, Text: p.Name + ": connects to the workload cluster", Run: func() { w.connect(p) }})
	}
	return steps
}

// selectStep selects the next step. No watch waits for ever because others have more to show, nor because a manager
// works without a rest.
func (w *world) selectStep(steps []sim.Step) sim.Step {
	n := slices.IndexFunc(steps, func(s sim.Step) bool { return s.Class != sim.WatchEvent && s.Class != sim.Reconcile })
	if n < 0 {
		n = len(steps)
	}
	if n > 0 { // these are the steps of managers
		first := w.shownChanges % n
		steps = slices.Concat(steps[first:n], steps[:first], steps[n:])
	}
	s := w.Order(steps)
	if at := slices.IndexFunc(steps, func(s sim.Step) bool { return s.Class == sim.WatchEvent }); at >= 0 && w.stepsSinceShown > tooMany/4 {
		s = steps[at]
	}
	if w.stepsSinceShown++; s.Class == sim.WatchEvent {
		w.stepsSinceShown, w.StepsSinceChange = 0, 0
	}
	return s
}

// nextTime returns when the world is examined again if nothing happens before.
func (w *world) nextTime() time.Time {
	next := w.LastChange.Add(restPeriod)
	if len(w.Script) > 0 {
		next = w.LastChange.Add(w.UserWait())
	}
	if next.Before(time.Now()) {
		next = time.Now().Add(pause)
	}
	return next
}

// boundCalls fails a run with more calls than any scenario may need.
func (w *world) boundCalls() {
	if w.Calls > tooBusy {
		w.Failf("no rest after %d writes and %d reads", w.Writes, w.Reads())
	}
}

// loseCallsOfDownCluster makes calls time out that the workload cluster does not answer.
func (w *world) loseCallsOfDownCluster(r *faults.Request) bool {
	if r.Server != w.work || (!w.down && !w.ended) {
		return false
	}
	w.DelayStep(0, clientTimeout, func() { w.Answer(r, nil, sim.ErrTimeout) })
	return true
}

// management and workload write to a server as another writer.
func (w *world) management(text string, do func() error) { w.writeByHand(text, do) }

func (w *world) workload(text string, do func() error) {
	if !w.ended {
		w.writeByHand(text, do)
	}
}

func (w *world) writeByHand(text string, do func() error) {
	w.Change(text, func() {
		if err := do(); err != nil && !apierrors.IsNotFound(err) {
			w.T.Fatalf("%s: %v", text, err)
		}
	})
}
