package nodeipam

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// blockRequests are the results of the requests for blocks. A request that has failed is not made again before its
// retry is due.
type blockRequests struct {
	// failed are the blocks for which the last request failed, by name; createErr is why no block could be created.
	failed    map[string]term.Retry
	createErr error
}

// recordResult records the result of a request, and returns after how long it is made again, if it failed.
func (br *blockRequests) recordResult(e blockRequest, err error, now time.Time) time.Duration {
	if e.action == createBlock {
		br.createErr = err
	}
	if err == nil {
		delete(br.failed, e.blockName)
		return 0
	}
	v := br.failed[e.blockName]
	v.Fail(now, err)
	br.failed[e.blockName] = v
	return v.RetryAt.Sub(now)
}
