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
func (m *PoolState) IsArriving() bool {
	return m.HasOtherManagementCluster() || (m.Adopting && !m.QuarantineUntil.IsZero())
}

// isArrivingFromOtherCluster reports whether there is no proof yet that all objects have arrived that belong to a
// pool from another management cluster. It is false for a cluster-scoped pool, which a user has to open
// (isCopiedPool).
func (m *PoolState) isArrivingFromOtherCluster() bool {
	return m.BasePool != nil && m.BasePool.GetNamespace() != "" && m.HasOtherManagementCluster()
}

// IsQuarantined reports whether the pool grants nothing new because some addresses in use may be unknown.
func (m *PoolState) IsQuarantined(now time.Time) bool {
	return m.Arrival.MissingProof != "" || m.Arrival.NeedsListing || m.QuarantineUntil.After(now) || m.isArrivingFromOtherCluster()
}

// recordArrival records the creation time of an object that has addresses, if the pool is arriving and this manager
// holds it.
func (m *PoolState) recordArrival(created time.Time) {
	if m.Holder && m.BasePool != nil && m.IsArriving() && created.After(m.Arrival.lastArrival) {
		m.Arrival.lastArrival = created
	}
}

// BeginQuarantine starts a quarantine if an open pool names another management cluster. A move has overwritten the
// pool then, and may not have reached its Clusters yet, which are not paused until then.
func (m *PoolState) BeginQuarantine(now time.Time, length time.Duration) {
	if m.isArrivingFromOtherCluster() && m.AdoptingCondition() == nil && !m.QuarantineUntil.After(now) {
		m.setQuarantineEnd(now.Add(length))
		m.quarantineStartedAt = m.apiServerTime(now).Truncate(time.Second)
	}
}

// ExtendQuarantine restarts the quarantine of the given length from the last arrival.
func (m *PoolState) ExtendQuarantine(now time.Time, length time.Duration) {
	if m.Arrival.lastArrival.IsZero() {
		return
	}
	until := m.fromAPIServerTime(m.Arrival.lastArrival, now).Add(length)
	if !until.After(m.QuarantineUntil) || !until.After(now) {
		return
	}
	m.setQuarantineEnd(until)
	m.quarantineStartedAt = m.Arrival.lastArrival
	if serverTime := m.apiServerTime(now); m.quarantineStartedAt.After(serverTime) {
		m.quarantineStartedAt = serverTime.Truncate(time.Second)
	}
}

// setQuarantineEnd sets the end of the quarantine. The time that users read is by the clock of the API server, and is
// computed once: the measured difference of the clocks varies with each answer, and a message that followed it would
// cost a write per second.
func (m *PoolState) setQuarantineEnd(until time.Time) {
	m.QuarantineUntil, m.quarantineEndsAt = until, m.apiServerTime(until).Round(time.Second)
}

// keepQuarantineStart sets the transition time of the condition Ready to the last arrival. The next manager counts
// the quarantine from there.
func (m *PoolState) keepQuarantineStart(ready *metav1.Condition) {
	if ready == nil || ready.Reason != v1alpha1.AdoptingReason || m.quarantineStartedAt.IsZero() {
		return
	}
	if m.quarantineStartedAt.After(ready.LastTransitionTime.Time) {
		ready.LastTransitionTime = metav1.NewTime(m.quarantineStartedAt)
	}
}
