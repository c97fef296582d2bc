package grants

import (
	"fmt"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// ObserveClaimant records a claimant as an event, a list or the answer to a write of this manager returned it. It
// reports whether the pool has something to do.
func (m *PoolState) ObserveClaimant(c *Claimant) bool {
	if m.Has(c.Owner.UID) || !m.resolveNameOwner(c) {
		return false
	}
	old := m.Claimants[c.Owner.UID]
	if old != nil {
		if !term.IsNewerVersion(c.ResourceVersion, old.ResourceVersion) {
			return false
		}
		c.Busy, c.Failures, c.RetryAt, c.LostAddress, c.servingBlocked = old.Busy, old.Failures, old.RetryAt, old.LostAddress, old.servingBlocked
		// A record never changes while the claim lives (R1): the first one stays valid, whatever overwrites it.
		// clusterctl, for example, replaces all annotations on the source of a move. Only a record with our finalizer
		// counts; an annotation that a user wrote before is none.
		if old.HasRecord() {
			c.RecordedRange = old.RecordedRange
		}
		if c.MachineLookup.hasSameOwners(old.MachineLookup) {
			c.MachineLookup = old.MachineLookup
		}
		c.Kind.CarryOverState(c, old)
		if c.countedInQuota = old.countedInQuota; c.countedInQuota && c.Cluster != old.Cluster {
			m.addQuotaUsage(old, -1)
			c.countedInQuota = false
		}
		m.dequeueClaimant(old)
		m.indexByOwner(old, false)
	} else {
		m.claimantCounts[c.Kind]++
		if c.HasRecord() {
			m.recordArrival(c.Created)
		}
	}
	m.Claimants[c.Owner.UID] = c
	m.indexByOwner(c, true)
	if c.Moved {
		m.movingClaimants[c.Owner.UID] = c
	} else {
		delete(m.movingClaimants, c.Owner.UID)
	}
	m.restoreRecord(c)
	m.UpdateClaimantFacts(c)
	m.holdMovedClaimant(c)
	m.confirmGrant(c.Owner.UID)
	m.requeueOverlapping(c)
	if c.Kind.Traits().AddressKind != nil {
		m.ClaimantsByName[NamespacedNameFromOwner(c.Owner)] = c
		if a := m.AddressFor(c); a != nil {
			m.classifyAddress(m.assignClaimant(a))
			m.confirmGrant(c.Owner.UID)
		}
	}
	return m.QueueClaimant(c) || c.Moved
}

// resolveNameOwner reports whether a claimant owns its name, for kinds whose address objects belong to claimants by
// name. Of two claimants of one name, the one with the later resource version proves the end of the other (R7).
func (m *PoolState) resolveNameOwner(c *Claimant) bool {
	known := m.ClaimantsByName[NamespacedNameFromOwner(c.Owner)]
	if c.Kind.Traits().AddressKind == nil || known == nil || known.Owner.UID == c.Owner.UID {
		return true
	}
	if term.IsNewerVersion(c.ResourceVersion, known.ResourceVersion) {
		m.ForgetClaimant(known.Owner.UID)
		return true
	}
	m.ForgetClaimant(c.Owner.UID)
	return false
}

// UpdateClaimantFacts updates the facts about the range that a claimant has on record, and about the range in its
// status.
func (m *PoolState) UpdateClaimantFacts(c *Claimant) {
	record, shown := c.Kind.TakenRanges(m, c)
	m.setClaimantFact(ledger.SourceRecord, c, record)
	m.setClaimantFact(ledger.SourceObject, c, shown)
}

func (m *PoolState) setClaimantFact(source ledger.Source, c *Claimant, r netipx.IPRange) {
	key := ledger.Key{Source: source, UID: c.Owner.UID}
	if r.IsValid() {
		m.Ledger.AddFact(ledger.Fact{Key: key, Owner: c.Owner, Range: r})
	} else {
		m.Ledger.RemoveFact(key)
	}
}

// restoreRecord restores the record of a claim from its IPAddress that was removed by force. A manager that has just
// taken the pool over may observe the writes of its predecessor in any order, and the record last.
func (m *PoolState) restoreRecord(c *Claimant) {
	if c.LostAddress == nil || c.HasRecord() || !c.LostAddress.IP.IsValid() {
		return
	}
	if r := m.Ledger.UnitRange(c.LostAddress.IP); c.StatusHasAddress || m.Ledger.IsInSpace(r) {
		c.RecordedRange = r
	}
}

// ForgetClaimant records the proof that the claim of a UID is gone.
func (m *PoolState) ForgetClaimant(uid types.UID) {
	m.Add(uid)
	c := m.Claimants[uid]
	if c == nil {
		return
	}
	m.dequeueClaimant(c)
	m.indexByOwner(c, false)
	m.ClearFailure(c, false)
	m.statusFailing.clearFailure(m.Claimants, c, false)
	delete(m.Claimants, uid)
	delete(m.movingClaimants, uid)
	m.claimantCounts[c.Kind]--
	if m.ClaimantsByName[NamespacedNameFromOwner(c.Owner)] == c {
		delete(m.ClaimantsByName, NamespacedNameFromOwner(c.Owner))
	}
	m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceRecord, UID: uid})
	m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceObject, UID: uid})
	if c.countedInQuota {
		m.addQuotaUsage(c, -1)
	}
	m.confirmGrant(uid)
	m.requeueOverlapping(c)
	if a := m.AddressFor(c); a != nil {
		m.classifyAddress(a)
		m.MarkNeverPublished(c, a)
	}
}

