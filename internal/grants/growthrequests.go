package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// DueBlockRequests returns the requests that are due, and how long until the next one that has to wait is due.
// quarantine is how long a request that was sent before the pool was gone may still be in flight (R10).
func (gr *Growth) DueBlockRequests(now time.Time, quarantine time.Duration) (out []BlockRequest, wait time.Duration) {
	c := gr.carved
	if gr.base.Pool == nil {
		return gr.requestsWithoutPool(now, quarantine)
	}
	if !gr.term.Holder {
		return nil, 0
	}
	out, wait = gr.requestsInOtherNamespaces(now)
	for verb, name := range c.Decision.ForExisting() {
		out, wait = gr.appendBlockRequest(out, wait, verb, c.Blocks[name], now)
	}
	wait = term.MinWait(wait, c.Decision.NextWait)
	if d := c.Requests.Progress(creation).RetryAt.Sub(now); d > 0 {
		if c.Decision.NewBlocks+len(c.Decision.Recreate) > 0 {
			wait = term.MinWait(wait, d)
		}
		return out, wait
	}
	asked := map[string]struct{}{}
	for _, on := range c.Decision.Recreate {
		name := on
		if c.Requests.IsNameTaken(name, now) { // another object has the name: the new block replaces this one under another name
			name = gr.carved.nextBlockName(asked, now)
		}
		asked[name] = struct{}{}
		out = append(out, BlockRequest{Verb: carve.CreateBlock, Name: name, PinnedPrefix: gr.base.recordedBlockPrefix(on)})
	}
	for range c.Decision.NewBlocks {
		name := gr.carved.nextBlockName(asked, now)
		asked[name] = struct{}{}
		out = append(out, BlockRequest{Verb: carve.CreateBlock, Name: name})
	}
	return out, wait
}

// recordedBlockReleaseInterval is how often the manager releases a block in another namespace that has only a record,
// which any user can write: before each such release it lists everything in use of a global pool.
const recordedBlockReleaseInterval = time.Minute

// requestsInOtherNamespaces returns the requests for the blocks in other namespaces that are not open on record. A
// block there that the pool requested was created before its manager moved to another namespace, and was not opened
// by then: it is released.
func (gr *Growth) requestsInOtherNamespaces(now time.Time) (out []BlockRequest, wait time.Duration) {
	if gr.quarantine.IsQuarantined(now) {
		return nil, 0
	}
	for _, b := range gr.carved.inOtherNamespace {
		recordAlone := !b.Prefix.IsValid() && len(b.RecordedRanges) > 0
		switch {
		case !b.HasFinalizer || gr.space.UsedInBlock(b) > 0:
		case b.Deleting && recordAlone && gr.carved.recordedBlockReleaseAfter.After(now):
			wait = term.MinWait(wait, gr.carved.recordedBlockReleaseAfter.Sub(now))
		case b.Deleting:
			n := len(out)
			if out, wait = gr.appendBlockRequest(out, wait, carve.RemoveBlockFinalizer, b, now); recordAlone && len(out) > n {
				gr.carved.recordedBlockReleaseAfter = now.Add(recordedBlockReleaseInterval)
			}
		case !b.CreatedManually:
			out, wait = gr.appendBlockRequest(out, wait, carve.DeleteBlock, b, now)
		}
	}
	return out, wait
}

// appendBlockRequest adds a request for a block, unless another request for it is in flight or it has to wait after a
// failure.
func (gr *Growth) appendBlockRequest(out []BlockRequest, wait time.Duration, verb carve.Verb, b *Block, now time.Time) ([]BlockRequest, time.Duration) {
	if b == nil {
		return out, wait
	}
	switch past := gr.carved.Requests.Progress(string(b.UID)); {
	case past.Busy:
		return out, wait
	case !past.IsDue(now):
		return out, term.MinWait(wait, past.RetryAt.Sub(now))
	}
	return append(out, BlockRequest{Verb: verb, Name: b.Name, Block: b, Term: gr.term.Number}), wait
}

// blockUsageCheckInterval is how often the manager checks whether a block of a pool that does not exist is still in
// use, regardless of watch events.
const blockUsageCheckInterval = time.Minute

// requestsWithoutPool returns the requests for the blocks of a pool that does not exist: those that are being deleted
// are released once no grant from the pool can be in flight any more.
func (gr *Growth) requestsWithoutPool(now time.Time, quarantine time.Duration) (out []BlockRequest, wait time.Duration) {
	if gr.carved.BlockCount() == 0 {
		return nil, 0
	}
	if gr.carved.poolMissingSince.IsZero() {
		gr.carved.poolMissingSince = now
	}
	if wait := gr.carved.poolMissingSince.Add(quarantine).Sub(now); wait > 0 {
		return nil, wait
	}
	for _, b := range gr.carved.allBlocks() {
		switch {
		case !b.Deleting || !b.HasFinalizer:
		case gr.space.UsedInBlock(b) > 0: // the release of the addresses enqueues the pool
			wait = term.MinWait(wait, blockUsageCheckInterval)
		default:
			out, wait = gr.appendBlockRequest(out, wait, carve.RemoveBlockFinalizer, b, now)
		}
	}
	return out, wait
}
