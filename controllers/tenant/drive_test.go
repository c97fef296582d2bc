package tenant

import (
	"slices"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// toRest does one step after the other until all is at rest.
func (w *world) toRest() {
	begin := time.Now()
	w.lastNews = begin
	for {
		synctest.Wait()
		switch idle := time.Since(w.lastNews); {
		case w.Failed():
			return
		case w.Writes+w.reads > tooBusy:
			w.Wrongf("no rest after %d writes and %d reads", w.Writes, w.reads)
			return
		case w.Due():
		case w.ready():
			w.act()
		case w.next():
		case !w.Waits() && len(w.script) > 0 && idle >= w.patience():
			w.act()
		case !w.Waits() && len(w.script) == 0 && idle >= stillness:
			return
		case time.Since(begin) > tooLong:
			w.Wrongf("no rest after %v", time.Since(begin))
			return
		default:
			w.stalled = max(0, w.stalled-40)
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
	// Who works without a rest does not keep a watch from showing anything at all.
	if at := slices.IndexFunc(steps, func(s step) bool { return s.Class == watchEvent }); at >= 0 && w.unshown > tooMany/4 {
		s = steps[at]
	}
	if w.unshown++; s.Class == watchEvent {
		w.unshown, w.stalled = 0, 0
	}
	w.Notef("%s", s.Text)
	s.Do()
	if w.stalled++; w.stalled > tooMany {
		w.Wrongf("the managers spin: %d steps that lead nowhere", tooMany)
	}
	return true
}

// patience is how long nothing is written before the user does the next thing: what is to be done at a moment of its
// own is done at rest, if that never comes.
func (w *world) patience() time.Duration {
	if w.script[0].when != nil {
		return stillness
	}
	return max(pause, w.script[0].wait)
}

// nextTime is when something can happen next.
func (w *world) nextTime() time.Time {
	next := w.lastNews.Add(stillness)
	if len(w.script) > 0 {
		next = w.lastNews.Add(w.patience())
	}
	if next.Before(time.Now()) {
		next = time.Now().Add(pause)
	}
	next = w.Sooner(next)
	for _, p := range w.managers {
		for _, l := range p.lines {
			if !p.dead && !p.asleep {
				next = l.queue.Sooner(next)
			}
		}
	}
	return next
}

// ready reports whether the moment of the user's next action has come.
func (w *world) ready() bool {
	return len(w.script) > 0 && w.script[0].when != nil && w.script[0].when(w)
}

// act is the user's next action.
func (w *world) act() {
	a := w.script[0]
	w.script, w.lastNews = w.script[1:], time.Now()
	w.Notef("the user: %s", a.text)
	a.do(w)
	w.changed("the user: " + a.text)
}

// serve lets a call happen, or what disturb makes of it.
func (w *world) serve(r request) {
	r.at.Take(r.Request)
	<-time.After(latency)
	if r.Write() {
		w.Writes++
		if w.hurry > 0 && w.Writes >= w.hurry && len(w.script) > 0 {
			w.act()
		}
	} else {
		w.reads++
	}
	if r.at == w.work && (w.down || w.ended) {
		w.After(0, clientTimeout, func() { w.answer(r, nil, schedule.ErrTimeout) })
		return
	}
	if w.disturb != nil && w.disturb(w, r) {
		w.lastNews = time.Now()
		return
	}
	value, err := w.do(r)
	w.answer(r, value, err)
}

// answer has the answer to a call arrive at some time.
func (w *world) answer(r request, value any, err error) {
	w.answers = append(w.answers, response{r, value, err})
}

// arrive has an answer arrive now.
func (w *world) arrive(a response) {
	w.answers = slices.DeleteFunc(w.answers, func(other response) bool { return other.call == a.call })
	a.call.Answer(a.value, a.err)
}

// do lets a call happen on its server.
func (w *world) do(r request) (any, error) {
	value, err := r.at.Do(r.Request)
	if r.Write() {
		w.changed(r.String())
	}
	return value, err
}

// management and workload have another hand write to a server.
func (w *world) management(text string, do func() error) { w.hand(text, do) }

func (w *world) workload(text string, do func() error) {
	if !w.ended {
		w.hand(text, do)
	}
}

func (w *world) hand(text string, do func() error) {
	if err := do(); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatalf("%s: %v", text, err)
	}
	w.changed(text)
}

// changed checks the promise after a change.
func (w *world) changed(by string) {
	if v := w.mgmt.Version() + w.work.Version(); v != w.version {
		w.version, w.stalled, w.lastNews = v, 0, time.Now()
		w.Notef("    %s: now %d and %d", by, w.mgmt.Version(), w.work.Version())
		w.check()
	}
}

// end ends every goroutine.
func (w *world) end() {
	w.Forget()
	for _, p := range w.managers {
		p.dead, p.asleep = true, false
		p.kill()
	}
	for synctest.Wait(); len(w.mgmt.Waiting())+len(w.work.Waiting())+len(w.answers) > 0; synctest.Wait() {
		w.steps()
	}
}
