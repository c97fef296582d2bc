package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Quarantine decides whether the pool is closed because some addresses in use may be unknown (R10): after a takeover
// without a record, after a move or a restore, and while objects still arrive.
type Quarantine struct {
	// ManagementCluster is the id of the management cluster that this manager serves, empty if it is not known.
	ManagementCluster string
	Until             time.Time
	// startedAt is what the quarantine counts from, if that is an arrival or a move that was observed
	// (BeginQuarantine), and endsAt is its end. Both are by the clock of the API server, in whole seconds.
	startedAt, endsAt time.Time
	// Arrival is the state of the arrival of the objects that belong to the pool.
	Arrival ArrivalState
	// SoleWriterSince is when no write can be stored any more that another manager or provider sent before this term.
	SoleWriterSince time.Time
	// Adopting reports whether the pool adopts the objects of another allocator (R10); AdoptionEventPending reports
	// whether the event for that is still to be recorded: the write of the takeover has set the condition Ready, so
	// no commit changes it.
	Adopting, AdoptionEventPending bool

	base      *BasePool
	clock     *Clock
	term      *TermState
	claimants *Claimants
	space     *Space
}

// ArrivalState is the state of the arrival of the objects that belong to a pool.
type ArrivalState struct {
	// MissingProof describes which proof is missing that all objects have arrived, in the words of the condition
	// Ready. It is empty if no proof is missing.
	MissingProof string
	// OpenedManually reports whether a user removed the annotation of the pool while the proof was missing.
	OpenedManually bool
	// NeedsListing reports whether the pool missed a proof once, and the addresses in use were not listed since the
	// proof was there. Only a list that succeeds resets it (RebuildLedger).
	NeedsListing bool
	// RetryAfter is when the manager retries a write or a list that the API server has refused: the write that marks
	// the pool as arrived, or the list of the addresses in use.
	RetryAfter time.Time
	// lastArrival is when the last object that has addresses arrived while this manager holds the pool, by the clock
	// of the API server.
	lastArrival time.Time
}

// IsArriving reports whether objects that have addresses of the pool may still arrive.
func (q *Quarantine) IsArriving() bool {
	return q.HasOtherManagementCluster() || (q.Adopting && !q.Until.IsZero())
}

// isArrivingFromOtherCluster reports whether there is no proof yet that all objects have arrived that belong to a
// pool from another management cluster. It is false for a cluster-scoped pool, which a user has to open
// (isCopiedPool).
func (q *Quarantine) isArrivingFromOtherCluster() bool {
	return q.base.Pool != nil && q.base.Pool.GetNamespace() != "" && q.HasOtherManagementCluster()
}

// IsQuarantined reports whether the pool grants nothing new because some addresses in use may be unknown.
func (q *Quarantine) IsQuarantined(now time.Time) bool {
	return q.Arrival.MissingProof != "" || q.Arrival.NeedsListing || q.Until.After(now) || q.isArrivingFromOtherCluster()
}

// recordArrival records the creation time of an object that has addresses, if the pool is arriving and this manager
// holds it.
func (q *Quarantine) recordArrival(created time.Time) {
	if q.term.Holder && q.base.Pool != nil && q.IsArriving() && created.After(q.Arrival.lastArrival) {
		q.Arrival.lastArrival = created
	}
}

// BeginQuarantine starts a quarantine if an open pool names another management cluster. A move has overwritten the
// pool then, and may not have reached its Clusters yet, which are not paused until then.
func (q *Quarantine) BeginQuarantine(now time.Time, length time.Duration) {
	if q.isArrivingFromOtherCluster() && q.AdoptingCondition() == nil && !q.Until.After(now) {
		q.setQuarantineEnd(now.Add(length))
		q.startedAt = q.clock.apiServerTime(now).Truncate(time.Second)
	}
}

