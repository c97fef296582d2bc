package grants

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// A move or a restore brings a pool and what it has given one by one, in any order, and may stop in between for any time.
// So what is not here proves nothing while objects still arrive (R10).

// Arriving is what is known of the objects that come along with a pool.
type Arriving struct {
	// Lacks is what is missing as a proof that all of them are here, as the condition Ready says it; empty: nothing.
	Lacks string
	// Opened: the pool lacked a proof, and its annotation was removed by hand.
	Opened bool
	// Unlisted: the pool lacked a proof, and what is in use was not listed since there is one. Only a list that has succeeded
	// ends it (Rebuild).
	Unlisted bool
	// TryAfter is when what the API server has refused is tried again: to note that all is here, or to list what is in use.
	TryAfter time.Time
	// last is when the last one arrived that has addresses, since this manager holds the pool, by the clock of the API server.
	last time.Time
}

// Arrives reports whether objects may still arrive that have addresses of the pool.
func (m *Memory) Arrives() bool {
	return m.CameFromElsewhere() || (m.Adopting && !m.QuarantineUntil.IsZero())
}

// comesFromElsewhere reports whether nothing has proven yet that all is here which comes along with the pool from another
// management cluster. Of one that is in no namespace a person decides (isCopied).
func (m *Memory) comesFromElsewhere() bool {
	return m.Base != nil && m.Base.GetNamespace() != "" && m.CameFromElsewhere()
}

// InQuarantine reports whether the pool grants nothing new because not all may be known that is in use.
func (m *Memory) InQuarantine(now time.Time) bool {
	return m.Arriving.Lacks != "" || m.Arriving.Unlisted || m.QuarantineUntil.After(now) || m.comesFromElsewhere()
}

// noteArrival notes that an object has arrived that has addresses.
func (m *Memory) noteArrival(created time.Time) {
	if m.Holder && m.Base != nil && m.Arrives() && created.After(m.Arriving.last) {
		m.Arriving.last = created
	}
}

// BeginQuarantine begins a quarantine where a pool that is open names another management cluster: a move has written over
// it, and may not have come to its Clusters yet, which are not paused until then.
func (m *Memory) BeginQuarantine(now time.Time, length time.Duration) {
	if m.comesFromElsewhere() && m.WasAdopting() == nil && !m.QuarantineUntil.After(now) {
		m.closeUntil(now.Add(length))
		m.quietSince = m.atAPI(now).Truncate(time.Second)
	}
}

// ExtendQuarantine has the quarantine count from the last arrival.
func (m *Memory) ExtendQuarantine(now time.Time, length time.Duration) {
	if m.Arriving.last.IsZero() {
		return
	}
	until := m.begunBy(m.Arriving.last, now).Add(length)
	if !until.After(m.QuarantineUntil) || !until.After(now) {
		return
	}
	m.closeUntil(until)
	m.quietSince = m.Arriving.last
	if is := m.atAPI(now); m.quietSince.After(is) {
		m.quietSince = is.Truncate(time.Second)
	}
}

// closeUntil closes the pool for a quarantine. What users read of it is by the clock of the API server, and is made once:
// the difference of the clocks is a little different with each answer, and a text that follows it is a write a second.
func (m *Memory) closeUntil(until time.Time) {
	m.QuarantineUntil, m.opensAt = until, m.atAPI(until).Round(time.Second)
}

// keepQuiet has the condition Ready say since when nothing has arrived: the next manager counts from there.
func (m *Memory) keepQuiet(ready *metav1.Condition) {
	if ready == nil || ready.Reason != v1alpha1.AdoptingReason || m.quietSince.IsZero() {
		return
	}
	if m.quietSince.After(ready.LastTransitionTime.Time) {
		ready.LastTransitionTime = metav1.NewTime(m.quietSince)
	}
}