// ObserveAddress records an IPAddress. It reports whether the pool has something to do.
func (m *PoolState) ObserveAddress(a *Address) bool {
	if m.Has(a.UID) {
		return false
	}
	if old := m.Addresses[a.Key()]; old != nil {
		if !term.IsNewerVersion(a.ResourceVersion, old.ResourceVersion) {
			return false
		}
		if old.UID != a.UID {
			m.ForgetAddress(old.UID, old.Key())
		}
	}
	if c := m.Claimants[a.ClaimantUID]; c != nil && c.Owner.Name == a.Name {
		a.Name, a.ClaimantUID = c.Owner.Name, c.Owner.UID // equal strings, so that only one copy is kept
	}
	if m.Addresses[a.Key()] == nil && m.ClaimantsByName[a.Key()] == nil {
		m.recordArrival(time.Unix(a.CreatedUnix, 0))
	}
	a.ClaimantUID = m.ClaimantUIDFor(a)
	m.addAddress(a)
	if a.moved && a.IP.IsValid() {
		m.holdMovedRange(a.ledgerOwner(), m.Ledger.UnitRange(a.IP))
	}
	wake := m.classifyAddress(a) || a.moved
	if c := m.ClaimantsByName[a.Key()]; c != nil {
		if a.ClaimantUID == c.Owner.UID {
			c.LostAddress = nil
			m.confirmGrant(c.Owner.UID)
		}
		return m.QueueClaimant(c) || wake
	}
	return wake
}

// ForgetAddress records the proof that the IPAddress of a UID is gone.
func (m *PoolState) ForgetAddress(uid types.UID, name types.NamespacedName) {
	m.Add(uid)
	delete(m.movingAddresses, uid)
	m.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceObject, UID: uid})
	lost := m.Addresses[name]
	if lost != nil && lost.UID == uid {
		delete(m.Addresses, name)
		delete(m.Orphans, name)
	}
	if c := m.ClaimantsByName[name]; c != nil {
		if lost != nil && lost.UID == uid && lost.ClaimantUID == c.Owner.UID && !c.Deleting {
			c.LostAddress = lost
			m.restoreRecord(c)
			m.UpdateClaimantFacts(c)
		}
		c.Failures, c.RetryAt = 0, time.Time{} // it may have waited for this name
		m.QueueClaimant(c)
	}
}

