package tenant

import (
	"slices"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// toRest does one step after the other until everything is at rest.
func (w *world) toRest() {
	begin := time.Now()
	w.lastChange = begin
	for {
		synctest.Wait()
		switch idle := time.Since(w.lastChange); {
		case w.Failed():
			return
		case w.Writes+w.reads > tooBusy:
			w.Failf("no rest after %d writes and %d reads", w.Writes, w.reads)
			return
		case w.RunDueStep():
		case w.ready():
			w.act()
		case w.next():
		case !w.HasDelayedSteps() && len(w.script) > 0 && idle >= w.userWait():
			w.act()
		case !w.HasDelayedSteps() && len(w.script) == 0 && idle >= restPeriod:
			return
		case time.Since(begin) > tooLong:
			w.Failf("no rest after %v", time.Since(begin))
			return
		default:
			w.stepsSinceChange = max(0, w.stepsSinceChange-40)
			<-time.After(max(time.Until(w.nextTime()), time.Millisecond))
		}
	}
}

// next does a step, if one is possible.
func (w *world) next() bool {
	steps := w.steps()
	if len(steps) == 0 {
		return false
	}
	s := w.order(steps)
	// A manager that works without a rest must not keep a watch from showing anything at all.
	if at := slices.IndexFunc(steps, func(s step) bool { return s.Class == watchEvent }); at >= 0 && w.stepsSinceShown > tooMany/4 {
		s = steps[at]
	}
	if w.stepsSinceShown++; s.Class == watchEvent {
		w.stepsSinceShown, w.stepsSinceChange = 0, 0
	}
	w.Tracef("%s", s.Text)
	s.Run()
	if w.stepsSinceChange++; w.stepsSinceChange > tooMany {
		w.Failf("the managers spin: %d steps that lead nowhere", tooMany)
	}
	return true
}

// userWait is how long nothing is written before the user does the next action: an action with a moment of its own is
// done at rest, if that moment never comes.
func (w *world) userWait() time.Duration {
	if w.script[0].when != nil {
		return restPeriod
	}
	return max(pause, w.script[0].wait)
}

// nextTime is when something can happen next.
func (w *world) nextTime() time.Time {
	next := w.lastChange.Add(restPeriod)
	if len(w.script) > 0 {
		next = w.lastChange.Add(w.userWait())
	}
	if next.Before(time.Now()) {
		next = time.Now().Add(pause)
	}
	next = w.EarlierStep(next)
	for _, p := range w.managers {
		for _, l := range p.queues {
			if !p.dead && !p.asleep {
				next = l.queue.EarlierWake(next)
			}
		}
	}
	return next
}

// ready reports whether the moment of the user's next action has come.
func (w *world) ready() bool {
	return len(w.script) > 0 && w.script[0].when != nil && w.script[0].when(w)
}

// act does the user's next action.
func (w *world) act() {
	a := w.script[0]
	w.script, w.lastChange = w.script[1:], time.Now()
	w.Tracef("the user: %s", a.text)
	a.do(w)
	w.changed("the user: " + a.text)
}

// serve executes a call, or what disturb makes of it.
func (w *world) serve(r request) {
	r.at.TakeRequest(r.Request)
	<-time.After(latency)
	if r.IsWrite() {
		w.Writes++
		if w.hurry > 0 && w.Writes >= w.hurry && len(w.script) > 0 {
			w.act()
		}
	} else {
		w.reads++
	}
	if r.at == w.work && (w.down || w.ended) {
		w.DelayStep(0, clientTimeout, func() { w.answer(r, nil, schedule.ErrTimeout) })
		return
	}
	if w.disturb != nil && w.disturb(w, r) {
		w.lastChange = time.Now()
		return
	}
	value, err := w.do(r)
	w.answer(r, value, err)
}

// answer makes the answer to a call arrive at some time.
func (w *world) answer(r request, value any, err error) {
	w.answers = append(w.answers, response{r, value, err})
}

// arrive makes an answer arrive now.
func (w *world) arrive(a response) {
	w.answers = slices.DeleteFunc(w.answers, func(other response) bool { return other.call == a.call })
	a.call.Answer(a.value, a.err)
}

// do executes a call on its server.
func (w *world) do(r request) (any, error) {
	value, err := r.at.ExecuteRequest(r.Request)
	if r.IsWrite() {
		w.changed(r.String())
	}
	return value, err
}

// management and workload write to a server as another writer.
func (w *world) management(text string, do func() error) { w.writeByHand(text, do) }

func (w *world) workload(text string, do func() error) {
	if !w.ended {
		w.writeByHand(text, do)
	}
}

func (w *world) writeByHand(text string, do func() error) {
	if err := do(); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatalf("%s: %v", text, err)
	}
	w.changed(text)
}

// changed checks the promise after a change.
func (w *world) changed(by string) {
	if v := w.mgmt.ResourceVersion() + w.work.ResourceVersion(); v != w.version {
		w.version, w.stepsSinceChange, w.lastChange = v, 0, time.Now()
		w.Tracef("    %s: now %d and %d", by, w.mgmt.ResourceVersion(), w.work.ResourceVersion())
		w.check()
	}
}

// end ends every goroutine.
func (w *world) end() {
	w.DropDelayedSteps()
	for _, p := range w.managers {
		p.dead, p.asleep = true, false
		p.kill()
	}
	for synctest.Wait(); len(w.mgmt.PendingRequests())+len(w.work.PendingRequests())+len(w.answers) > 0; synctest.Wait() {
		w.steps()
	}
}
