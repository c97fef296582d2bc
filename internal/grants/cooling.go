package grants

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// InUseCoolingPeriod is the minimum cooling period of an address for which a foreign machine answers (P7).
const InUseCoolingPeriod = time.Hour

// Release is a range that an owner releases, and how it cools down.
type Release struct {
	Range netipx.IPRange
	Owner ledger.Owner
	// CoolingPeriod is how long the range cools down, 0 if it does not. WithoutName reports whether the range cools
	// down without a name, so that not even its last owner gets it back early.
	CoolingPeriod time.Duration
	WithoutName   bool
}

// ReleaseFor returns the release of a claimant.
func (m *PoolState) ReleaseFor(c *Claimant) Release {
	return Release{m.ReleasableRange(c), c.Owner, m.coolingPeriodFor(c), c.UsedByOthers}
}

// coolingPeriodFor returns how long the released range of a claimant cools down, 0 if it does not.
func (m *PoolState) coolingPeriodFor(c *Claimant) time.Duration {
	if c.UsedByOthers && m.BasePool != nil {
		return max(m.reuseGracePeriod(), InUseCoolingPeriod)
	}
	return m.reuseGracePeriod()
}

// releaseForOrphan returns the release of an IPAddress without a claim.
func (m *PoolState) releaseForOrphan(s *Orphan) Release {
	return Release{Range: m.UnitForAddress(s.Address), Owner: s.ledgerOwner(), CoolingPeriod: m.reuseGracePeriod()}
}

// CoolReleases starts the cooling periods of addresses that are about to be released, so that the next commit records
// them before the IPAddress loses our finalizer (R9). It starts no more than can be handed to jobs now, because a
// cooling period counts from its start. If the status has no room for more, the other releases wait and keep their
// addresses. It reports whether it started any.
func (m *PoolState) CoolReleases(now time.Time, releases AdmissionFunc) bool {
	if m.reuseGracePeriod() == 0 {
		m.retryUncooledOverflow()
		m.requeueDeferredReleases()
	}
	left := MaxJobs - m.ActiveJobs
	var due []deferredRelease
	for _, c := range m.ClaimantsToWrite {
		if !c.Deleting {
			continue
		}
		switch e := m.ReleaseFor(c); {
		case !m.canCoolRelease(c, e, now, releases):
		case m.NeedsCooling(e, now):
			due = append(due, deferredRelease{c, e.Range.From()})
		default:
			left-- // recorded, and about to be handed to a job
		}
	}
	m.deferReleases(due)
	noted := false
	for left > 0 {
		c := m.nextDeferredRelease()
		if c == nil {
			break
		}
		switch e := m.ReleaseFor(c); {
		case !m.canCoolRelease(c, e, now, releases) || !m.NeedsCooling(e, now): // it may not be due any more
		case m.StartCooling(e, now):
			noted = true
			left--
		default:
			m.AddToOverflow(c)
		}
	}
	m.CoolingBacklog = len(m.deferredReleases.claimants) > 0
	for _, s := range m.Orphans {
		if m.OrphanNeedsCooling(s, now) {
			rests := m.StartCooling(m.releaseForOrphan(s), now)
			noted, m.CoolingBacklog = noted || rests, m.CoolingBacklog || !rests
		}
	}
	return noted
}

// canCoolRelease reports whether a deleted claimant may be released now, and its range needs a cooling period.
func (m *PoolState) canCoolRelease(c *Claimant, e Release, now time.Time, releases AdmissionFunc) bool {
	return e.CoolingPeriod != 0 && e.Range.IsValid() && c.MayStartJob(now) && !releases(c).Wait
}

// canStartCooling reports whether the next batch can start more cooling periods. If it cannot, the end of a cooling
// period, of a job or of a pause enqueues the pool.
func (m *PoolState) canStartCooling(now time.Time) bool {
	return !m.CoolingBacklog && !now.Before(m.CommitAfter)
}