// ExtendQuarantine restarts the quarantine of the given length from the last arrival.
func (q *Quarantine) ExtendQuarantine(now time.Time, length time.Duration) {
	if q.Arrival.lastArrival.IsZero() {
		return
	}
	until := q.clock.fromAPIServerTime(q.Arrival.lastArrival, now).Add(length)
	if !until.After(q.Until) || !until.After(now) {
		return
	}
	q.setQuarantineEnd(until)
	q.startedAt = q.Arrival.lastArrival
	if serverTime := q.clock.apiServerTime(now); q.startedAt.After(serverTime) {
		q.startedAt = serverTime.Truncate(time.Second)
	}
}

// setQuarantineEnd sets the end of the quarantine. The time that users read is by the clock of the API server, and is
// computed once: the measured difference of the clocks varies with each answer, and a message that followed it would
// cost a write per second.
func (q *Quarantine) setQuarantineEnd(until time.Time) {
	q.Until, q.endsAt = until, q.clock.apiServerTime(until).Round(time.Second)
}

// keepQuarantineStart sets the transition time of the condition Ready to the last arrival. The next manager counts
// the quarantine from there.
func (q *Quarantine) keepQuarantineStart(ready *metav1.Condition) {
	if ready == nil || ready.Reason != v1alpha1.AdoptingReason || q.startedAt.IsZero() {
		return
	}
	if q.startedAt.After(ready.LastTransitionTime.Time) {
		ready.LastTransitionTime = metav1.NewTime(q.startedAt)
	}
}

// copiedPoolMessage is the message of a pool that was copied from another management cluster.
const copiedPoolMessage = "the pool was copied here from another management cluster, by clusterctl move or from a backup, and may still give its addresses there; " +
	"when it does so no more, remove the annotation " + v1alpha1.ManagementClusterAnnotation + " from it to use it here"

// isCopiedPool reports whether another management cluster may still serve the pool. clusterctl copies a
// cluster-scoped pool along with any namespace that it moves, and leaves the original, so that both clusters would
// grant the same addresses.
func (q *Quarantine) isCopiedPool() bool {
	return q.base.Pool.GetNamespace() == "" && q.HasOtherManagementCluster()
}

// HasOtherManagementCluster reports whether the annotation of the pool names another management cluster than this
// one.
func (q *Quarantine) HasOtherManagementCluster() bool {
	home := q.base.Pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]
	return home != "" && q.ManagementCluster != "" && home != q.ManagementCluster
}

// NeedsManagementClusterMark reports whether MarkManagementCluster would change a pool.
func (q *Quarantine) NeedsManagementClusterMark(pool v1alpha1.Pool) bool {
	return q.ManagementCluster != "" && pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] == ""
}

// MarkManagementCluster records this management cluster in the annotation of a pool that names none. It reports
// whether it changed the pool.
func (q *Quarantine) MarkManagementCluster(pool v1alpha1.Pool) bool {
	return q.NeedsManagementClusterMark(pool) && annotations.AddAnnotations(pool, map[string]string{v1alpha1.ManagementClusterAnnotation: q.ManagementCluster})
}

// wasMirrorRemoved reports whether an earlier mirror of the same pool was removed here by force. The ranges that it
// held because they were moved to another management cluster are not known.
func (q *Quarantine) wasMirrorRemoved() bool {
	from := q.base.Pool.GetAnnotations()[incluster.MovedFromAnnotation]
	return from != "" && from == q.ManagementCluster
}

// QuarantineAfterOtherProvider starts a quarantine if the in-cluster provider has served the pool since this manager
// last did: one of its last requests may still be in flight (R10). That provider adds its finalizer to a claim before
// it gives it an address; this manager adds its finalizer together with the record, in one write. The reason Adopting
// of the condition Ready carries the quarantine over a restart: the first commit writes it before any record.
func (q *Quarantine) QuarantineAfterOtherProvider(now time.Time, length time.Duration) {
	since := now
	if c := q.AdoptingCondition(); c != nil {
		since = q.quarantineStart(c, now)
	}
	for _, c := range q.claimants.ByUID {
		if c.UsesMirroredPool && c.HasFinalizer && c.RecordAnnotation == "" {
			q.setQuarantineEnd(since.Add(length))
			return
		}
	}
}

