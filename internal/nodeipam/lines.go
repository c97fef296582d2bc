package nodeipam

import (
	"context"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// linesEvery is how often the log has a line of one kind of failure: a policy or a webhook fails the writes of thousands of
// Nodes for hours.
const linesEvery = 30 * time.Second

// lines bounds what is logged of failures, by what is said. Its zero value has logged nothing.
type lines struct {
	mu   sync.Mutex
	next map[string]time.Time
	left map[string]int
}

// may reports whether a line is due, and how many of its kind were left out before it.
func (l *lines) may(says string, now time.Time) (left int, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next, l.left = map[string]time.Time{}, map[string]int{}
	}
	if now.Before(l.next[says]) {
		l.left[says]++
		return 0, false
	}
	left = l.left[says]
	l.next[says], l.left[says] = now.Add(linesEvery), 0
	return left, true
}

// failed logs a failure, unless one of its kind was logged a moment ago.
func (s *Site) failed(ctx context.Context, err error, says string, about ...any) {
	if left, is := s.lines.may(says, s.Now()); is {
		log.FromContext(ctx).Error(err, says, append(about, "leftOut", left)...)
	}
}
