package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// deferredWorkPatience replaces term.TakeoverDelay for requests of blocks that a live holder may have tried without
// success, and for counts, which a live holder publishes later than what is urgent.
const deferredWorkPatience = time.Minute

// failedWritePatience replaces term.TakeoverDelay for claimants for which a write failed. A live holder retries that
// write and has no reason to write the pool meanwhile. A takeover would serve none of these claimants, and would
// change the message of each to the error of this manager.
const failedWritePatience = 10 * time.Minute

// MayTakeOver reports whether this manager should take over the pool now, or how long to wait (R5). elected reports
// whether it is the elected leader. shrinkGrace is how long a carved pool keeps an idle block. admission decides on
// claimants to serve, releasable on those to release. The answer affects only the amount of work, never safety.
func (m *PoolState) MayTakeOver(now time.Time, elected bool, shrinkGrace time.Duration, admission, releasable AdmissionFunc) (may bool, wait time.Duration) {
	defer func() { m.Term.TakeoverChecked = m.Term.TakeoverChecked || !may }()
	if now.Before(m.Term.Takeover.NotBefore) {
		return false, m.Term.Takeover.NotBefore.Sub(now)
	}
	state := m.Base.Pool.PoolStatus().Allocator
	if state == nil || !m.Term.TakeoverChecked || (elected && m.Term.Takeover.Backoff == 0) {
		return true, 0
	}
	room := m.Releases.CoolingRoomDelay(now)
	if room > 0 {
		admit := releasable
		releasable = func(c *Claimant) AdmissionResult {
			if m.Cooling.coolingPeriodFor(c) > 0 {
				return AdmissionResult{Wait: true, Quiet: true} // a live holder would not release it
			}
			return admit(c)
		}
	}
	patience := term.TakeoverDelay
	m.Carved.ResetShortfall()
	if work, writesFailed := m.hasTakeoverWork(state, admission, releasable); !work {
		needed, urgent := m.Growth.checkBlockWork(now, shrinkGrace)
		switch {
		case needed && urgent:
		case needed, m.Status.isCountOutdated():
			patience = deferredWorkPatience
		case writesFailed:
			patience = failedWritePatience
		default:
			m.Term.WorkPendingSince = time.Time{}
			return false, room
		}
	}
	if m.Term.WorkPendingSince.IsZero() {
		m.Term.WorkPendingSince = now
	}
	since := m.Term.WorkPendingSince
	if m.Term.ChangedAt.After(since) {
		since = m.Term.ChangedAt
	}
	if wait := patience - now.Sub(since); wait > 0 {
		return false, wait
	}
	return true, 0
}

// hasTakeoverWork reports whether the pool has work that a live holder would have done by now. Claimants that are
// paused, or that have the label of another manager, do not count. If there is no such work, writesFailed reports
// whether a live holder may have tried something without success: the status of a claimant reports a failed write.
// The shortfall of the pool is complete then.
func (m *PoolState) hasTakeoverWork(state *v1alpha1.AllocatorStatus, admission, releasable AdmissionFunc) (work, writesFailed bool) {
	work = m.Carved.canFinalizePool() || m.Status.isStatusOutdated()
	wants := func(c *Claimant) bool {
		rule := admission
		if c.Deleting {
			rule = releasable
		}
		wants := !rule(c).Wait
		failed := !c.Deleting && c.PublishedRefusal().isWriteFailure()
		writesFailed = writesFailed || (wants && failed)
		return wants && !failed
	}
	for _, g := range state.InFlight {
		c := m.Claimants.ByUID[types.UID(g.UID)]
		work = work || c == nil || wants(c)
	}
	for _, c := range m.Queues.ToWrite {
		work = work || wants(c)
	}
	if work {
		return true, writesFailed
	}
	m.Queues.Waiting.Scan(func(c *Claimant) bool {
		admitted := admission(c)
		switch {
		case admitted.Wait:
		case admitted.Refusal != nil:
			work = !c.HasPublished(*admitted.Refusal)
		case c.PublishedRefusal().isWriteFailure():
			writesFailed = true
		default:
			_, refusal, full := m.Planner.FindAvailable(c)
			if full && m.Quotas.IsWithinQuota(c) {
				m.Growth.addShortfall(c)
			}
			work = c.PublishedRefusal() == (Refusal{}) || (refusal == nil && m.Quotas.IsWithinQuota(c))
		}
		return !work
	})
	return work, writesFailed
}

// CompleteTakeover makes this manager the holder in a term that is on record, by a list that began after that and took
// so long. quarantine is how long a write of another manager may still be in flight.
func (m *PoolState) CompleteTakeover(found *ListedObjects, term int64, took time.Duration, now time.Time, quarantine time.Duration) {
	m.Term.ListDuration = took
	m.Quarantine.UpdateAdopting()
	m.RebuildLedger(found)
	m.Term.Holder, m.Term.TakeoverChecked, m.Term.Number = true, true, term
	for _, b := range found.Blocks {
		m.Carved.VerifyBlock(b.UID, b.Name, PoolTerm{PoolUID: m.Base.Pool.GetUID(), Term: term})
	}
	m.Quarantine.RestoreQuarantine(now, quarantine)
	m.Quarantine.QuarantineAfterOtherProvider(now, quarantine)
	m.Quarantine.ExtendQuarantine(now, quarantine)
	m.Quarantine.SoleWriterSince = now.Add(quarantine)
}

// LoseTerm ends the term of this manager, because another manager has written the pool. All plans based on the term
// are void.
func (m *PoolState) LoseTerm(now time.Time) {
	m.Term.Holder, m.Term.PendingCommit, m.Carved.shortfall = false, nil, carve.Shortfall{}
	m.Queues.RetryOverflow()
	m.Queues.requeueDeferredReleases()
	for uid, g := range m.Grants.ByClaimant {
		m.Space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceGrant, UID: uid})
		delete(m.Grants.ByClaimant, uid)
		if c := m.Claimants.ByUID[g.Owner.UID]; c != nil {
			m.Queues.QueueClaimant(c)
		}
	}
	m.Term.Takeover.Next(now, m.Term.ListDuration, m.Term.jitter)
	m.Term.ChangedAt, m.Term.WorkPendingSince = now, time.Time{}
}

// maxClockError is the maximum error of a converted time of the API server. Its clock is read from timestamps without
// fractions of a second, at the end of answers that take up to a second, and a recorded time loses its fraction.
const maxClockError = 3 * time.Second
