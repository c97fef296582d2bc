package nodeipam

// blockRequests are the results of the requests for blocks. A request that has failed is not made again before its
// retry is due.
type blockRequests struct {
	// failed are the blocks for which the last request failed, by name; createErr is why no block could be created.
	failed    map[string]retryState
	createErr error
}
