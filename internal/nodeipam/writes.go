package nodeipam

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// nodeWrites are the writes of grants to Nodes: which are due, how many are under way, and which were refused. Each is
// of a grant on record (R14), and a grant has at most one write under way.
type nodeWrites struct {
	// inFlight is how many writes are under way; firstInFlight is how many of them are for grants without a failed
	// write so far.
	inFlight, firstInFlight int
	refused                 refusedWrites
	// nextReconcile is when the next reconcile happens unless something enqueues the cluster before; zero means
	// unknown. A write that fails enqueues the cluster only for a retry that is due before that: hundreds that fail for
	// hours cost one reconcile for all that are retried together.
	nextReconcile time.Time

	nodes    *knownNodes
	adoption *adoptionState
	record   *recordState
	events   *nodeEvents
	waiting  *waitingNodes
	grants   *nodeGrants
	cidrs    *nodeCIDRs
}

const (
	// maxGrantsPerCommit bounds the new grants of a commit, maxInFlightGrants the grants on record without a failed
	// write, and maxRecordedGrants all grants on record: grants that hang, or are refused after their outcome was
	// unknown, leave room for others.
	maxGrantsPerCommit = 128
	maxInFlightGrants  = 512
	maxRecordedGrants  = 2048
	// maxStateBytes bounds the state on record, as a ConfigMap has at most 1 MiB; maxGrantBytes is what one more grant
	// takes at most: names of 253 bytes, two CIDRs, and the range that is opened for it.
	maxStateBytes = 950 << 10
	maxGrantBytes = 2 << 10
	// refillThreshold is how many writes may be under way for more Nodes to be planned for: so the writers never wait
	// for a commit.
	refillThreshold = maxGrantsPerCommit * 3 / 4
)

// refusedWrites is what is known of writes that the API server refuses permanently: most often it refuses those of
// other Nodes as well.
type refusedWrites struct {
	// nodeUIDs are the Nodes that were refused since one was served.
	nodeUIDs    map[types.UID]bool
	nextRetryAt time.Time
	retryPause  time.Duration
	// lastErr is the last refusal.
	lastErr error
}

// grantLimit returns how many Nodes may be granted something now, or how long until one may.
func (nw *nodeWrites) grantLimit(now time.Time) (int, time.Duration) {
	switch {
	case now.Before(nw.adoption.until):
		return 0, nw.adoption.until.Sub(now)
	case now.Before(nw.record.nextCommitTime):
		return 0, nw.record.nextCommitTime.Sub(now)
	case nw.isRetryingSerially() && now.Before(nw.refused.nextRetryAt):
		return 0, nw.refused.nextRetryAt.Sub(now)
	case nw.isRetryingSerially():
		return 1, 0
	case nw.firstInFlight > refillThreshold:
		return 0, 0 // the end of one of them enqueues the cluster
	}
	unfailed := 0
	for _, g := range nw.grants.byNode {
		if g.Failures == 0 {
			unfailed++
		}
	}
	return max(min(maxGrantsPerCommit, maxInFlightGrants-unfailed, maxRecordedGrants-len(nw.grants.byNode), nw.grants.remainingGrants()), 0), 0
}

// isRetryingSerially reports whether so many Nodes were refused that they are tried one at a time.
func (nw *nodeWrites) isRetryingSerially() bool {
	return len(nw.refused.nodeUIDs) >= term.SerialRetryThreshold
}

