package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
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
	wait = m.Queues.NextRetryDelay(now)
	for uid, c := range m.Queues.ToWrite {
		if len(out.ServeClaimants)+len(out.ReleaseClaimants) >= free {
			break
		}
		switch g := m.Grants.ByClaimant[uid]; {
		case !c.IsDue(now):
		case c.Deleting:
			// A grant that the next commit ends blocks the release.
			if (g != nil && g.Confirmed) || releases(c).Wait {
				continue
			}
			// A deletion that was observed during the commit cools down first (R9): the next batch records it.
			if m.Cooling.NeedsCooling(m.Inventory.ReleaseFor(c), now) {
				wait = m.coolingStartDelay(wait, now)
				continue
			}
			out.ReleaseClaimants = append(out.ReleaseClaimants, uid)
		case m.Base.Pool == nil: // no claimant of a missing pool is served
		case g != nil && !g.IsWritable(now) && (!g.Confirmed || !c.Kind.IsConfirmed(m.Inventory, c)): // a commit comes first
		case !admission(c).Wait:
			out.ServeClaimants = append(out.ServeClaimants, uid)
		}
	}
	if idle := m.Queues.ActiveJobs+len(out.ServeClaimants)+len(out.ReleaseClaimants) == 0; idle && len(m.Queues.deferred.claimants) > 0 && !now.Before(m.Term.CommitAfter) {
		wait = term.MinWait(wait, time.Second) // the recorded releases wait now, so no job will end and trigger the next batch
	}
	for _, o := range m.Addresses.Orphans {
		if o.Busy || m.Addresses.KeepsManualAddress(o) || len(out.ResolveOrphans) >= free {
			continue
		}
		if m.Releases.OrphanNeedsCooling(o, now) {
			wait = m.coolingStartDelay(wait, now)
			continue
		}
		if d := m.Inventory.NextOrphanCheck(o, grace).Sub(now); d > 0 {
			wait = term.MinWait(wait, d)
			continue
		}
		out.ResolveOrphans = append(out.ResolveOrphans, o.Address)
	}
	return out, wait
}

// coolingStartDelay returns the shortest wait if the next batch can start more cooling periods; otherwise it returns
// wait.
func (m *PoolState) coolingStartDelay(wait time.Duration, now time.Time) time.Duration {
	if m.Releases.canStartCooling(now) {
		return time.Millisecond
	}
	return wait
}

// MaxJobs bounds the jobs of a pool that wait for a writer, and with them the memory that they take.
const MaxJobs = 256

// NextWakeDelay returns how long until the pool has something to do because time passes, at most wait; 0 means never.
// Times in the past are ignored: this reconcile has handled them, or they wait for something else.
func (m *PoolState) NextWakeDelay(now time.Time, wait time.Duration) time.Duration {
	waits := []time.Duration{m.Quarantine.Until.Sub(now), m.Term.CommitAfter.Sub(now), m.Quarantine.Arrival.RetryAfter.Sub(now)}
	there := m.Clock.apiServerTime(now)
	for _, rest := range m.Cooling.Periods.All() {
		waits = append(waits, rest.Until.Sub(there))
	}
	for _, d := range waits {
		wait = term.MinWait(wait, d)
	}
	if m.Overlap.OutstandingYieldMessage != "" {
		wait = term.MinWait(wait, time.Second)
	}
	return wait
}

// BeginReconcile resets the results of the previous reconcile.
func (m *PoolState) BeginReconcile() {
	m.Failures.nextTrialAt, m.Queues.NextReconcileAt = time.Time{}, time.Time{}
	clear(m.Conditions.Unpublished)
}

// EndReconcile returns how long until the pool is reconciled again: wait, or less if a claimant of a failing
// namespace is tried before that; 0 means never. It also records that time.
func (m *PoolState) EndReconcile(now time.Time, wait time.Duration) time.Duration {
	wait = term.MinWait(wait, m.Failures.nextTrialAt.Sub(now))
	if wait > 0 {
		m.Queues.NextReconcileAt = now.Add(wait)
	}
	return wait
}
