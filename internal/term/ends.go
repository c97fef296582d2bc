package term

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// RequestTimeout bounds each write (R6).
const RequestTimeout = 15 * time.Second

// Ends remembers whose end was seen, for as long as a request of ours may have been under way since: an answer to a
// write, or a list, that is older than the end must not revive anybody (R7). The zero value is empty.
type Ends struct {
	// seen are those since the last rotation, before are those of the time before that.
	seen, before map[types.UID]struct{}
	rotated      time.Time
}

// NoteGone notes the proof that a UID is gone.
func (e *Ends) NoteGone(uid types.UID) {
	if e.seen == nil {
		e.seen = map[types.UID]struct{}{}
	}
	e.seen[uid] = struct{}{}
}

// IsGone reports whether the end of a UID was seen.
func (e *Ends) IsGone(uid types.UID) bool {
	_, now := e.seen[uid]
	_, before := e.before[uid]
	return now || before
}

// RotateGone forgets ends that nothing can contradict any more: every request of ours has ended since.
func (e *Ends) RotateGone(now time.Time) {
	if Elapsed(e.rotated, now) > 2*RequestTimeout {
		e.seen, e.before, e.rotated = nil, e.seen, now
	}
}

// Newer reports whether resource version a is newer than b; an unreadable one counts as newer.
func Newer(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// Elapsed is the time since a moment by the monotonic or the wall clock, whichever is further: one of them stands still
// while a process or its machine is paused.
func Elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
