package allocator

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// workQueue leads to the controller's queue of pools and to the writers: all that runs beside the reconciles is
// submitted here. Before Start it enqueues nothing.
type workQueue struct {
	*Options
	// controller is nil before Start.
	controller  atomic.Pointer[controllerHandle]
	workers     *workers.Workers[pools.Key]
	failureLogs failureLogLimiter
}

// controllerHandle holds what the controller passes to Start. The sources that feed events start beside the controller.
type controllerHandle struct {
	// jobContext bounds the writes that a reconcile dispatches: it lives longer than the reconcile.
	jobContext context.Context //nolint:containedctx // the controller's own context
	enqueue    func(pools.Key)
}

// enqueuePool enqueues a pool for a reconcile.
func (wq *workQueue) enqueuePool(key pools.Key) {
	if l := wq.controller.Load(); l != nil {
		l.enqueue(key)
	}
}

// submitJob runs a job of a pool as soon as a writer is free, with a context that lives as long as the controller.
func (wq *workQueue) submitJob(pool pools.Key, job func(context.Context)) {
	ctx := wq.jobContext()
	wq.workers.Submit(pool, func() { job(ctx) })
}

// jobContext returns a context that lives as long as the controller.
func (wq *workQueue) jobContext() context.Context {
	if l := wq.controller.Load(); l != nil {
		return l.jobContext
	}
	return context.Background()
}

// logFailure logs that a job failed, unless the same was logged within failureLogInterval.
func (wq *workQueue) logFailure(ctx context.Context, pool pools.Key, err error, text string, about ...any) {
	leftOut, due := wq.failureLogs.shouldLog(failureCause{pool, text, apierrors.ReasonForError(err)}, wq.now())
	if !due {
		return
	}
	if leftOut > 0 {
		about = append(about, "suppressed", leftOut)
	}
	log.FromContext(ctx).Error(err, text, append(about, "pool", pool.String())...)
}

// failureLogInterval is how often the log reports that jobs of a pool fail for one cause: thousands may fail, as long
// as a quota or a policy lasts.
const failureLogInterval = time.Minute

// failureCause is why jobs of a pool fail: what they were for, and which kind of error the API server returned.
type failureCause struct {
	pool    pools.Key
	message string
	reason  metav1.StatusReason
}

// failureLogLimiter records the causes that were logged. The zero value has none.
type failureLogLimiter struct {
	mu         sync.Mutex
	lastLogged map[failureCause]*failureLogEntry
}

// failureLogEntry records when a cause was logged, and how many entries were suppressed since.
type failureLogEntry struct {
	loggedAt   time.Time
	suppressed int
}

// shouldLog reports whether a cause should be logged now, and how many entries were suppressed before.
func (fl *failureLogLimiter) shouldLog(of failureCause, now time.Time) (leftOut int, due bool) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	last := fl.lastLogged[of]
	if last != nil && now.Sub(last.loggedAt) < failureLogInterval {
		last.suppressed++
		return 0, false
	}
	for other, w := range fl.lastLogged { // a claim can name any pool
		if now.Sub(w.loggedAt) >= 2*failureLogInterval {
			delete(fl.lastLogged, other)
		}
	}
	if fl.lastLogged == nil {
		fl.lastLogged = map[failureCause]*failureLogEntry{}
	}
	fl.lastLogged[of] = &failureLogEntry{loggedAt: now}
	if last != nil {
		leftOut = last.suppressed
	}
	return leftOut, true
}