// StartCooling starts the cooling period of a release. The period ends by the clock of the API server, because the
// next manager may have to end it (ADR 49). It reports false if the status has no room for the entry.
func (m *PoolState) StartCooling(e Release, now time.Time) bool {
	rest := cooling.Entry{Range: e.Range, Until: cooling.EndOfCooling(m.apiServerTime(now), e.CoolingPeriod), Claim: NamespacedNameFromOwner(e.Owner)}
	if e.WithoutName {
		rest.Claim = types.NamespacedName{}
	}
	return m.Cooling.TryAdd(rest, cooling.StepForGrace(cmp.Or(m.reuseGracePeriod(), e.CoolingPeriod)))
}

// ExpireCooling ends the cooling periods that are over. It also shortens each one that lasts longer than one that
// starts now, because its end was computed by a clock that was ahead, or with a longer grace period.
func (m *PoolState) ExpireCooling(now time.Time) {
	now = m.apiServerTime(now)
	for _, rest := range m.Cooling.All() {
		if !rest.Until.After(now) {
			m.Cooling.Remove(rest.Range)
			m.RetryOverflow()
			continue
		}
		grace := m.maxCoolingPeriod(rest)
		if most := cooling.EndOfCooling(now, grace); rest.Until.After(most.Add(cooling.StepForGrace(grace) + maxClockError)) {
			rest.Until = most
			m.Cooling.ForceAdd(rest)
		}
	}
}

// maxCoolingPeriod returns how long an entry may cool down at most. An entry without a name may be that of an address
// in use by a foreign machine (P7); its text does not show that, so the longer period applies.
func (m *PoolState) maxCoolingPeriod(rest cooling.Entry) time.Duration {
	grace := m.reuseGracePeriod()
	if grace == 0 || rest.Claim.Name == "" {
		return max(grace, InUseCoolingPeriod)
	}
	return grace
}

// onCoolingStarted adds the fact that keeps a cooling range from all claimants except the one that it is reserved
// for.
func (m *PoolState) onCoolingStarted(rest cooling.Entry) {
	m.Ledger.AddFact(ledger.Fact{
		Key: ledgerKeyForRange(ledger.SourceCooling, rest.Range), Owner: ledger.Owner{Namespace: rest.Claim.Namespace, Name: rest.Claim.Name}, Range: rest.Range,
	})
	if len(m.CoolingOverflow) == 0 {
		return
	}
	// An adjacent range can share an entry with this one, so its release may fit now.
	for _, near := range []netip.Addr{rest.Range.From().Prev(), rest.Range.To().Next()} {
		if !near.IsValid() {
			continue
		}
		for _, h := range m.Ledger.OverlappingFacts(netipx.IPRangeFrom(near, near)) {
			m.removeFromOverflow(h.Owner.UID)
		}
	}
}

// onCoolingEnded removes the fact about a cooling range: its period is over, or the claimant that it was reserved for
// has it again.
func (m *PoolState) onCoolingEnded(rest cooling.Entry) {
	m.Ledger.RemoveFact(ledgerKeyForRange(ledger.SourceCooling, rest.Range))
	if m.Cooling.TextSize() < cooling.MaxTextSize/2 {
		m.RetryOverflow()
	}
}

// AddToOverflow lets the release of a claimant wait until the status has room for its cooling period. No job works on
// the claimant until then.
func (m *PoolState) AddToOverflow(c *Claimant) {
	m.CoolingOverflow[c.Owner.UID] = c
	delete(m.ClaimantsToWrite, c.Owner.UID)
}

func (m *PoolState) removeFromOverflow(uid types.UID) {
	if c := m.CoolingOverflow[uid]; c != nil {
		delete(m.CoolingOverflow, uid)
		m.ClaimantsToWrite[uid] = c
	}
}

// retryUncooledOverflow queues the waiting releases again that need no cooling period by the current spec of the
// pool.
func (m *PoolState) retryUncooledOverflow() {
	for uid, c := range m.CoolingOverflow {
		if m.coolingPeriodFor(c) == 0 {
			m.removeFromOverflow(uid)
		}
	}
}

