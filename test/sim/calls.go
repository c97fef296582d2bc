package sim

import (
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// response is an answer that is on its way.
type response struct {
	call  *faults.Request
	value any
	err   error
}

func (a response) String() string {
	text := a.call.String() + ": answered"
	if a.err != nil {
		text += ", " + a.err.Error()
	}
	return text
}

// serve lets a call happen, or what the world makes of it.
func (w *World[W, M]) serve(r *faults.Request) {
	r.Server.TakeRequest(r)
	w.Calls++
	if w.config.OnCall != nil {
		w.config.OnCall(r)
	}
	w.open[r] = time.Now()
	<-time.After(latency)
	if r.IsWrite() {
		w.Writes++
		if w.Hurry > 0 && w.Writes >= w.Hurry && len(w.Script) > 0 {
			w.Act()
		}
	}
	switch {
	case w.MeetObstacle(r):
	case w.config.Intercept != nil && w.config.Intercept(r):
	case w.Disturb != nil && w.Disturb(w.self, r):
		w.LastChange = time.Now()
	default:
		w.ExecuteAndAnswer(r)
	}
}

// Execute executes a call of a manager.
func (w *World[W, M]) Execute(r *faults.Request) (value any, err error) {
	execute := w.config.Execute
	if execute == nil {
		execute = r.Server.ExecuteRequest
	}
	w.Change(r.String(), func() { value, err = execute(r) })
	return value, err
}

// ExecuteAndAnswer executes a call; its answer arrives at some time. It returns true.
func (w *World[W, M]) ExecuteAndAnswer(r *faults.Request) bool {
	value, err := w.Execute(r)
	return w.Answer(r, value, err)
}

// Answer makes the answer to a call arrive at some time. It returns true.
func (w *World[W, M]) Answer(r *faults.Request, value any, err error) bool {
	w.answers = append(w.answers, response{r, value, err})
	return true
}

// deliver delivers an answer now.
func (w *World[W, M]) deliver(a response) {
	delete(w.open, a.call)
	w.answers = slices.DeleteFunc(w.answers, func(other response) bool { return other.call == a.call })
	a.call.Answer(a.value, a.err)
}

// HasOpenCalls reports whether a call that began at most so long ago has no answer.
func (w *World[W, M]) HasOpenCalls(since time.Duration) bool {
	for _, begun := range w.open {
		if time.Since(begun) <= since {
			return true
		}
	}
	return false
}

// Reads returns the number of calls so far that were no writes.
func (w *World[W, M]) Reads() int { return w.Calls - w.Writes }
