package term

import "time"

// SerialRetryThreshold is how many writes of one kind the API server may refuse permanently before the others of that
// kind are tried one at a time, with pauses from MinRetryPause to MaxRetryPause.
const (
	SerialRetryThreshold = 16
	MinRetryPause        = 5 * time.Second
	MaxRetryPause        = time.Minute
)

// NextRetryPause returns the pause that follows a pause; 0 means that there was none.
func NextRetryPause(pause time.Duration) time.Duration {
	return min(max(2*pause, MinRetryPause), MaxRetryPause)
}

// minRetryDelay and maxRetryDelay bound how long a failed write is not retried.
const (
	minRetryDelay = 50 * time.Millisecond
	maxRetryDelay = 30 * time.Second
)

// batchInterval is the interval between the times at which all objects are retried together that have waited for a
// while: any number of them costs one reconcile per interval. Objects with a shorter delay are retried together too:
// any number of them costs one reconcile per delay, or per shortBatchInterval where that is shorter.
const (
	batchInterval      = 10 * time.Second
	shortBatchInterval = time.Second
)

// RetryDelay returns how long a write waits that has failed the given number of times in a row.
func RetryDelay(failures int32) time.Duration {
	return min(minRetryDelay<<min(failures, 10), maxRetryDelay)
}

// NextRetryTime returns when a write is retried that has failed the given number of times in a row, while others of its
// kind fail. A write that the API server refuses permanently waits longer, and so does a write whose kind has so many
// other failures that the rest is tried one at a time.
func NextRetryTime(now time.Time, failures int32, others int, err error) time.Time {
	delay := RetryDelay(failures)
	if IsPermanentRefusal(err) {
		delay = min(MinRetryPause<<min(failures, 10), maxRetryDelay)
	}
	if others >= SerialRetryThreshold {
		delay = maxRetryDelay
	}
	return RetryTimeAfter(now, delay+time.Duration(others)*time.Second)
}

// RetryTimeAfter returns when an object is retried after a delay: the first shared retry time after the delay, at which
// all objects with about the same delay are retried.
func RetryTimeAfter(now time.Time, delay time.Duration) time.Time {
	if delay < batchInterval {
		return roundUpTime(now.Add(delay), min(delay, shortBatchInterval))
	}
	return NextBatchTime(now.Add(delay))
}

// NextBatchTime returns the first time, from the given one on, at which all waiting objects are retried together.
func NextBatchTime(at time.Time) time.Time { return roundUpTime(at, batchInterval) }

// roundUpTime returns the first time, from the given one on, that is a multiple of a duration since the zero time. The
// multiples go by the wall clock, and the wait for one by the monotonic clock, which cannot be set.
func roundUpTime(at time.Time, interval time.Duration) time.Time {
	if over := at.Sub(at.Truncate(interval)); over > 0 {
		return at.Add(interval - over)
	}
	return at
}

// Retry is the progress of work that is repeated until it succeeds: a write for one object, or one request. The zero
// value is due at once.
type Retry struct {
	// Failures is the number of consecutive errors. No attempt starts before RetryAt. A manager keeps a Retry for each
	// claim, so it is small.
	RetryAt  time.Time
	Failures int32
	// Busy reports whether an attempt is under way.
	Busy bool
}

// IsDue reports whether an attempt may start.
func (r *Retry) IsDue(now time.Time) bool { return !r.Busy && !r.RetryAt.After(now) }

// Begin records that an attempt is under way.
func (r *Retry) Begin() { r.Busy = true }

// End records that an attempt has ended.
func (r *Retry) End() { r.Busy = false }

// SetRetryTime sets RetryAt by NextRetryTime after an error, as if more attempts had failed than have. The caller
// counts the failure.
func (r *Retry) SetRetryTime(now time.Time, more int32, err error) {
	r.RetryAt = NextRetryTime(now, r.Failures+more, 0, err)
}

// Fail records an error, and sets RetryAt by NextRetryTime.
func (r *Retry) Fail(now time.Time, err error) {
	r.SetRetryTime(now, 0, err)
	r.Failures++
}

// FailTransiently records a failure whose cause is expected to pass soon, whatever the API server answered.
func (r *Retry) FailTransiently(now time.Time) {
	r.RetryAt = RetryTimeAfter(now, RetryDelay(r.Failures))
	r.Failures++
}

// Reset makes the work due at once, as if it had never failed. It does not end an attempt that is under way.
func (r *Retry) Reset() { r.Failures, r.RetryAt = 0, time.Time{} }

// MinWait returns the shorter of two waits. One that is not positive is none: there is nothing to wait for.
func MinWait(a, b time.Duration) time.Duration {
	switch {
	case a <= 0:
		return max(b, 0)
	case b <= 0:
		return a
	}
	return min(a, b)
}
