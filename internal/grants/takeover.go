package grants

import (
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// blockRequestPatience replaces term.TakeoverDelay for requests that a live holder may have tried without success.
const blockRequestPatience = time.Minute

// failedWritePatience replaces term.TakeoverDelay for claimants for which a write failed. A live holder retries that
// write and has no reason to write the pool meanwhile. A takeover would serve none of these claimants, and would
// change the message of each to the error of this manager.
const failedWritePatience = 10 * time.Minute

// MayTakeOver reports whether this manager should take over the pool now, or how long to wait (R5). elected reports
// whether it is the elected leader. shrinkGrace is how long a carved pool keeps an idle block. admission decides on
// claimants to serve, releasable on those to release. The answer affects only the amount of work, never safety.
func (m *PoolState) MayTakeOver(now time.Time, elected bool, shrinkGrace time.Duration, admission, releasable AdmissionFunc) (bool, time.Duration) {
	if now.Before(m.NotBefore) {
		return false, m.NotBefore.Sub(now)
	}
	state := m.BasePool.PoolStatus().Allocator
	if state == nil || !m.TakeoverChecked || (elected && m.Backoff == 0) {
		return true, 0
	}
	room := m.CoolingRoomDelay(now)
	if room > 0 {
		admit := releasable
		releasable = func(c *Claimant) AdmissionResult {
			if m.coolingPeriodFor(c) > 0 {
				return AdmissionResult{Wait: true, Quiet: true} // a live holder would not release it
			}
			return admit(c)
		}
	}
	patience := term.TakeoverDelay
	m.ResetShortfall()
	if work, writesFailed := m.hasTakeoverWork(state, admission, releasable); !work {
		at, soon := m.checkBlockWork(now, shrinkGrace)
		if !at && !writesFailed {
			m.WorkPendingSince = time.Time{}
			return false, room
		}
		switch {
		case !at:
			patience = failedWritePatience
		case !soon:
			patience = blockRequestPatience
		}
	}
	if m.WorkPendingSince.IsZero() {
		m.WorkPendingSince = now
	}
	since := m.WorkPendingSince
	if m.ChangedAt.After(since) {
		since = m.ChangedAt
	}
	if wait := patience - now.Sub(since); wait > 0 {
		return false, wait
	}
	return true, 0
}

// hasTakeoverWork reports whether the pool has work that a live holder would have done by now. Claimants that are
// paused, or that have the label of another manager, do not count. If there is no such work, writesFailed reports whether a
// live holder may have tried something without success: the status of a claimant reports a failed write. The
// shortfall of the pool is complete then.
func (m *PoolState) hasTakeoverWork(state *v1alpha1.AllocatorStatus, admission, releasable AdmissionFunc) (work, writesFailed bool) {
	work = m.canFinalizePool() || m.isStatusOutdated()
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
		c := m.Claimants[types.UID(g.UID)]
		work = work || c == nil || wants(c)
	}
	for _, c := range m.ClaimantsToWrite {
		work = work || wants(c)
	}
	if work {
		return true, writesFailed
	}
	m.PendingClaimants.Scan(func(c *Claimant) bool {
		admitted := admission(c)
		switch {
		case admitted.Wait:
		case admitted.Refusal != nil:
			work = !c.HasPublished(*admitted.Refusal)
		case c.PublishedRefusal().isWriteFailure():
			writesFailed = true
		default:
			_, refusal, full := m.FindAvailable(c)
			if full && m.IsWithinQuota(c) {
				m.addShortfall(c)
			}
			work = c.PublishedRefusal() == (Refusal{}) || (refusal == nil && m.IsWithinQuota(c))
		}
		return !work
	})
	return work, writesFailed
}

// canFinalizePool reports whether the pool is being deleted, and no known object has any of its addresses. As long as
// one has, another holder would have nothing to do.
func (m *PoolState) canFinalizePool() bool {
	return m.BasePool.GetDeletionTimestamp() != nil && m.Ledger.Counts().Owners == 0 && !m.HasBlocks()
}

// isStatusOutdated reports whether the status is of an older spec than the pool has, or of other overlapping pools.
func (m *PoolState) isStatusOutdated() bool {
	overlaps := meta.IsStatusConditionTrue(m.BasePool.GetConditions(), v1alpha1.OverlapCondition)
	return m.BasePool.PoolStatus().ObservedGeneration != m.BasePool.GetGeneration() || overlaps != (m.OverlapMessage != "") || m.YieldPending
}

// LoseTerm ends the term of this manager, because another manager has written the pool. All plans based on the term
// are void.
func (m *PoolState) LoseTerm(now time.Time) {
	m.Holder, m.PendingCommit, m.Carved.shortfall = false, nil, carve.Shortfall{}
	m.RetryOverflow()
	m.requeueDeferredReleases()
	for uid, g := range m.Grants {
		m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceGrant, UID: uid})
		delete(m.Grants, uid)
		if c := m.Claimants[g.Owner.UID]; c != nil {
			m.QueueClaimant(c)
		}
	}
	m.Next(now, m.ListDuration, m.jitter)
	m.ChangedAt, m.WorkPendingSince = now, time.Time{}
}

