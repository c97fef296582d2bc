// Package schedule holds what runs with enumerated faults have in common: the trace of a run, delayed steps, the
// choice of the next step among the possible ones, and the queue of a controller. Time is that of testing/synctest.
package schedule

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Epoch is the time at which testing/synctest begins.
var Epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// gcPercent is how much garbage a heap may collect before a collection, in percent of the memory in use. A run uses
// some megabytes, which change all the time: with Go's default of 100 %, a third of the time goes into garbage
// collection.
const gcPercent = 800

// RunTestMain is the TestMain of a package with runs. It fails if a goroutine outlives its test. It limits the tests
// to one processor: in a bubble about one goroutine runs at a time; on one processor the next one continues at once,
// on two each switch wakes the other processor, and waits where the machine is busy.
func RunTestMain(m *testing.M) {
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(1)
	log.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := recordedRequests.writeFile(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// HeapInUse returns the number of bytes of live objects. It collects garbage twice: the first collection clears
// sync.Pools, and runs finalizers.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var is runtime.MemStats
	runtime.ReadMemStats(&is)
	return int64(is.HeapAlloc)
}

// Run holds the trace of a run, its violations and its delayed steps.
type Run struct {
	// Writes is the number of writes so far.
	Writes int

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
	r.trace = append(r.trace, fmt.Sprintf("%8.3fs %s", time.Since(Epoch).Seconds(), fmt.Sprintf(format, args...)))
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
	recordedRequests.recordRun(t.Name(), servers...)
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

// RunDueStep runs one delayed step that is due; it returns false if none is.
func (r *Run) RunDueStep() bool {
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

// EarlierStep returns the time of the next delayed step if that is before t, else t.
func (r *Run) EarlierStep(t time.Time) time.Time {
	for _, d := range r.delayedSteps {
		t = earlierTime(t, d.dueAt)
	}
	return t
}

// DropDelayedSteps drops all delayed steps.
func (r *Run) DropDelayedSteps() { r.delayedSteps = nil }

func earlierTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
