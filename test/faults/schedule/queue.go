package schedule

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue is the work queue of a controller with a single object and one worker.
type Queue struct {
	// MaxBackoff is the longest wait after errors; zero means the maximum of controller-runtime.
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

// IsDue reports whether a reconcile can begin.
func (q *Queue) IsDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.wakeAt.IsZero() && !q.wakeAt.After(time.Now()) {
		q.queued, q.wakeAt = true, time.Time{}
	}
	return q.queued && !q.running
}

// RunReconcile starts a reconcile. After an error, or with Requeue, the next one follows with controller-runtime's
// backoff. RunReconcile reports a panic to broken.
func (q *Queue) RunReconcile(do func() (reconcile.Result, error), broken func(string)) {
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

// EarlierWake returns the time of the pending requeue if it is before t, else t.
func (q *Queue) EarlierWake(t time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.wakeAt.IsZero() {
		return t
	}
	return earlierTime(t, q.wakeAt)
}
