package sim

import (
	"testing/synctest"
	"time"
)

// maxDuration is when a world that does not come to rest is stopped.
const maxDuration = 3 * time.Hour

// runToRest runs one step after the other until everything is at rest.
func (w *World[W, M]) runToRest() {
	begin := time.Now()
	w.LastChange = begin
	for synctest.Wait(); !w.Failed(); synctest.Wait() {
		switch {
		case w.runDueStep():
			continue
		case w.isMoment():
			w.Act()
			continue
		}
		if w.config.BeforeStep != nil {
			w.config.BeforeStep()
		}
		if w.runNextStep() {
			continue
		}
		w.StepsSinceChange = max(0, w.StepsSinceChange-w.config.IdleStepDecay)
		if w.config.OnIdle != nil {
			w.config.OnIdle()
		}
		switch {
		case w.isPauseOver():
			w.Act()
		case !w.HasDelayedSteps() && len(w.Script) == 0 && w.isAtRest():
			return
		case time.Since(begin) > maxDuration:
			w.Failf("no rest after %v", time.Since(begin))
		default:
			<-time.After(max(time.Until(w.nextTime()), time.Millisecond))
			if w.isWhim(2) {
				w.Act()
			}
		}
	}
}

// runNextStep runs a step, if one is possible.
func (w *World[W, M]) runNextStep() bool {
	steps := w.possibleSteps()
	if len(steps) == 0 {
		return false
	}
	if w.isWhim(30) {
		w.Act()
		return true
	}
	choose := w.Order
	if w.config.SelectStep != nil {
		choose = w.config.SelectStep
	}
	s := choose(steps)
	w.Tracef("%s", s.Text)
	s.Run()
	if w.StepsSinceChange++; w.StepsSinceChange > w.config.MaxIdleSteps {
		w.Failf("the managers spin: %d steps without a change", w.config.MaxIdleSteps)
	}
	return true
}

// isAtRest reports whether everything has been at rest for long enough to see that it stays so.
func (w *World[W, M]) isAtRest() bool {
	idle := time.Since(w.LastChange)
	if idle < w.config.Rest {
		w.atRest = nil
		return false
	}
	if w.atRest == nil {
		w.atRest = &[2]int{w.Calls, w.Reconciles}
	}
	if w.config.MaxReconcilesAtRest != nil {
		if w.Calls > w.atRest[0] {
			w.Failf("rest: nothing has changed for %v, and the managers go on to ask the API server", idle.Truncate(time.Second))
		}
		if n := w.Reconciles - w.atRest[1]; n > w.config.MaxReconcilesAtRest() {
			w.Failf("rest: nothing has changed for %v, and there were %d reconciles", idle.Truncate(time.Second), n)
		}
	}
	return idle >= w.config.Rest+w.config.Watched
}

// nextTime returns when something can happen next.
func (w *World[W, M]) nextTime() time.Time {
	next := w.config.NextTime
	if next == nil {
		next = w.nextPause
	}
	t := w.earlierStep(next())
	for _, m := range w.Managers {
		if m.process().IsRunning() {
			for _, q := range m.Queues() {
				t = q.earlierWake(t)
			}
		}
	}
	return t
}

// nextPause returns when the next pause is over, at which the user acts or a client times out, or when everything
// counts as being at rest.
func (w *World[W, M]) nextPause() time.Time {
	next, idle := w.LastChange.Add(w.config.Rest), time.Since(w.LastChange)
	if idle < 5*w.config.Pause || idle >= w.config.Rest {
		next = w.LastChange.Add(idle.Truncate(w.config.Pause) + w.config.Pause)
	}
	if len(w.Script) > 0 && w.UserWait() > idle {
		next = earlierTime(next, w.LastChange.Add(w.UserWait()))
	}
	return next
}
