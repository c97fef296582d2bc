package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Refusal is the reason why a claimant gets nothing now: a reason of the IPAM contract of Cluster API, and a message
// with what a user can do about it.
type Refusal struct{ Reason, Message string }

// AllocationFailed returns the refusal of a claimant that cannot be served as it is.
func AllocationFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyAllocationFailedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// PoolNotReady returns the refusal of a claimant whose pool cannot serve it.
func PoolNotReady(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolNotReadyReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// PlanGrants grants ranges to the claimants that wait, oldest first and at most room of them. It returns the number
// of new grants, and the refusals that are not in the status of their claimants yet. The failure of one claimant
// never delays another one.
func (m *PoolState) PlanGrants(now time.Time, room int, admission AdmissionFunc) (granted int, refused map[*Claimant]*Refusal) {
	refused = map[*Claimant]*Refusal{}
	m.cachedExhaustedRefusal = nil
	var grants []*Grant
	k := m.countInFlight()
	m.PendingClaimants.Scan(func(c *Claimant) bool {
		if len(grants) >= room && (room > 0 || k.stuck == 0) {
			return false // otherwise those that wait get the reason in their status
		}
		if !c.MayStartJob(now) {
			return true
		}
		admitted := admission(c)
		if admitted.Wait {
			return true
		}
		refusal := admitted.Refusal
		if refusal == nil {
			refusal = m.FailingNamespaceRefusal(c, now)
		}
		if refusal == nil {
			var may bool
			if refusal, may = m.checkInFlightLimit(c, k); refusal == nil && !may {
				return true
			}
		}
		var r netipx.IPRange
		if refusal == nil {
			r, refusal = m.ChooseRange(c)
		}
		if refusal != nil {
			if !c.HasPublished(*refusal) {
				refused[c] = refusal
			}
			return true
		}
		if c.ChildPool != nil {
			c.ObservedOwnerSeen = max(c.ObservedOwnerSeen, OwnerSeenAlive) // nothing is granted to a pool that does not exist
		}
		g := &Grant{Owner: c.Owner, Range: r}
		m.Cooling.Remove(r)
		m.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: c.Owner.UID}, Owner: c.Owner, Range: r})
		grants = append(grants, g)
		k.add(c.Owner.Namespace)
		m.RecordTrial(c, now)
		return true
	})
	for _, g := range grants {
		m.Grants[g.Owner.UID] = g
		m.QueueClaimant(m.Claimants[g.Owner.UID])
	}
	return len(grants), refused
}

// ChooseRange takes a range for a claimant: the one that is meant for it, or the best fit. It counts the claimant
// towards its quota. It returns the refusal if there is no range.
func (m *PoolState) ChooseRange(c *Claimant) (netipx.IPRange, *Refusal) {
	r, refusal, full := m.FindAvailable(c)
	switch limit, _ := m.quotaLimitFor(c); {
	case !full:
	case m.IsWithinQuota(c):
		m.addShortfall(c)
	default:
		return r, quotaExceeded(c, limit)
	}
	if refusal == nil {
		refusal = m.reserveQuota(c)
	}
	switch {
	case refusal != nil:
		return netipx.IPRange{}, refusal
	case r.IsValid():
		return r, nil
	}
	if r, ok := m.takeFreeRange(c); ok {
		return r, nil
	}
	return netipx.IPRange{}, m.exhaustedRefusal(c)
}

// checkAvailability returns the refusal for a claimant that could get nothing now, however others fare. It returns
// nil if there is a range for the claimant. Unlike ChooseRange it takes nothing, and does not add to the shortfall.
// full reports whether no free range fits the claimant.
func (m *PoolState) checkAvailability(c *Claimant) (refusal *Refusal, full bool) {
	_, refusal, full = m.FindAvailable(c)
	limit, limited := m.quotaLimitFor(c)
	if (refusal == nil || full) && limited && !c.countedInQuota && m.Quota.wouldRefuse(c.Cluster, limit, m.Key) {
		return quotaExceeded(c, limit), false
	}
	return refusal, full
}

// takeFreeRange takes the first free range that fits a claimant.
func (m *PoolState) takeFreeRange(c *Claimant) (netipx.IPRange, bool) {
	switch s := c.Kind.RequestedShape(m, c); {
	case s.PrefixLength > 0:
		return m.Ledger.TakePrefix(s.PrefixLength)
	case s.Count > 0:
		return m.Ledger.TakeBlock(uint64(s.Count))
	}
	return m.Ledger.TakeUnitInZones(m.zonesForClaimant(c))
}