// collectDueGrants returns the grants to be written now, oldest Node first, and how long until others are due. It
// refuses a grant whose CIDRs another Node has, once no write of it can land any more.
func (nw *nodeWrites) collectDueGrants(now time.Time) (out []*nodeGrant, wait time.Duration) {
	for _, g := range nw.grants.byNode {
		switch {
		case !g.committed || g.settled || g.refused || g.Busy:
		case g.RetryAt.After(now):
			wait = term.MinWait(wait, g.RetryAt.Sub(now))
		case nw.cidrs.allocations.IsUsedByOther(g.Node.UID, g.CIDRs):
			// Another writer has set what was granted. The grant is not written any more. If it was never sent, it is
			// over at once; otherwise it is over when no write of it can land any more (R10): until then no other Node
			// gets its CIDRs, even if that other Node is deleted.
			left := g.lastWriteEnd.Add(adoptionPeriod).Sub(now)
			if g.refused = (!g.writeStarted && !g.inherited) || left <= 0; !g.refused {
				wait = term.MinWait(wait, left)
			}
			nw.events.addEventf(g.Node, CIDRNotAvailable, "another allocator has given %v to another Node, which were granted to it: it gets others within %v; run kube-controller-manager with --allocate-node-cidrs=false, and one allocator only", g.CIDRs, adoptionPeriod)
		default:
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *nodeGrant) int {
		return cmp.Or(a.Node.CreatedAt.Compare(b.Node.CreatedAt), cmp.Compare(a.Node.Name, b.Node.Name), cmp.Compare(a.Node.UID, b.Node.UID))
	})
	return out, wait
}

// beginWrite records that a write of a grant is submitted; endWrite records that it has ended.
func (nw *nodeWrites) beginWrite(g *nodeGrant) {
	g.Begin()
	g.writeStarted = true
	nw.inFlight++
	if g.Failures == 0 {
		nw.firstInFlight++
	}
}

func (nw *nodeWrites) endWrite(g *nodeGrant) {
	g.End()
	nw.inFlight--
	if g.Failures == 0 {
		nw.firstInFlight--
	}
}

// recordWrite records the result of a write, and reports whether there is something to do.
func (nw *nodeWrites) recordWrite(g *nodeGrant, err error, now time.Time) (wake bool) {
	nw.endWrite(g)
	g.lastWriteEnd = now
	n := nw.nodes.byUID[g.Node.UID]
	switch {
	case err == nil && (g.settled || n == nil):
		nw.refused = refusedWrites{}
	case term.IsPermanentRefusal(err) && !g.outcomeUnknown && !g.inherited && !g.settled:
		g.refused, nw.refused.lastErr = true, err
		if nw.refused.nodeUIDs == nil {
			nw.refused.nodeUIDs = map[types.UID]bool{}
		}
		wasRetryingSerially := nw.isRetryingSerially()
		if nw.refused.nodeUIDs[g.Node.UID] = true; !wasRetryingSerially && nw.isRetryingSerially() {
			nw.refused.retryPause, nw.refused.nextRetryAt = term.MinRetryPause, now.Add(term.MinRetryPause)
		}
		if n != nil && n.waiting != nil {
			n.waiting.FailTransiently(now)
			nw.events.addEventf(n.Node, CIDRNotAvailable, "%v; the manager tries again", err)
		}
	default:
		g.outcomeUnknown = true
		delay := term.RetryDelay(g.Failures) // also after a write that succeeded without showing its result
		if err != nil && term.IsPermanentRefusal(err) {
			delay *= 10 // the grant stays on record, as an earlier write may land
		}
		g.RetryAt = term.RetryTimeAfter(now, delay)
		wake = err != nil && nw.isBeforeNextReconcile(g.RetryAt, now)
		if g.Failures++; g.Failures == failuresBeforeEvent && err != nil && n != nil && !g.settled {
			nw.events.addEventf(n.Node, CIDRNotAvailable, "writing its pod CIDRs fails: %v; the manager tries again", err)
		}
	}
	return wake || nw.inFlight == 0 || (nw.firstInFlight == refillThreshold && len(nw.waiting.pending) > 0)
}

// failuresBeforeEvent is how many times in a row a write may fail without being refused permanently before its Node
// gets an event.
const failuresBeforeEvent = 4

// isBeforeNextReconcile reports whether the cluster has to be enqueued for a retry that is due at the given time,
// because its next reconcile is later or unknown. A planned reconcile whose time has passed did not happen, as the
// caller backs off after an error: a retry that is due within a second does not wait for that.
func (nw *nodeWrites) isBeforeNextReconcile(due, now time.Time) bool {
	switch {
	case nw.nextReconcile.IsZero():
		return true
	case now.Before(nw.nextReconcile):
		return due.Before(nw.nextReconcile)
	}
	return due.Before(now.Add(time.Second))
}
