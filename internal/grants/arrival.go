package grants

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// A move or a restore creates a pool and the objects that have its addresses one by one, in any order, and may stop
// in between for any time. So the absence of an object proves nothing while objects still arrive (R10).

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
	if q.record.Holder && q.base.Pool != nil && q.IsArriving() && created.After(q.Arrival.lastArrival) {
		q.Arrival.lastArrival = created
	}
}

// BeginQuarantine starts a quarantine if an open pool names another management cluster. A move has overwritten the
// pool then, and may not have reached its Clusters yet, which are not paused until then.
func (q *Quarantine) BeginQuarantine(now time.Time, length time.Duration) {
	if q.isArrivingFromOtherCluster() && q.base.AdoptingCondition() == nil && !q.Until.After(now) {
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
