package lease

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

const (
	// recheckInterval is how long it takes until the controller checks again what no watch shows, for example whether
	// MetalLB has released an address.
	recheckInterval = 10 * time.Second
	// shortRequeueDelay is after how long a namespace is reconciled again if no watch enqueues it.
	shortRequeueDelay = 100 * time.Millisecond
)

// schedule has the times of one reconcile: when it began, and when the next one is due.
type schedule struct {
	// now is when the reconcile began. All that it decides is as of then.
	now time.Time
	// requeueAfter is how long it takes until something must be checked again; 0 means not before something changes.
	requeueAfter time.Duration
}

// requeueWithin requeues the namespace after d at the latest. It changes nothing if d is not positive.
func (c *schedule) requeueWithin(d time.Duration) {
	if d > 0 {
		c.requeueAfter = term.MinWait(c.requeueAfter, d)
	}
}
