package sim

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// possibleSteps returns what can happen next.
func (w *World[W, M]) possibleSteps() []Step {
	var steps []Step
	for _, m := range w.Managers {
		if m.process().IsRunning() {
			steps = append(steps, w.managerSteps(m)...)
		}
	}
	for _, a := range slices.Clone(w.answers) {
		switch p := w.Manager(a.call.Client).process(); {
		case p.Dead && !w.config.AnswersDead:
			w.deliver(response{a.call, nil, ErrKilled})
		case !p.Asleep:
			steps = append(steps, Step{Class: Answer, Text: a.String(), Run: func() { w.deliver(a) }})
		}
	}
	for _, s := range w.config.Servers {
		for _, r := range s.PendingRequests() {
			switch p := w.Manager(r.Client).process(); {
			case p.Dead:
				s.TakeRequest(r)
				r.Answer(nil, ErrKilled)
			case !p.Asleep:
				steps = append(steps, Step{Class: Call, Text: r.String(), Run: func() { w.serve(r) }})
			}
		}
	}
	if w.config.OtherSteps != nil {
		steps = append(steps, w.config.OtherSteps()...)
	}
	if w.Anytime && len(w.Script) > 0 && w.Script[0].When == nil && w.stalledAt != w.version() {
		steps = append(steps, Step{Class: User, Text: "the user comes", Run: w.Act})
	}
	return steps
}

// managerSteps returns what a manager can do, or be shown, next.
func (w *World[W, M]) managerSteps(m M) []Step {
	var steps []Step
	p := m.process()
	for _, watch := range p.watches {
		changes := watch.server.ChangesSince(watch.kind, watch.seen)
		if len(changes) == 0 || watch.muted {
			continue
		}
		c := changes[0]
		steps = append(steps, Step{Class: WatchEvent, Text: describeWatchEvent(p, c), Run: func() {
			watch.seen++
			if w.config.OnWatchEvent != nil {
				w.config.OnWatchEvent(m, c)
			}
			m.ShowChange(c)
		}})
	}
	if w.config.ManagerSteps != nil {
		steps = append(steps, w.config.ManagerSteps(m)...)
	}
	if !p.Synced {
		return steps
	}
	for _, q := range m.Queues() {
		if q.IsDue() {
			steps = append(steps, Step{Class: Reconcile, Text: p.Name + ": reconcile " + q.Name, Run: func() {
				w.Reconciles++
				if w.Obstacle != nil {
					w.Obstacle.reconciles[p.Name+" "+q.Name]++
				}
				if w.config.OnReconcile != nil {
					w.config.OnReconcile(m, q)
				}
				q.startReconcile(func(text string) { w.Failf("%s", text) })
			}})
		}
	}
	return steps
}

func describeWatchEvent(p *Process, c faults.Change) string {
	what := "shows"
	if c.Deleted {
		what = "shows the end of"
	}
	return fmt.Sprintf("%s: watch %s %v %s at %s", p.Name, what, faults.RefForObject(c.Object).Kind, c.Object.GetName(), c.Object.GetResourceVersion())
}
