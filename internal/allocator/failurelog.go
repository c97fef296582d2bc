package allocator

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

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
func (c *failureLogLimiter) shouldLog(of failureCause, now time.Time) (leftOut int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.lastLogged[of]
	if last != nil && now.Sub(last.loggedAt) < failureLogInterval {
		last.suppressed++
		return 0, false
	}
	for other, w := range c.lastLogged { // a claim can name any pool
		if now.Sub(w.loggedAt) >= 2*failureLogInterval {
			delete(c.lastLogged, other)
		}
	}
	if c.lastLogged == nil {
		c.lastLogged = map[failureCause]*failureLogEntry{}
	}
	c.lastLogged[of] = &failureLogEntry{loggedAt: now}
	if last != nil {
		leftOut = last.suppressed
	}
	return leftOut, true
}

// logFailure logs that a job failed, unless the same was logged within failureLogInterval.
func (a *Allocator) logFailure(ctx context.Context, pool pools.Key, err error, text string, about ...any) {
	leftOut, due := a.failureLogs.shouldLog(failureCause{pool, text, apierrors.ReasonForError(err)}, a.now())
	if !due {
		return
	}
	if leftOut > 0 {
		about = append(about, "alike", leftOut)
	}
	log.FromContext(ctx).Error(err, text, append(about, "pool", pool.String())...)
}