// IsForeign reports whether another provider created the IPAddress of a claim while this manager served the pool.
// IPAddresses of this manager are created after a record. An IPAddress that a user created has no owners, and a
// restored one has its former owners. One that clusterctl moves arrives while the Cluster is paused, which the status
// of its claim shows.
func (q *Quarantine) IsForeign(c *Claimant, a *Address) bool {
	return a.UsesMirroredPool && !a.CreatedManually && a.ClaimantUID == c.Owner.UID && c.PauseMessage == "" && c.PublishedPauseMessage == "" &&
		!q.SoleWriterSince.IsZero() && a.CreatedUnix > q.clock.apiServerTime(q.SoleWriterSince).Unix()
}

// ShouldAdopt reports whether the range in the status of a claimant is trusted as a grant of another allocator: the
// pool is adopting, and the claimant has no record, which would have precedence (R10).
func (q *Quarantine) ShouldAdopt(c *Claimant) bool {
	return q.Adopting && !c.HasRecord() && c.PublishedRange.IsValid()
}

// RestoreQuarantine starts the quarantine if the status records no allocator, but addresses are in use or there was
// an allocator (R10). The condition Ready carries the quarantine over a restart.
func (q *Quarantine) RestoreQuarantine(now time.Time, length time.Duration) {
	if c := q.AdoptingCondition(); c != nil && (c.Status == metav1.ConditionFalse || q.space.Ledger.Counts().Owners > 0) {
		q.setQuarantineEnd(q.quarantineStart(c, now).Add(length))
	}
}

// quarantineStart returns the start of a recorded quarantine by the clock of this manager, at most now. Clock errors
// never make the quarantine shorter.
func (q *Quarantine) quarantineStart(c *metav1.Condition, now time.Time) time.Time {
	return q.clock.fromAPIServerTime(c.LastTransitionTime.Add(maxClockError), now)
}

// AdoptingCondition returns the condition Ready if it shows a quarantine that is not over, nil otherwise.
func (q *Quarantine) AdoptingCondition() *metav1.Condition {
	c := meta.FindStatusCondition(q.base.Pool.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Reason != v1alpha1.AdoptingReason {
		return nil
	}
	return c
}

// SetManagementCluster sets the identity of the management cluster of this manager.
func (q *Quarantine) SetManagementCluster(id string) { q.ManagementCluster = id }

// UpdateAdopting records whether the status of the pool shows that its state is being adopted.
func (q *Quarantine) UpdateAdopting() { q.Adopting = q.AdoptingCondition() != nil }

// SetAdoptionEvent records whether the event about the adoption is still to be recorded.
func (q *Quarantine) SetAdoptionEvent(pending bool) { q.AdoptionEventPending = pending }

// TakeAdoptionEvent reports whether the event about the adoption is to be recorded now, once.
func (q *Quarantine) TakeAdoptionEvent() bool {
	pending := q.AdoptionEventPending
	q.AdoptionEventPending = false
	return pending
}

// SetArrivalProof records what is missing as a proof that everything that came along with the pool has arrived, empty
// if nothing is, and whether a list is needed for the proof.
func (q *Quarantine) SetArrivalProof(missing string, needsListing bool) {
	q.Arrival.MissingProof, q.Arrival.NeedsListing = missing, needsListing
}

// RecordOpeningRefused records that the API server refuses the write that opens the pool, with the message for its
// condition, and when that is retried.
func (q *Quarantine) RecordOpeningRefused(message string, retryAt time.Time) {
	q.Arrival.MissingProof, q.Arrival.RetryAfter = message, retryAt
}

// RecordOpened records that the pool belongs to this management cluster: a user has opened it if the proof is missing.
func (q *Quarantine) RecordOpened() {
	q.Arrival.OpenedManually = q.Arrival.OpenedManually || q.Arrival.MissingProof != ""
}
