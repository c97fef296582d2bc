package sim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// Epoch is the time at which testing/synctest begins.
var Epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Run holds the trace of a run, its violations and its delayed steps.
type Run struct {
	// Writes is the number of writes so far.
	Writes int
	// Clock returns the time of the trace; nil means time.Now.
	Clock func() time.Time

	trace, violations []string
	delayedSteps      []delayedStep
}

// delayedStep is due when the given number of writes has happened, or at its time.
type delayedStep struct {
	writes int
	dueAt  time.Time
	run    func()
}

// Tracef records an event of the run.
func (r *Run) Tracef(format string, args ...any) {
	now := time.Now
	if r.Clock != nil {
		now = r.Clock
	}
	r.trace = append(r.trace, fmt.Sprintf("%8.3fs %s", now().Sub(Epoch).Seconds(), fmt.Sprintf(format, args...)))
}

// Failf records a violation, each text once.
func (r *Run) Failf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.violations, text) {
		r.violations = append(r.violations, text)
		r.Tracef("WRONG: %s", text)
	}
}

// Failed reports whether there was a violation.
func (r *Run) Failed() bool { return len(r.violations) > 0 }

// Report fails a test with the violations and logs the trace. With TRACE in the environment it always logs the trace.
// With -requests it records the requests that the servers have received.
func (r *Run) Report(t *testing.T, servers ...Digester) {
	t.Helper()
	if len(servers) > 0 {
		recordedRequests.recordRun(t.Name(), servers...)
	}
	if os.Getenv("TRACE") != "" {
		t.Log("\n" + strings.Join(r.trace, "\n"))
	}
	if r.Failed() {
		t.Errorf("%s\n--- what happened\n%s", strings.Join(r.violations, "\n"), strings.Join(r.trace, "\n"))
	}
}

// DelayStep runs do after the given number of further writes, or after d, whichever is first; zero writes: after d
// alone.
func (r *Run) DelayStep(writes int, d time.Duration, do func()) {
	if writes > 0 {
		writes += r.Writes
	}
	r.delayedSteps = append(r.delayedSteps, delayedStep{writes, time.Now().Add(d), do})
}

// HasDelayedSteps reports whether there are delayed steps.
func (r *Run) HasDelayedSteps() bool { return len(r.delayedSteps) > 0 }

// runDueStep runs one delayed step that is due; it returns false if none is.
func (r *Run) runDueStep() bool {
	i := slices.IndexFunc(r.delayedSteps, func(d delayedStep) bool {
		return (d.writes > 0 && r.Writes >= d.writes) || !d.dueAt.After(time.Now())
	})
	if i < 0 {
		return false
	}
	do := r.delayedSteps[i].run
	r.delayedSteps = slices.Delete(r.delayedSteps, i, i+1)
	do()
	return true
}

// earlierStep returns the time of the next delayed step if that is before t, else t.
func (r *Run) earlierStep(t time.Time) time.Time {
	for _, d := range r.delayedSteps {
		t = earlierTime(t, d.dueAt)
	}
	return t
}

func earlierTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
