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
func (l *logLimiter) shouldLog(message string, now time.Time) (left int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextLogTime == nil {
		l.nextLogTime, l.suppressed = map[string]time.Time{}, map[string]int{}
	}
	if now.Before(l.nextLogTime[message]) {
		l.suppressed[message]++
		return 0, false
	}
	left = l.suppressed[message]
	l.nextLogTime[message], l.suppressed[message] = now.Add(logInterval), 0
	return left, true
}

// logFailure logs a failure, unless one of its kind was logged less than logInterval ago.
func (nc *nodeClient) logFailure(ctx context.Context, err error, message string, about ...any) {
	if left, ok := nc.logLimiter.shouldLog(message, nc.Now()); ok {
		log.FromContext(ctx).Error(err, message, append(about, "suppressed", left)...)
	}
}
