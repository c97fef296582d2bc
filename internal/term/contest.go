package term

import "time"

// Patience is how long work waits before a manager that was not elected takes its object over (R5).
const Patience = 3 * time.Second

// leastBackoff and mostBackoff bound how long a manager that lost its term waits.
const (
	leastBackoff = 100 * time.Millisecond
	mostBackoff  = time.Minute
)

// Contest is how a manager fares against others that want the same object. The wait grows while two managers meet again
// and again (R5). The zero value is ready for use: nobody else was met.
type Contest struct {
	// Backoff doubles with each loss, and ends with a commit that lands.
	Backoff time.Duration
	// NotBefore is when the object may be taken over again.
	NotBefore time.Time
}

// Lose notes that another manager has taken the object over. A takeover took so long, and jitter returns a part of what it is given.
func (c *Contest) Lose(now time.Time, took time.Duration, jitter func(time.Duration) time.Duration) {
	c.Backoff = min(max(2*c.Backoff, took, leastBackoff), mostBackoff)
	c.NotBefore = now.Add(c.Backoff + jitter(2*c.Backoff))
}

// Win notes that a commit has landed.
func (c *Contest) Win() { c.Backoff = 0 }
