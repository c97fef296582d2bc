package sim

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is the work queue of a controller for a single object, with one worker.
type Queue struct {
	// Name is the name of the object, or of the controller.
	Name string
	// Reconcile runs one reconcile.
	Reconcile func() (reconcile.Result, error)
	// MaxBackoff is the longest wait after errors; zero means the maximum of controller-runtime.
	MaxBackoff time.Duration
	// Runs counts the reconciles.
	Runs int

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

// IsDue reports whether a reconcile can begin.
func (q *Queue) IsDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.wakeAt.IsZero() && !q.wakeAt.After(time.Now()) {
		q.queued, q.wakeAt = true, time.Time{}
	}
	return q.queued && !q.running
}

// startReconcile starts a reconcile. After an error, or with Requeue, the next one follows with controller-runtime's
// backoff. A panic is reported to onPanic.
func (q *Queue) startReconcile(onPanic func(string)) {
	q.mu.Lock()
	q.running, q.queued = true, false
	q.mu.Unlock()
	q.Runs++
	go func() {
		defer func() {
			if r := recover(); r != nil {
				onPanic(fmt.Sprintf("a manager panics: %v\n%s", r, debug.Stack()))
			}
		}()
		result, err := q.Reconcile()
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

// earlierWake returns the time of the pending requeue if it is before t, else t.
func (q *Queue) earlierWake(t time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wakeAt.IsZero() {
		return t
	}
	return earlierTime(t, q.wakeAt)
}
