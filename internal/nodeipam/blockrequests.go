package nodeipam

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
)

// blockRequests are the requests for blocks. A request that has failed is not made again before its retry is due.
type blockRequests struct {
	carve.Requests
	// createErr is why no block could be created.
	createErr error
}

// recordResult records the result of a request, and returns after how long it is made again, if it failed.
func (br *blockRequests) recordResult(e blockRequest, err error, now time.Time) time.Duration {
	if e.verb == carve.CreateBlock {
		br.createErr = err
	}
	br.Begin(e.key()) // the requests of a Cluster are made one at a time, so begin and end are recorded together
	if again := br.End(e.key(), err, now); !again.IsZero() {
		return again.Sub(now)
	}
	return 0
}
