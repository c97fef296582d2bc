package schedule

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is that of a controller of one object, and its one worker.
type Queue struct {
	// MaxBackoff is the longest wait after errors; 0: that of controller-runtime.
	MaxBackoff time.Duration

	mu              sync.Mutex
	queued, running bool
	wakeAt          time.Time
	failures        int
}

// Wake queues the object.
func (q *Queue) Wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queued = true
}

// Due reports whether a reconcile can begin.
func (q *Queue) Due() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.wakeAt.IsZero() && !q.wakeAt.After(time.Now()) {
		q.queued, q.wakeAt = true, time.Time{}
	}
	return q.queued && !q.running
}

// Run begins a reconcile. After an error, or with Requeue, the next one comes with controller-runtime's delays. broken is told
// of a panic.
func (q *Queue) Run(do func() (reconcile.Result, error), broken func(string)) {
	q.mu.Lock()
	q.running, q.queued = true, false
	q.mu.Unlock()
	go func() {
		defer func() {
			if r := recover(); r != nil {
				broken(fmt.Sprintf("a manager panics: %v\n%s", r, debug.Stack()))
			}
		}()
		result, err := do()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.running = false
		after := result.RequeueAfter
		if again := after == 0 && result.Requeue; err == nil && !again { //nolint:staticcheck // guard.Behind uses it
			q.failures = 0
		} else {
			after = min(5*time.Millisecond<<min(q.failures, 20), cmp.Or(q.MaxBackoff, 1000*time.Second))
			q.failures++
		}
		if at := time.Now().Add(after); after > 0 && (q.wakeAt.IsZero() || at.Before(q.wakeAt)) {
			q.wakeAt = at
		}
	}()
}

// Sooner returns when the object is queued again by itself, if that is before t, else t.
func (q *Queue) Sooner(t time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wakeAt.IsZero() {
		return t
	}
	return sooner(t, q.wakeAt)
}
