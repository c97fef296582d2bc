package grants

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Clock converts between the clock of this manager and that of the API server. All times on record are by the latter
// (ADR 49). A time in the future counts as now.
type Clock struct {
	// ToAPIServerTime converts a time of this manager to the clock of the API server. It is nil if both have the same
	// clock.
	ToAPIServerTime func(time.Time) time.Time
}

// apiServerTime converts a time to the clock of the API server. All times that the next manager counts from are
// recorded by that clock, because its own clock and that of its predecessor may differ by any amount (ADR 49).
func (k *Clock) apiServerTime(at time.Time) time.Time {
	if k.ToAPIServerTime == nil {
		return at
	}
	return k.ToAPIServerTime(at)
}

// fromAPIServerTime converts a time of the API server to the clock of this manager. It returns now for a future time,
// so that a clock that was ahead when the time was recorded does not close the pool for longer.
func (k *Clock) fromAPIServerTime(at, now time.Time) time.Time {
	return now.Add(-max(k.apiServerTime(now).Sub(at), 0))
}

// quarantineStart returns the start of a recorded quarantine by the clock of this manager, at most now. Clock errors
// never make the quarantine shorter.
func (k *Clock) quarantineStart(c *metav1.Condition, now time.Time) time.Time {
	return k.fromAPIServerTime(c.LastTransitionTime.Add(maxClockError), now)
}