// FindAvailable returns the range that is meant for a claimant, or why it cannot have that. If no range is meant for
// it, FindAvailable checks whether any free range fits; full reports that none does.
func (m *PoolState) FindAvailable(c *Claimant) (r netipx.IPRange, refusal *Refusal, full bool) {
	r, refusal = c.Kind.DesignatedRange(m, c)
	if refusal == nil && !r.IsValid() {
		refusal = m.noSubnetRefusal(c)
	}
	if refusal == nil && !r.IsValid() && !m.hasFreeRange(c) {
		return r, m.exhaustedRefusal(c), true
	}
	return r, refusal, false
}

// hasFreeRange reports whether a free range fits a claimant.
func (m *PoolState) hasFreeRange(c *Claimant) bool {
	switch s := c.Kind.RequestedShape(m, c); {
	case s.PrefixLength > 0:
		return m.Ledger.HasFreePrefix(s.PrefixLength)
	case s.Count > 0:
		return m.Ledger.HasFreeBlock(s.Count)
	}
	return m.Ledger.HasFreeInZones(m.zonesForClaimant(c))
}

// exhaustedRefusal returns the refusal for a claimant for which nothing is free. All claimants that request a single
// unit share one refusal, because thousands may wait.
func (m *PoolState) exhaustedRefusal(c *Claimant) *Refusal {
	if refusal := m.tooLargeRefusal(c); refusal != nil {
		return refusal
	}
	if c.Kind.RequestedShape(m, c) != (RangeShape{}) && !m.isCarved() {
		return c.Kind.ExhaustedRefusal(m, c)
	}
	if m.HasZones() {
		return m.zoneExhaustedRefusal(c)
	}
	if m.cachedExhaustedRefusal == nil {
		m.cachedExhaustedRefusal = m.growthRefusal()
	}
	if m.cachedExhaustedRefusal == nil {
		m.cachedExhaustedRefusal = c.Kind.ExhaustedRefusal(m, c)
	}
	return m.cachedExhaustedRefusal
}

// RecordedRangeFor returns the range r that a claimant has on record, or the refusal if it cannot have that. Users
// can write the annotation as well: a range that the claimant never had must be one that the pool allocates, and no
// other owner may have any of it (R1).
func (m *PoolState) RecordedRangeFor(c *Claimant, r netipx.IPRange) (netipx.IPRange, *Refusal) {
	if m.isCarved() && !m.isWithinOpenBlocks(r) {
		return netipx.IPRange{}, AllocationFailed("the annotation %s says %s, which is in no block that %s has; it is given again with that block, or create the claim again for another address",
			v1alpha1.AddressAnnotation, c.RecordAnnotation, m.Key)
	}
	if r != c.RecordedRange || (!c.StatusHasAddress && !m.Ledger.IsInSpace(r)) {
		return netipx.IPRange{}, AllocationFailed("the annotation %s says %s, which is not something that %s hands out; create this object again without the annotation",
			v1alpha1.AddressAnnotation, c.RecordAnnotation, m.Key)
	}
	h := m.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
		before := (h.Source == ledger.SourcePin && c.StatusHasAddress) || m.isNewerThanRecord(h, c) // it had the address before
		return !before && m.isBlocking(h, c.Owner) && !m.overridesRecord(c, h)
	})
	switch {
	case h == nil:
		return r, nil
	case h.Source == ledger.SourceObject && c.MayChangeAddress():
		return netipx.IPRange{}, nil // any other range will do
	}
	return netipx.IPRange{}, AllocationFailed("the address %s, which the annotation %s records for this object, is held by %s; "+
		"find out which of the two uses it, and delete the other", poolutil.ShowRange(r), v1alpha1.AddressAnnotation, m.DescribeFact(h))
}

// isNewerThanRecord reports whether a fact that blocks addresses for all claimants began after a claimant had its
// addresses, so that it does not count against that claimant. This is so for addresses that are excluded, or that
// drain, and for addresses that are held, either together with the ranges around them or for the name of the
// claimant, which has come back. It is not so for excluded addresses of a block of a carved pool: the addresses that
// the carved pool has granted are not known, so what another pool has of the block is not its own.
func (m *PoolState) isNewerThanRecord(h *ledger.Fact, c *Claimant) bool {
	if h.Source == ledger.SourceExcluded {
		return c.StatusHasAddress && c.ChildPool == nil
	}
	own := h.Owner.Name == "" || (h.Owner.Namespace == c.Owner.Namespace && h.Owner.Name == c.Owner.Name)
	return c.HasRecord() && (h.Source == ledger.SourceDraining || (h.Source == ledger.SourceHeld && own))
}

// MayChangeAddress reports whether a claimant may get another address than the one on record. If the in-cluster
// provider and this manager serve a pool in turns, that provider may have granted an address of ours that was not
// published yet: it does not read records.
func (c *Claimant) MayChangeAddress() bool { return c.UsesMirroredPool && !c.StatusHasAddress }