// isOlderClaimant defines the order in which claimants are served: by creation time, then by namespace and name.
func isOlderClaimant(a, b *Claimant) bool {
	if !a.Created.Equal(b.Created) {
		return a.Created.Before(b.Created)
	}
	if a.Owner.Namespace != b.Owner.Namespace {
		return a.Owner.Namespace < b.Owner.Namespace
	}
	if a.Owner.Name != b.Owner.Name {
		return a.Owner.Name < b.Owner.Name
	}
	return a.Owner.UID < b.Owner.UID
}

// QueueClaimant puts a claimant into the queue for the work that it needs. It reports whether there is such work.
func (m *PoolState) QueueClaimant(c *Claimant) bool {
	m.dequeueClaimant(c)
	m.updateQuotaCount(c)
	switch m.NeedFor(c) {
	case NeedNothing:
		return false
	case NeedGrant:
		m.PendingClaimants.Set(c)
	case NeedWrite, NeedRelease:
		m.ClaimantsToWrite[c.Owner.UID] = c
	}
	return true
}

func (m *PoolState) dequeueClaimant(c *Claimant) {
	m.PendingClaimants.Delete(c)
	delete(m.ClaimantsToWrite, c.Owner.UID)
	delete(m.CoolingOverflow, c.Owner.UID)
	delete(m.deferredReleases.claimants, c.Owner.UID)
}

// classifyAddress records whether an address object has a claimant, and whether clusterctl is moving it. It reports
// whether the object is an orphan.
func (m *PoolState) classifyAddress(a *Address) bool {
	if a.moved {
		m.movingAddresses[a.UID] = a
	}
	if c := m.Claimants[a.ClaimantUID]; c != nil || a.moved {
		delete(m.Orphans, a.Key())
		return false
	}
	if s := m.Orphans[a.Key()]; s != nil {
		s.Address = a
	} else {
		m.Orphans[a.Key()] = &Orphan{Address: a}
	}
	return true
}

// AddressFor returns the address object of the name of a claimant, or nil if there is none or the kind of the
// claimant has none.
func (m *PoolState) AddressFor(c *Claimant) *Address {
	if c.Kind.Traits().AddressKind == nil {
		return nil
	}
	return m.Addresses[NamespacedNameFromOwner(c.Owner)]
}

// requeueOverlapping queues the claimants again that overlap with a claimant and whose status names the other owner.
func (m *PoolState) requeueOverlapping(c *Claimant) {
	if !c.Kind.Traits().ReportsOverlap {
		return
	}
	for _, r := range m.takenRanges(c) {
		for _, h := range m.Ledger.OverlappingFacts(r) {
			if other := m.Claimants[h.Owner.UID]; other != nil && other != c && other.Kind.Traits().ReportsOverlap {
				m.QueueClaimant(other)
			}
		}
	}
}

// takenRanges returns the ranges that are taken because of a claimant, apart from its grant. A range that is not
// valid overlaps with nothing.
func (m *PoolState) takenRanges(c *Claimant) [2]netipx.IPRange {
	record, shown := c.Kind.TakenRanges(m, c)
	return [2]netipx.IPRange{record, shown}
}

// OverlapMessageFor returns a message that names another owner of some addresses of a claimant. It is empty if there
// is none. The manager cannot resolve such an overlap: a user has to decide which of the two owners to delete.
func (m *PoolState) OverlapMessageFor(c *Claimant) string {
	for _, r := range m.takenRanges(c) {
		h := m.Ledger.FindOverlappingFact(r, func(h *ledger.Fact) bool {
			if other := m.Claimants[h.Owner.UID]; c.StatusHasAddress && h.Source == ledger.SourceRecord && other != nil && !other.StatusHasAddress {
				return false // any user can write a record
			}
			return h.Source.IsInUse() && h.Owner.UID != c.Owner.UID
		})
		if h != nil {
			return fmt.Sprintf("%s has %s too; find out which of the two uses it, and delete the other", m.DescribeFact(h), poolutil.ShowRange(h.Range))
		}
	}
	return ""
}

// HasClaimantWith reports whether there is a claimant whose kind has a trait.
func (m *PoolState) HasClaimantWith(matches func(*KindTraits) bool) bool {
	for k, n := range m.claimantCounts {
		if n > 0 && matches(k.Traits()) {
			return true
		}
	}
	return false
}
