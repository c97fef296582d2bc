package term

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// RequestTimeout bounds each write (R6: a grant ends by commit, on proof).
const RequestTimeout = 15 * time.Second

// Tombstones remembers the UIDs of objects that are proven gone, for as long as a request of ours may have been under
// way since: an answer to a write, or a list, that is older than the end must not revive an object (R7). The zero value
// is empty.
type Tombstones struct {
	// current are the UIDs added since the last rotation; previous are those of the period before that.
	current, previous map[types.UID]struct{}
	rotatedAt         time.Time
}

// Add records the proof that a UID is gone.
func (ts *Tombstones) Add(uid types.UID) {
	if ts.current == nil {
		ts.current = map[types.UID]struct{}{}
	}
	ts.current[uid] = struct{}{}
}

// Has reports whether a UID is proven gone.
func (ts *Tombstones) Has(uid types.UID) bool {
	_, now := ts.current[uid]
	_, before := ts.previous[uid]
	return now || before
}

// Rotate drops the UIDs that nothing can contradict any more, as every request of ours that was under way has ended
// since.
func (ts *Tombstones) Rotate(now time.Time) {
	if ElapsedTime(ts.rotatedAt, now) > 2*RequestTimeout {
		ts.current, ts.previous, ts.rotatedAt = nil, ts.current, now
	}
}

// IsNewerVersion reports whether resource version a is newer than b; one that cannot be parsed counts as newer.
func IsNewerVersion(a, b string) bool {
	if b == "" {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// ElapsedTime returns the time since a moment by the monotonic or the wall clock, whichever has advanced further: one
// of them stops while a process or its machine is paused.
func ElapsedTime(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
