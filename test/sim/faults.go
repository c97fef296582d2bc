package sim

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// These functions are what can happen to a call. They return true: the call needs nothing more.

// CrashBefore kills the manager that calls before the call is sent, and starts another.
func (w *World[W, M]) CrashBefore(r *faults.Request) bool {
	w.Crash(w.Manager(r.Client))
	r.Answer(nil, ErrKilled)
	return true
}

// CrashAfter executes a call, kills the manager that calls, and starts another.
func (w *World[W, M]) CrashAfter(r *faults.Request) bool {
	_, _ = w.Execute(r)
	return w.CrashBefore(r)
}

// CrashLate kills the manager that calls, starts another, and executes the call later.
func (w *World[W, M]) CrashLate(r *faults.Request, writes int, delay time.Duration) bool {
	w.CrashBefore(r)
	return w.ExecuteLate(r, writes, delay)
}

// LoseAnswer executes a call whose client gets no answer in time.
func (w *World[W, M]) LoseAnswer(r *faults.Request) bool {
	_, _ = w.Execute(r)
	return w.Answer(r, nil, ErrTimeout)
}

// DelayCall makes a call time out, and executes it later.
func (w *World[W, M]) DelayCall(r *faults.Request, writes int, delay time.Duration) bool {
	w.Answer(r, nil, ErrTimeout)
	return w.ExecuteLate(r, writes, delay)
}

// ExecuteLate executes a call after the given number of further writes or after delay, whichever is first.
func (w *World[W, M]) ExecuteLate(r *faults.Request, writes int, delay time.Duration) bool {
	w.DelayStep(writes, delay, func() { _, _ = w.Execute(r) })
	return true
}

// PauseBefore pauses the manager that calls before the call is sent, and starts another in its place. The call is sent
// when the manager goes on.
func (w *World[W, M]) PauseBefore(r *faults.Request, writes int, delay time.Duration) bool {
	w.PauseManager(w.Manager(r.Client), writes, delay, func() { w.ExecuteAndAnswer(r) })
	return true
}

// PauseAfter executes a call, and pauses the manager that calls before it reads the answer.
func (w *World[W, M]) PauseAfter(r *faults.Request, writes int, delay time.Duration) bool {
	w.PauseManager(w.Manager(r.Client), writes, delay, func() {})
	return w.ExecuteAndAnswer(r)
}

// PauseManager pauses a manager, starts another in its place, and runs then when the manager goes on.
func (w *World[W, M]) PauseManager(m M, writes int, delay time.Duration, then func()) {
	p := m.process()
	w.Tracef("manager %s is paused", p.Name)
	p.Asleep = true
	w.config.StartInPlaceOf(m)
	w.DelayStep(writes, delay, func() {
		w.Tracef("manager %s goes on", p.Name)
		p.Asleep = false
		then()
	})
}
