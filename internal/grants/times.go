package grants

import (
	"time"
)

// Sooner returns the shorter of two waits, of which 0 is none at all.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// elapsed is the time since a moment by the monotonic or the wall clock, whichever is further.
func elapsed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}
