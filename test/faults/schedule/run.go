// Package schedule is what runs with enumerated faults have in common: what has happened, what is put off, which of the
// possible steps is next, and the queue of a controller. Time is that of testing/synctest.
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

// Epoch is when the time of testing/synctest begins.
var Epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// garbage is how much of a heap may be garbage before it is collected, in percent of what is in use. That of a run is some
// megabytes, and changes all the time: with Go's 100 %, a third of the time goes into collecting it.
const garbage = 800

// Main is TestMain of a package with runs. No goroutine may outlive its test. One at a time runs in a bubble, more or less:
// on one processor it goes on with the next at once, on two it wakes up the other one, and waits for it where others are busy.
func Main(m *testing.M) {
	debug.SetGCPercent(garbage)
	runtime.GOMAXPROCS(1)
	log.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := recorded.write(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}))
}

// HeapInUse returns how many bytes live. Two collections: the first one leaves what pools had, and runs the finalizers.
func HeapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var is runtime.MemStats
	runtime.ReadMemStats(&is)
	return int64(is.HeapAlloc)
}

// Run is what has happened in a run, what was wrong with that, and what is put off.
type Run struct {
	// Writes is how many there were.
	Writes int

	happened, wrong []string
	delayed         []delayedStep
}

// delayedStep happens when so many writes have happened, or at its time.
type delayedStep struct {
	writes int
	at     time.Time
	do     func()
}

// Notef notes what happens.
func (r *Run) Notef(format string, args ...any) {
	r.happened = append(r.happened, fmt.Sprintf("%8.3fs %s", time.Since(Epoch).Seconds(), fmt.Sprintf(format, args...)))
}

// Wrongf notes what must not be, each text once.
func (r *Run) Wrongf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.wrong, text) {
		r.wrong = append(r.wrong, text)
		r.Notef("WRONG: %s", text)
	}
}

// Failed reports whether something was wrong.
func (r *Run) Failed() bool { return len(r.wrong) > 0 }

// Report fails a test with what was wrong, and logs what has happened. With TRACE in the environment it always does. Of the
// servers, it records what was asked of them, with -requests.
func (r *Run) Report(t *testing.T, servers ...Digester) {
	t.Helper()
	recorded.record(t.Name(), servers...)
	if os.Getenv("TRACE") != "" {
		t.Log("\n" + strings.Join(r.happened, "\n"))
	}
	if r.Failed() {
		t.Errorf("%s\n--- what happened\n%s", strings.Join(r.wrong, "\n"), strings.Join(r.happened, "\n"))
	}
}

// After does something when so many more writes have happened (0: whatever happens), or after a time.
func (r *Run) After(writes int, d time.Duration, do func()) {
	if writes > 0 {
		writes += r.Writes
	}
	r.delayed = append(r.delayed, delayedStep{writes, time.Now().Add(d), do})
}

// Waits reports whether something is put off.
func (r *Run) Waits() bool { return len(r.delayed) > 0 }

// Due does what was put off until now, one thing at a time; false: nothing was.
func (r *Run) Due() bool {
	i := slices.IndexFunc(r.delayed, func(d delayedStep) bool {
		return (d.writes > 0 && r.Writes >= d.writes) || !d.at.After(time.Now())
	})
	if i < 0 {
		return false
	}
	do := r.delayed[i].do
	r.delayed = slices.Delete(r.delayed, i, i+1)
	do()
	return true
}

// Sooner returns when the next of what is put off happens, if that is before t, else t.
func (r *Run) Sooner(t time.Time) time.Time {
	for _, d := range r.delayed {
		t = sooner(t, d.at)
	}
	return t
}

// Forget has nothing happen any more that was put off.
func (r *Run) Forget() { r.delayed = nil }

func sooner(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
