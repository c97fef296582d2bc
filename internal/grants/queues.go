package grants

import (
	"time"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Queues has the claimants that need work, and counts the jobs. A claimant is in at most one of Pending, ToWrite,
// Overflow and deferred; Retrying is beside these. Pending is in the order of isOlderClaimant, so a claimant leaves
// it before a newer version replaces it.
type Queues struct {
	// Pending are the claimants that wait for a grant, oldest first; ToWrite are those that need
	// any other write.
	Pending *btree.BTreeG[*Claimant]
	ToWrite map[types.UID]*Claimant
	// Retrying are the claimants whose last attempt failed, and that have a RetryAt.
	Retrying map[types.UID]struct{}
	// NextReconcileAt is when the pool is reconciled again if nothing happens before, zero if that is not known.
	NextReconcileAt time.Time
	// Overflow are the claimants whose release waits until the status has room for their cooling periods.
	// Backlog reports whether other releases wait because as many as the jobs can take are recorded.
	Overflow map[types.UID]*Claimant
	Backlog  bool
	deferred deferredReleases
	// ActiveJobs is the number of jobs that wait or run.
	ActiveJobs int

	inventory *Inventory
	quotas    *Quotas
	claimants *Claimants
	addresses *Addresses
	grants    *Grants
	space     *Space
}

// AddToOverflow lets the release of a claimant wait until the status has room for its cooling period. No job works on
// the claimant until then.
func (q *Queues) AddToOverflow(c *Claimant) {
	q.Overflow[c.Owner.UID] = c
	delete(q.ToWrite, c.Owner.UID)
}

func (q *Queues) removeFromOverflow(uid types.UID) {
	if c := q.Overflow[uid]; c != nil {
		delete(q.Overflow, uid)
		q.ToWrite[uid] = c
	}
}

// RetryOverflow queues all releases again that wait for room in the status.
func (q *Queues) RetryOverflow() {
	for uid := range q.Overflow {
		q.removeFromOverflow(uid)
	}
}

// EndJob records that a job has ended. again is when a failed job is retried, zero if it did not fail. EndJob reports
// whether the pool should be reconciled: there is room for more jobs, or the pool would not be reconciled before the
// retry anyway. Many jobs fail while an obstacle lasts: an idle pool is enqueued for the next retry only, not for
// each failure.
func (q *Queues) EndJob(again time.Time) (wake bool) {
	q.ActiveJobs--
	switch {
	case q.ActiveJobs == 0, q.ActiveJobs == MaxJobs/4:
		return true
	case again.IsZero():
		return false
	}
	return q.NextReconcileAt.IsZero() || again.Before(q.NextReconcileAt)
}

// NextRetryDelay returns how long until the next claimant whose last attempt failed is retried, 0 if there is none.
func (q *Queues) NextRetryDelay(now time.Time) time.Duration {
	var wait time.Duration
	for uid := range q.Retrying {
		if c := q.claimants.ByUID[uid]; c != nil && c.RetryAt.After(now) {
			wait = MinWait(wait, c.RetryAt.Sub(now))
		} else {
			delete(q.Retrying, uid)
		}
	}
	return wait
}

// HasBlockingGrant reports whether the next commit ends a grant that blocks another claimant or a release: the
// release of its own claimant or, if that is gone, the claimants that wait for an address.
func (q *Queues) HasBlockingGrant() bool {
	for uid, g := range q.grants.ByClaimant {
		if c := q.claimants.ByUID[uid]; g.Confirmed && ((c != nil && c.Deleting) || (c == nil && q.Pending.Len() > 0)) {
			return true
		}
	}
	return false
}

// DropGrant removes a grant that is not on record any more.
func (q *Queues) DropGrant(uid types.UID) {
	key := ledger.Key{Source: ledger.SourceGrant, UID: uid}
	if g := q.grants.ByClaimant[uid]; g != nil && !g.Committed {
		q.space.Ledger.RetractFact(key) // no claimant ever had the range
	} else {
		q.space.Ledger.RemoveFact(key)
	}
	delete(q.grants.ByClaimant, uid)
	if c := q.claimants.ByUID[uid]; c != nil {
		q.QueueClaimant(c)
	}
}

// QueueClaimant puts a claimant into the queue for the work that it needs. It reports whether there is such work.
func (q *Queues) QueueClaimant(c *Claimant) bool {
	q.dequeueClaimant(c)
	q.quotas.updateQuotaCount(c)
	switch q.inventory.NeedFor(c) {
	case NeedNothing:
		return false
	case NeedGrant:
		q.Pending.Set(c)
	case NeedWrite, NeedRelease:
		q.ToWrite[c.Owner.UID] = c
	}
	return true
}

func (q *Queues) dequeueClaimant(c *Claimant) {
	q.Pending.Delete(c)
	delete(q.ToWrite, c.Owner.UID)
	delete(q.Overflow, c.Owner.UID)
	delete(q.deferred.claimants, c.Owner.UID)
}

// requeueOverlapping queues the claimants again that overlap with a claimant and whose status names the other owner.
func (q *Queues) requeueOverlapping(c *Claimant) {
	if !c.Kind.Traits().ReportsOverlap {
		return
	}
	for _, r := range q.inventory.takenRanges(c) {
		for _, h := range q.space.Ledger.OverlappingFacts(r) {
			if other := q.claimants.ByUID[h.Owner.UID]; other != nil && other != c && other.Kind.Traits().ReportsOverlap {
				q.QueueClaimant(other)
			}
		}
	}
}

// requeueOrphanClaimants queues the claimants that have the names of orphans again, because a block may have come or
// gone.
func (q *Queues) requeueOrphanClaimants() {
	for name := range q.addresses.Orphans {
		if c := q.claimants.ByName[name]; c != nil {
			q.QueueClaimant(c)
		}
	}
}

// AppendWaiting appends the claimants that wait and are served after a claimant, or from the first one if after is
// nil, until to has ViewChunkSize claimants. It also returns the last one.
func (q *Queues) AppendWaiting(after *Claimant, to []WaitingClaimant) ([]WaitingClaimant, *Claimant) {
	add := func(c *Claimant) bool {
		if after != nil && !isOlderClaimant(after, c) {
			return true
		}
		published := c.PublishedRefusal()
		to = append(to, WaitingClaimant{
			Kind: c.Owner.Kind, Namespace: c.Owner.Namespace, Name: c.Owner.Name, Cluster: c.Cluster.Name, Since: c.Created,
			Reason: published.Reason, Message: published.Message,
		})
		after = c
		return len(to) < ViewChunkSize
	}
	if after == nil {
		q.Pending.Scan(add)
	} else {
		q.Pending.Ascend(after, add)
	}
	return to, after
}
