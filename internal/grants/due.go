package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// DueWrites are the writes that are due now for single claimants and IPAddresses.
type DueWrites struct {
	// ServeClaimants and ReleaseClaimants are claimants; ResolveOrphans are IPAddresses without one.
	ServeClaimants, ReleaseClaimants []types.UID
	ResolveOrphans                   []*Address
}

// ListDueWrites returns the writes of a pool that are due: at most free claimants, and at most free orphans. It also
// returns how long until the next write that has to wait is due, 0 if none does. It changes nothing. admission
// decides on the claimants to serve, and releases on those to release.
func (m *PoolState) ListDueWrites(now time.Time, free int, grace time.Duration, admission, releases AdmissionFunc) (out DueWrites, wait time.Duration) {
	wait = m.NextRetryDelay(now)
	for uid, c := range m.ClaimantsToWrite {
		if len(out.ServeClaimants)+len(out.ReleaseClaimants) >= free {
			break
		}
		switch g := m.Grants[uid]; {
		case !c.MayStartJob(now):
		case c.Deleting:
			// A grant that the next commit ends blocks the release.
			if (g != nil && g.Confirmed) || releases(c).Wait {
				continue
			}
			// A deletion that was observed during the commit cools down first (R9): the next batch records it.
			if m.NeedsCooling(m.ReleaseFor(c), now) {
				wait = m.coolingStartDelay(wait, now)
				continue
			}
			out.ReleaseClaimants = append(out.ReleaseClaimants, uid)
		case m.BasePool == nil: // no claimant of a missing pool is served
		case g != nil && !g.IsWritable(now) && (!g.Confirmed || !c.Kind.IsConfirmed(m, c)): // a commit comes first
		case !admission(c).Wait:
			out.ServeClaimants = append(out.ServeClaimants, uid)
		}
	}
	if idle := m.ActiveJobs+len(out.ServeClaimants)+len(out.ReleaseClaimants) == 0; idle && len(m.deferredReleases.claimants) > 0 && !now.Before(m.CommitAfter) {
		wait = MinWait(wait, time.Second) // the recorded releases wait now, so no job will end and trigger the next batch
	}
	for _, o := range m.Orphans {
		if o.Busy || m.KeepsManualAddress(o) || len(out.ResolveOrphans) >= free {
			continue
		}
		if m.OrphanNeedsCooling(o, now) {
			wait = m.coolingStartDelay(wait, now)
			continue
		}
		if d := m.NextOrphanCheck(o, grace).Sub(now); d > 0 {
			wait = MinWait(wait, d)
			continue
		}
		out.ResolveOrphans = append(out.ResolveOrphans, o.Address)
	}
	return out, wait
}

// coolingStartDelay returns the shortest wait if the next batch can start more cooling periods; otherwise it returns
// wait.
func (m *PoolState) coolingStartDelay(wait time.Duration, now time.Time) time.Duration {
	if m.canStartCooling(now) {
		return time.Millisecond
	}
	return wait
}

// MaxJobs bounds the jobs of a pool that wait for a writer, and with them the memory that they take.
const MaxJobs = 256

// EndJob records that a job has ended. again is when a failed job is retried, zero if it did not fail. EndJob reports
// whether the pool should be reconciled: there is room for more jobs, or the pool would not be reconciled before the
// retry anyway. Many jobs fail while an obstacle lasts: an idle pool is enqueued for the next retry only, not for
// each failure.
func (m *PoolState) EndJob(again time.Time) (wake bool) {
	m.ActiveJobs--
	switch {
	case m.ActiveJobs == 0, m.ActiveJobs == MaxJobs/4:
		return true
	case again.IsZero():
		return false
	}
	return m.NextReconcileAt.IsZero() || again.Before(m.NextReconcileAt)
}

// NextRetryDelay returns how long until the next claimant whose last attempt failed is retried, 0 if there is none.
func (m *PoolState) NextRetryDelay(now time.Time) time.Duration {
	var wait time.Duration
	for uid := range m.RetryingClaimants {
		if c := m.Claimants[uid]; c != nil && c.RetryAt.After(now) {
			wait = MinWait(wait, c.RetryAt.Sub(now))
		} else {
			delete(m.RetryingClaimants, uid)
		}
	}
	return wait
}

// NextWakeDelay returns how long until the pool has something to do because time passes, at most wait; 0 means never.
// Times in the past are ignored: this reconcile has handled them, or they wait for something else.
func (m *PoolState) NextWakeDelay(now time.Time, wait time.Duration) time.Duration {
	waits := []time.Duration{m.QuarantineUntil.Sub(now), m.CommitAfter.Sub(now), m.Arrival.RetryAfter.Sub(now)}
	there := m.apiServerTime(now)
	for _, rest := range m.Cooling.All() {
		waits = append(waits, rest.Until.Sub(there))
	}
	for _, d := range waits {
		if d > 0 {
			wait = MinWait(wait, d)
		}
	}
	if m.OutstandingYieldMessage != "" {
		wait = MinWait(wait, time.Second)
	}
	return wait
}

// BeginReconcile resets the results of the previous reconcile.
func (m *PoolState) BeginReconcile() {
	m.nextTrialAt, m.NextReconcileAt = time.Time{}, time.Time{}
	clear(m.PendingConditions)
}

// EndReconcile returns how long until the pool is reconciled again: wait, or less if a claimant of a failing
// namespace is tried before that; 0 means never. It also records that time.
func (m *PoolState) EndReconcile(now time.Time, wait time.Duration) time.Duration {
	if d := m.nextTrialAt.Sub(now); d > 0 {
		wait = MinWait(wait, d)
	}
	if wait > 0 {
		m.NextReconcileAt = now.Add(wait)
	}
	return wait
}

// MinWait returns the shorter of two waits, where 0 means no wait.
func MinWait(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}