// RetryOverflow queues all releases again that wait for room in the status.
func (m *PoolState) RetryOverflow() {
	for uid := range m.CoolingOverflow {
		m.removeFromOverflow(uid)
	}
}

// CoolingRoomDelay returns how long until the status of the pool has room for another cooling entry, 0 if it has room
// now.
func (m *PoolState) CoolingRoomDelay(now time.Time) time.Duration {
	groups := m.BasePool.PoolStatus().Cooling
	if cooling.HasRoomForEntry(groups) {
		return 0
	}
	first := slices.MinFunc(groups, func(a, b v1alpha1.CoolingGroup) int { return a.Until.Compare(b.Until.Time) })
	return max(first.Until.Sub(m.apiServerTime(now)), 0)
}

// FindCoolingRange returns a range that cools down for the name of an owner, fits, and is not blocked by another
// fact. It is not valid if there is none.
func (m *PoolState) FindCoolingRange(o ledger.Owner, fits func(netipx.IPRange) bool) netipx.IPRange {
	for _, r := range m.Cooling.RangesForClaim(NamespacedNameFromOwner(o)) {
		if fits(r) && m.Ledger.IsInSpace(r) && m.FindBlockingFact(r, o) == nil {
			return r
		}
	}
	return netipx.IPRange{}
}

// NeedsCooling reports whether the cooling period of a release still has to be recorded: none is recorded, or at most
// half of it is left. A range that another owner has as well does not become free, so it needs none.
func (m *PoolState) NeedsCooling(e Release, now time.Time) bool {
	if e.CoolingPeriod == 0 || !e.Range.IsValid() {
		return false
	}
	now = m.apiServerTime(now)
	return m.Ledger.FindOverlappingFact(e.Range, func(h *ledger.Fact) bool {
		switch {
		case !h.Range.Contains(e.Range.From()) || !h.Range.Contains(e.Range.To()):
			return false
		case h.Source == ledger.SourceCooling:
			rest := m.coolingEntryFor(h)
			return rest.Until.Sub(now) > e.CoolingPeriod/2 && (!e.WithoutName || rest.Claim.Name == "")
		}
		return h.Source.IsInUse() && h.Owner.UID != e.Owner.UID
	}) == nil
}

// coolingEntryFor returns the cooling entry that a fact of the ledger belongs to.
func (m *PoolState) coolingEntryFor(h *ledger.Fact) cooling.Entry {
	rest, _ := m.Cooling.Get(h.Range)
	return rest
}

// OrphanNeedsCooling is NeedsCooling for the address of an IPAddress that is proven to be an orphan.
func (m *PoolState) OrphanNeedsCooling(s *Orphan, now time.Time) bool {
	return s.ProvenOrphan && m.NeedsCooling(m.releaseForOrphan(s), now)
}

// reuseGracePeriod returns how long an address cools down before another claimant gets it, 0 if it does not.
func (m *PoolState) reuseGracePeriod() time.Duration {
	if m.BasePool == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(m.BasePool.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// ReleasableRange returns the range that becomes free with the end of a claimant.
func (m *PoolState) ReleasableRange(c *Claimant) netipx.IPRange { return c.Kind.ReleasableRange(m, c) }

// UnitForAddress returns the unit of the pool that an IPAddress has. It is not valid if the IPAddress has no valid
// address.
func (m *PoolState) UnitForAddress(addr *Address) netipx.IPRange {
	if !addr.IP.IsValid() {
		return netipx.IPRange{}
	}
	return m.Ledger.UnitRange(addr.IP)
}

// IsFinalizerHeld reports whether only finalizers of other controllers keep the IPAddress of a deleted claim. There
// is nothing left for this manager to do then, and the watch shows when the IPAddress is gone.
func (m *PoolState) IsFinalizerHeld(c *Claimant) bool {
	addr := m.AddressFor(c)
	return addr != nil && addr.ClaimantUID == c.Owner.UID && addr.Deleting && !addr.HasFinalizer && len(addr.OtherFinalizers) > 0
}
