package grants

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// Releases starts and ends cooling periods (R9). It has no state: Cooling has the periods, and Queues has the
// claimants that wait for room for theirs.
type Releases struct {
	base      *BasePool
	space     *Space
	clock     *Clock
	cooling   *Cooling
	queues    *Queues
	term      *TermState
	inventory *Inventory
	addresses *Addresses
}

// releaseForOrphan returns the release of an IPAddress without a claim.
func (rs *Releases) releaseForOrphan(s *Orphan) Release {
	return Release{Range: rs.space.UnitForAddress(s.Address), Owner: s.ledgerOwner(), CoolingPeriod: rs.cooling.reuseGracePeriod()}
}

// CoolReleases starts the cooling periods of addresses that are about to be released, so that the next commit records
// them before the IPAddress loses our finalizer (R9). It starts no more than can be handed to jobs now, because a
// cooling period counts from its start. If the status has no room for more, the other releases wait and keep their
// addresses. It reports whether it started any.
func (rs *Releases) CoolReleases(now time.Time, releases AdmissionFunc) bool {
	if rs.cooling.reuseGracePeriod() == 0 {
		rs.retryUncooledOverflow()
		rs.queues.requeueDeferredReleases()
	}
	left := MaxJobs - rs.queues.ActiveJobs
	var due []deferredRelease
	for _, c := range rs.queues.ToWrite {
		if !c.Deleting {
			continue
		}
		switch e := rs.inventory.ReleaseFor(c); {
		case !rs.canCoolRelease(c, e, now, releases):
		case rs.cooling.NeedsCooling(e, now):
			due = append(due, deferredRelease{c, e.Range.From()})
		default:
			left-- // recorded, and about to be handed to a job
		}
	}
	rs.queues.deferReleases(due)
	noted := false
	for left > 0 {
		c := rs.queues.nextDeferredRelease()
		if c == nil {
			break
		}
		switch e := rs.inventory.ReleaseFor(c); {
		case !rs.canCoolRelease(c, e, now, releases) || !rs.cooling.NeedsCooling(e, now): // it may not be due any more
		case rs.StartCooling(e, now):
			noted = true
			left--
		default:
			rs.queues.AddToOverflow(c)
		}
	}
	rs.queues.Backlog = len(rs.queues.deferred.claimants) > 0
	for _, s := range rs.addresses.Orphans {
		if rs.OrphanNeedsCooling(s, now) {
			rests := rs.StartCooling(rs.releaseForOrphan(s), now)
			noted, rs.queues.Backlog = noted || rests, rs.queues.Backlog || !rests
		}
	}
	return noted
}

// canCoolRelease reports whether a deleted claimant may be released now, and its range needs a cooling period.
func (rs *Releases) canCoolRelease(c *Claimant, e Release, now time.Time, releases AdmissionFunc) bool {
	return e.CoolingPeriod != 0 && e.Range.IsValid() && c.IsDue(now) && !releases(c).Wait
}

// canStartCooling reports whether the next batch can start more cooling periods. If it cannot, the end of a cooling
// period, of a job or of a pause enqueues the pool.
func (rs *Releases) canStartCooling(now time.Time) bool {
	return !rs.queues.Backlog && !now.Before(rs.term.CommitAfter)
}

// StartCooling starts the cooling period of a release. The period ends by the clock of the API server, because the
// next manager may have to end it (ADR 49). It reports false if the status has no room for the entry.
func (rs *Releases) StartCooling(e Release, now time.Time) bool {
	rest := cooling.Entry{Range: e.Range, Until: cooling.EndOfCooling(rs.clock.apiServerTime(now), e.CoolingPeriod), Claim: NamespacedNameFromOwner(e.Owner)}
	if e.WithoutName {
		rest.Claim = types.NamespacedName{}
	}
	return rs.cooling.Periods.TryAdd(rest, cooling.StepForGrace(cmp.Or(rs.cooling.reuseGracePeriod(), e.CoolingPeriod)))
}

// ExpireCooling ends the cooling periods that are over. It also shortens each one that lasts longer than one that
// starts now, because its end was computed by a clock that was ahead, or with a longer grace period.
func (rs *Releases) ExpireCooling(now time.Time) {
	now = rs.clock.apiServerTime(now)
	for _, rest := range rs.cooling.Periods.All() {
		if !rest.Until.After(now) {
			rs.cooling.Periods.Remove(rest.Range)
			rs.queues.RetryOverflow()
			continue
		}
		grace := rs.cooling.maxCoolingPeriod(rest)
		if most := cooling.EndOfCooling(now, grace); rest.Until.After(most.Add(cooling.StepForGrace(grace) + maxClockError)) {
			rest.Until = most
			rs.cooling.Periods.ForceAdd(rest)
		}
	}
}

// onCoolingStarted adds the fact that keeps a cooling range from all claimants except the one that it is reserved
// for.
func (rs *Releases) onCoolingStarted(rest cooling.Entry) {
	rs.space.Ledger.AddFact(ledger.Fact{
		Key: ledgerKeyForRange(ledger.SourceCooling, rest.Range), Owner: ledger.Owner{Namespace: rest.Claim.Namespace, Name: rest.Claim.Name}, Range: rest.Range,
	})
	if len(rs.queues.Overflow) == 0 {
		return
	}
	// An adjacent range can share an entry with this one, so its release may fit now.
	for _, near := range []netip.Addr{rest.Range.From().Prev(), rest.Range.To().Next()} {
		if !near.IsValid() {
			continue
		}
		for _, h := range rs.space.Ledger.OverlappingFacts(netipx.IPRangeFrom(near, near)) {
			rs.queues.removeFromOverflow(h.Owner.UID)
		}
	}
}

// onCoolingEnded removes the fact about a cooling range: its period is over, or the claimant that it was reserved for
// has it again.
func (rs *Releases) onCoolingEnded(rest cooling.Entry) {
	rs.space.Ledger.RemoveFact(ledgerKeyForRange(ledger.SourceCooling, rest.Range))
	if rs.cooling.Periods.TextSize() < cooling.MaxTextSize/2 {
		rs.queues.RetryOverflow()
	}
}

// retryUncooledOverflow queues the waiting releases again that need no cooling period by the current spec of the
// pool.
func (rs *Releases) retryUncooledOverflow() {
	for uid, c := range rs.queues.Overflow {
		if rs.cooling.coolingPeriodFor(c) == 0 {
			rs.queues.removeFromOverflow(uid)
		}
	}
}

// CoolingRoomDelay returns how long until the status of the pool has room for another cooling entry, 0 if it has room
// now.
func (rs *Releases) CoolingRoomDelay(now time.Time) time.Duration {
	groups := rs.base.Pool.PoolStatus().Cooling
	if cooling.HasRoomForEntry(groups) {
		return 0
	}
	first := slices.MinFunc(groups, func(a, b v1alpha1.CoolingGroup) int { return a.Until.Compare(b.Until.Time) })
	return max(first.Until.Sub(rs.clock.apiServerTime(now)), 0)
}

// OrphanNeedsCooling is NeedsCooling for the address of an IPAddress that is proven to be an orphan.
func (rs *Releases) OrphanNeedsCooling(s *Orphan, now time.Time) bool {
	return s.ProvenOrphan && rs.cooling.NeedsCooling(rs.releaseForOrphan(s), now)
}
