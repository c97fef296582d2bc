package nodeipam

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// logInterval is the minimum interval between two log lines of one kind of failure: a policy or a webhook may fail the
// writes of thousands of Nodes for hours.
const logInterval = 30 * time.Second

// logLimiter bounds how often failures are logged, by message. Its zero value is ready for use.
type logLimiter struct {
	mu          sync.Mutex
	nextLogTime map[string]time.Time
	suppressed  map[string]int
}

// shouldLog reports whether a line is due, and returns how many lines of its kind were suppressed before it.
func (l *logLimiter) shouldLog(says string, now time.Time) (left int, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextLogTime == nil {
		l.nextLogTime, l.suppressed = map[string]time.Time{}, map[string]int{}
	}
	if now.Before(l.nextLogTime[says]) {
		l.suppressed[says]++
		return 0, false
	}
	left = l.suppressed[says]
	l.nextLogTime[says], l.suppressed[says] = now.Add(logInterval), 0
	return left, true
}

// logFailure logs a failure, unless one of its kind was logged less than logInterval ago.
func (s *ClusterAllocator) logFailure(ctx context.Context, err error, says string, about ...any) {
	if left, is := s.logLimiter.shouldLog(says, s.Now()); is {
		log.FromContext(ctx).Error(err, says, append(about, "leftOut", left)...)
	}
}