// RebuildLedger builds the ledger from a list, from newer observations of the watches, and from the grants in flight.
func (m *PoolState) RebuildLedger(found *ListedObjects) {
	status := m.BasePool.PoolStatus()
	space, unit := m.grantableSpace()
	m.Ledger = ledger.New(space, unit)
	m.Ledger.SetOrder(m.allocationOrder())
	m.loadReleaseOrder(status)
	m.Ledger.SetCountedRanges(m.OpenBlockRanges())
	m.Carved.drainedPrefixes = nil
	for _, b := range m.Carved.Blocks {
		b.verifiedTerm = PoolTerm{} // a restored pool counts its terms from the beginning again
	}
	m.setDrainedRanges(carve.Decision{})
	m.excluded, m.unresolvedGrants, m.fullyListed = map[netipx.IPRange]pools.Key{}, nil, true
	m.Arrival.NeedsListing = false
	m.addPreAllocations()
	for uid := range m.Grants {
		delete(m.Grants, uid)
	}
	m.ObserveListed(found)
	for _, c := range m.Claimants {
		m.UpdateClaimantFacts(c)
	}
	for _, addr := range m.Addresses {
		if addr.IP.IsValid() {
			m.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceObject, UID: addr.UID}, Owner: addr.ledgerOwner(), Range: m.Ledger.UnitRange(addr.IP)})
		}
	}
	for _, g := range InFlightFromStatus(status) {
		r, err := poolutil.ParseRange(g.First + "-" + g.Last)
		if err != nil {
			continue
		}
		owner := ledger.Owner{Kind: m.kindByName(g.Kind).Traits().Name, Namespace: g.Namespace, Name: g.Name, UID: types.UID(g.UID)}
		if c := m.Claimants[owner.UID]; c != nil && c.MayChangeAddress() && m.hasOtherAddress(r, owner) {
			continue
		}
		m.Grants[owner.UID] = &Grant{Owner: owner, Range: r, Committed: true, Inherited: true}
		m.confirmGrant(owner.UID) // the list began after the fence, so it is proof (R6)
		m.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: owner.UID}, Owner: owner, Range: r})
	}
	m.LoadCoolingAndHeld(status)
	for _, c := range m.Claimants {
		m.QueueClaimant(c)
	}
	for _, addr := range m.Addresses {
		m.classifyAddress(addr)
	}
	if len(m.Orphans) == 0 {
		m.Orphans = map[types.NamespacedName]*Orphan{} // before the claims arrived, all were orphans; maps do not shrink
	}
}

// hasOtherAddress reports whether an IPAddress of another owner has some of a range.
func (m *PoolState) hasOtherAddress(r netipx.IPRange, o ledger.Owner) bool {
	return m.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.SourceObject && m.isBlocking(h, o)
	}) != nil
}

// LoadCoolingAndHeld loads the cooling and the held ranges from the status of the pool, because an operator may have
// removed an entry.
func (m *PoolState) LoadCoolingAndHeld(status *v1alpha1.NetworkPoolStatus) {
	for _, rest := range m.Cooling.All() {
		m.Cooling.Remove(rest.Range)
	}
	for r := range m.heldRanges {
		m.removeHeldRange(r)
	}
	rests, _ := cooling.ParseGroups(status.Cooling) // unreadable text was not written by a manager
	for _, rest := range rests {
		m.Cooling.ForceAdd(rest)
	}
	m.RetryOverflow()
	for _, h := range status.Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			m.AddHeldRange(r, h)
		}
	}
	m.holdAllMoved()
}

// RestoreQuarantine starts the quarantine if the status records no allocator, but addresses are in use or there was
// an allocator (R10). The condition Ready carries the quarantine over a restart.
func (m *PoolState) RestoreQuarantine(now time.Time, length time.Duration) {
	if c := m.AdoptingCondition(); c != nil && (c.Status == metav1.ConditionFalse || m.Ledger.Counts().Owners > 0) {
		m.setQuarantineEnd(m.quarantineStart(c, now).Add(length))
	}
}

// maxClockError is the maximum error of a converted time of the API server. Its clock is read from timestamps without
// fractions of a second, at the end of answers that take up to a second, and a recorded time loses its fraction.
const maxClockError = 3 * time.Second

// apiServerTime converts a time to the clock of the API server. All times that the next manager counts from are
// recorded by that clock, because its own clock and that of its predecessor may differ by any amount (ADR 49).
func (m *PoolState) apiServerTime(at time.Time) time.Time {
	if m.ToAPIServerTime == nil {
		return at
	}
	return m.ToAPIServerTime(at)
}

// fromAPIServerTime converts a time of the API server to the clock of this manager. It returns now for a future time,
// so that a clock that was ahead when the time was recorded does not close the pool for longer.
func (m *PoolState) fromAPIServerTime(at, now time.Time) time.Time {
	return now.Add(-max(m.apiServerTime(now).Sub(at), 0))
}

// quarantineStart returns the start of a recorded quarantine by the clock of this manager, at most now. Clock errors
// never make the quarantine shorter.
func (m *PoolState) quarantineStart(c *metav1.Condition, now time.Time) time.Time {
	return m.fromAPIServerTime(c.LastTransitionTime.Add(maxClockError), now)
}

// SetPoolCondition sets a condition of a pool. A quarantine counts from its own start, and not from an earlier reason
// with the same status, so the transition time changes with the reason Adopting.
func SetPoolCondition(all *[]metav1.Condition, c metav1.Condition) {
	if old := meta.FindStatusCondition(*all, c.Type); c.Reason == v1alpha1.AdoptingReason && old != nil && old.Reason != c.Reason {
		meta.RemoveStatusCondition(all, c.Type)
	}
	meta.SetStatusCondition(all, c)
}

// AdoptingCondition returns the condition Ready if it shows a quarantine that is not over, nil otherwise.
func (m *PoolState) AdoptingCondition() *metav1.Condition {
	c := meta.FindStatusCondition(m.BasePool.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Reason != v1alpha1.AdoptingReason {
		return nil
	}
	return c
}