// hasRecordPriority reports whether the record of a claimant has priority over that of another one with the same
// address, as copies of a manifest have. The claimant that has the address in its status has priority, otherwise the
// older one.
func (c *Claimant) hasRecordPriority(other *Claimant) bool {
	if c.StatusHasAddress != other.StatusHasAddress {
		return c.StatusHasAddress
	}
	return isOlderClaimant(c, other)
}

// overridesRecord reports whether a fact is the record of a claimant over which c has priority.
func (m *PoolState) overridesRecord(c *Claimant, h *ledger.Fact) bool {
	other := m.Claimants[h.Owner.UID]
	return h.Source == ledger.SourceRecord && other != nil && c.hasRecordPriority(other)
}

// FindBlockingFact returns the first fact that keeps a range from an owner, or nil if there is none.
func (m *PoolState) FindBlockingFact(r netipx.IPRange, o ledger.Owner) *ledger.Fact {
	return m.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool { return m.isBlocking(h, o) })
}

// isBlocking reports whether a fact keeps its range from an owner.
func (m *PoolState) isBlocking(h *ledger.Fact, o ledger.Owner) bool {
	switch h.Source {
	case ledger.SourcePin:
		return h.Owner.Name != o.Name || !m.kindByName(o.Kind).Traits().AllowsPreAllocation
	case ledger.SourceCooling:
		return h.Owner.Namespace != o.Namespace || h.Owner.Name != o.Name
	case ledger.SourceExcluded:
		// Addresses that a carved pool uses outside its blocks do not keep the pool from getting that block back.
		c := m.Claimants[o.UID]
		return c == nil || c.ChildPool == nil || c.ChildPool.String() != h.Owner.Name
	case ledger.SourceRecord:
		// Any user can write a record. It does not keep a pre-allocated address from the name that the address is
		// for.
		c := m.Claimants[h.UID]
		return (h.Owner.UID != o.UID || o.UID == "") && (c == nil || c.HasFinalizer || c.StatusHasAddress || !m.isPinnedFor(h.Range, o))
	default:
		return h.Owner.UID != o.UID || o.UID == ""
	}
}

// isPinnedFor reports whether a range is pre-allocated to the name of an owner.
func (m *PoolState) isPinnedFor(r netipx.IPRange, o ledger.Owner) bool {
	if m.Layout == nil || !m.kindByName(o.Kind).Traits().AllowsPreAllocation {
		return false
	}
	pin, ok := m.Layout.PinForClaim(o.Name)
	return ok && r.Contains(pin)
}

// DescribeFact returns a description of the owner of a fact for messages.
func (m *PoolState) DescribeFact(h *ledger.Fact) string {
	owner := h.Owner.Name
	if h.Owner.Namespace != "" {
		owner = h.Owner.Namespace + "/" + h.Owner.Name
	}
	switch h.Source {
	case ledger.SourceObject, ledger.SourceRecord, ledger.SourceGrant:
		if a := m.kindByName(h.Owner.Kind).Traits().AddressKind; a != nil && h.Source == ledger.SourceObject && m.Claimants[h.Owner.UID] == nil {
			return a.KindName() + " " + owner + " (without a claim)"
		}
		return h.Owner.Kind + " " + owner
	case ledger.SourcePin:
		return "a preAllocation for claims named " + owner
	case ledger.SourceCooling:
		if owner == "" {
			return "its rest, until the time that status.cooling of the pool says"
		}
		return "its reuse grace period (released by " + owner + ")"
	case ledger.SourceHeld:
		if owner == "" {
			return "an entry of status.held"
		}
		return "an entry of status.held (last used by " + owner + ")"
	case ledger.SourceExcluded:
		return owner + ", which has it too"
	case ledger.SourceDraining:
		return "block " + owner + ", which is being given back"
	}
	return owner
}

// CheckGrantConflict returns an error that names the object that has the granted range of a claimant, or nil if none
// has. A restore can bring back a pool with grants whose addresses were granted to others since (R10).
func (m *PoolState) CheckGrantConflict(c *Claimant, g *Grant) error {
	if h := m.Ledger.FindOverlappingFact(g.Range, func(h *ledger.Fact) bool { return h.Source == ledger.SourceObject && m.isBlocking(h, c.Owner) }); h != nil {
		return fmt.Errorf("%s was granted to this %s, but %s has it; find out which of the two uses it, and delete the other", poolutil.ShowRange(g.Range), c.Owner.Kind, m.DescribeFact(h))
	}
	return nil
}

// DescribeFirstWithheld returns the end of a sentence that names the first address of a range that the pool does not
// allocate, and why. It is empty if there is none.
func (m *PoolState) DescribeFirstWithheld(r netipx.IPRange) string {
	if m.Layout == nil {
		return ""
	}
	a, withheld := poolspec.FirstWithheldAddress(m.Layout, r)
	if !withheld {
		return ""
	}
	return fmt.Sprintf(", such as %s, which is %s", a, poolspec.WithheldReason(m.BasePool.PoolSpec(), m.Layout, a))
}
