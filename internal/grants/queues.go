package grants

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Queues has the claimants that need work, and counts the jobs. A claimant is in at most one of Waiting, ToWrite,
// Overflow and deferred; Retrying is beside these. Waiting is in the order of isOlderClaimant, so a claimant leaves
// it before a newer version replaces it.
type Queues struct {
	// Waiting are the claimants that wait for a grant, oldest first; ToWrite are those that need any other write.
	Waiting *btree.BTreeG[*Claimant]
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

// deferredReleases are the releases whose cooling period still has to be recorded. Each batch records no more than
// can be handed to jobs, and leaves the others to the next batches. Their claimants are not in ToWrite
// meanwhile, or each reconcile would visit all of them. The zero value is empty.
type deferredReleases struct {
	// byAddress has the releases in the order of their addresses, because adjacent ranges that start to cool down
	// together share an entry of status.cooling (ADR 53).
	byAddress []deferredRelease
	// claimants has the claimants that still wait. One that was queued again meanwhile is in byAddress only.
	claimants map[types.UID]*Claimant
}

// deferredRelease is a claimant that releases a range, and the first address of that range.
type deferredRelease struct {
	claimant     *Claimant
	firstAddress netip.Addr
}

// deferReleases moves releases from ToWrite to the deferred ones. It costs O(n log n) in the number of both,
// and nothing if due is empty.
func (q *Queues) deferReleases(due []deferredRelease) {
	if len(due) == 0 {
		return
	}
	d := &q.deferred
	if d.claimants == nil {
		d.claimants = make(map[types.UID]*Claimant, len(due))
	}
	d.byAddress = slices.DeleteFunc(d.byAddress, func(r deferredRelease) bool { return d.claimants[r.claimant.Owner.UID] != r.claimant })
	for _, r := range due {
		delete(q.ToWrite, r.claimant.Owner.UID)
		d.claimants[r.claimant.Owner.UID] = r.claimant
	}
	d.byAddress = append(d.byAddress, due...)
	slices.SortFunc(d.byAddress, func(a, b deferredRelease) int { return a.firstAddress.Compare(b.firstAddress) })
}

// nextDeferredRelease moves the deferred claimant with the lowest address back to ToWrite and returns it. It
// returns nil if there is none.
func (q *Queues) nextDeferredRelease() *Claimant {
	d := &q.deferred
	for len(d.byAddress) > 0 {
		c := d.byAddress[0].claimant
		d.byAddress[0] = deferredRelease{} // the array lives as long as any of the others
		d.byAddress = d.byAddress[1:]
		if d.claimants[c.Owner.UID] == c {
			delete(d.claimants, c.Owner.UID)
			q.ToWrite[c.Owner.UID] = c
			return c
		}
	}
	*d = deferredReleases{} // free the memory of both
	return nil
}

// requeueDeferredReleases moves all deferred claimants back to ToWrite: this manager does not record cooling
// periods any more, or none are needed.
func (q *Queues) requeueDeferredReleases() {
	for uid, c := range q.deferred.claimants {
		q.ToWrite[uid] = c
	}
	q.deferred = deferredReleases{}
}

// BeginJob records that a job has started.
func (q *Queues) BeginJob() { q.ActiveJobs++ }

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

// ForgetNextReconcile records that the time of the next reconcile is not known: until it is, each failed job enqueues
// the pool.
func (q *Queues) ForgetNextReconcile() { q.NextReconcileAt = time.Time{} }

// AddRetrying records that the last attempt for a claimant has failed, and that it has a RetryAt.
func (q *Queues) AddRetrying(c *Claimant) { q.Retrying[c.Owner.UID] = struct{}{} }

// NextRetryDelay returns how long until the next claimant whose last attempt failed is retried, 0 if there is none.
func (q *Queues) NextRetryDelay(now time.Time) time.Duration {
	var wait time.Duration
	for uid := range q.Retrying {
		if c := q.claimants.ByUID[uid]; c != nil && c.RetryAt.After(now) {
			wait = term.MinWait(wait, c.RetryAt.Sub(now))
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
		if c := q.claimants.ByUID[uid]; g.Confirmed && ((c != nil && c.Deleting) || (c == nil && q.Waiting.Len() > 0)) {
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
		q.Waiting.Set(c)
	case NeedWrite, NeedRelease:
		q.ToWrite[c.Owner.UID] = c
	}
	return true
}

func (q *Queues) dequeueClaimant(c *Claimant) {
	q.Waiting.Delete(c)
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
