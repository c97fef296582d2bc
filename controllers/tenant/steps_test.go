package tenant

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// steps returns what can happen next.
func (w *world) steps() []step {
	var steps []step
	for _, p := range w.managers {
		if !p.dead && !p.asleep {
			steps = append(steps, w.stepsOf(p)...)
		}
	}
	// No watch waits for ever because others have more to show.
	if n := len(steps); n > 0 {
		steps = append(steps[w.shownChanges%n:], steps[:w.shownChanges%n]...)
	}
	for _, a := range slices.Clone(w.answers) {
		switch p := w.manager(a.call.Client); {
		case p.dead:
			w.arrive(response{a.call, nil, schedule.ErrKilled})
		case !p.asleep:
			steps = append(steps, step{Class: answer, Text: a.call.String() + ": answered" + reason(a.err), Run: func() { w.arrive(a) }})
		}
	}
	for _, at := range []*faults.Server{w.mgmt, w.work} {
		for _, r := range at.PendingRequests() {
			switch p := w.manager(r.Client); {
			case p.dead:
				at.TakeRequest(r)
				r.Answer(nil, schedule.ErrKilled)
			case !p.asleep:
				steps = append(steps, step{Class: call, Text: r.String(), Run: func() { w.serve(request{r, at}) }})
			}
		}
	}
	// They have no clocks: if they had nothing to do, they have nothing to do before something changes.
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
	if w.anytime && len(w.script) > 0 && w.script[0].when == nil {
		steps = append(steps, step{Class: user, Text: "the user comes", Run: w.act})
	}
	return steps
}

// stepsOf returns what a manager can do or be shown next.
func (w *world) stepsOf(p *process) []step {
	var steps []step
	watch := func(at *faults.Server, kinds ...faults.Kind) {
		for _, kind := range kinds {
			k := watched{at, kind}
			if changes := at.ChangesSince(kind, p.seen[k]); len(changes) > 0 && !p.mute[k] {
				c := changes[0]
				steps = append(steps, step{Class: watchEvent, Text: describe(p, c), Run: func() {
					w.shownChanges++
					p.seen[k]++
					p.show(k, c)
				}})
			}
		}
	}
	watch(w.mgmt, mgmtKinds...)
	watch(w.mgmt, faults.Allocations)
	watch(w.work, workKinds...)
	if !p.synced {
		steps = append(steps, step{Class: watchEvent, Text: p.name + ": the first list of blocks", Run: func() {
			p.synced = true
			w.relist(p, watched{w.mgmt, faults.Allocations}, 0)
		}})
	}
	if !p.connected && !p.unreachable && !w.down && !w.ended {
		steps = append(steps, step{Class: watchEvent, Text: p.name + ": connects to the workload cluster", Run: func() { w.connect(p) }})
	}
	for i, l := range p.queues {
		if l.queue.IsDue() {
			steps = append(steps, step{Class: reconciling, Text: fmt.Sprintf("%s: reconcile %s", p.name, []string{"cluster", "tenant"}[i]), Run: func() { l.run(p.ctx) }})
		}
	}
	return steps
}

func describe(p *process, c faults.Change) string {
	verb := "shows"
	if c.Deleted {
		verb = "shows the end of"
	}
	return fmt.Sprintf("%s: watch %s %v %s at %s", p.name, verb, faults.RefForObject(c.Object).Kind, c.Object.GetName(), c.Object.GetResourceVersion())
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return ", " + err.Error()
}
