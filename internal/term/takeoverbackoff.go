package term

import "time"

// TakeoverDelay is how long work waits before a manager that was not elected takes its object over (R5: one holder at a
// time).
const TakeoverDelay = 3 * time.Second

// minBackoff and maxBackoff bound how long a manager that lost its term waits.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Minute
)

// TakeoverBackoff is the backoff of a manager that competes with other managers for the same object. The wait grows
// while two managers keep taking the object from each other (R5). The zero value is ready for use: no other manager has
// interfered yet.
type TakeoverBackoff struct {
	// Backoff doubles with each lost term, and is reset by a commit that lands.
	Backoff time.Duration
	// NotBefore is the earliest time at which the object may be taken over again.
	NotBefore time.Time
}

// Next records that another manager has taken the object over, and sets Backoff and NotBefore. took is how long the
// last takeover took; jitter returns a random part of the duration that is passed to it.
func (tb *TakeoverBackoff) Next(now time.Time, took time.Duration, jitter func(time.Duration) time.Duration) {
	tb.Backoff = min(max(2*tb.Backoff, took, minBackoff), maxBackoff)
	tb.NotBefore = now.Add(tb.Backoff + jitter(2*tb.Backoff))
}

// Reset records that a commit has landed.
func (tb *TakeoverBackoff) Reset() { tb.Backoff = 0 }
