package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// ObserveClaimant records a claimant as an event, a list or the answer to a write of this manager returned it. It
// reports whether the pool has something to do.
func (m *PoolState) ObserveClaimant(c *Claimant) bool {
	if m.Claimants.Has(c.Owner.UID) || !m.resolveNameOwner(c) {
		return false
	}
	old := m.Claimants.ByUID[c.Owner.UID]
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
			m.Quotas.addQuotaUsage(old, -1)
			c.countedInQuota = false
		}
		m.Queues.dequeueClaimant(old)
		m.Claimants.indexByOwner(old, false)
	} else {
		m.Claimants.counts[c.Kind]++
		if c.HasRecord() {
			m.Quarantine.recordArrival(c.Created)
		}
	}
	m.Claimants.ByUID[c.Owner.UID] = c
	m.Claimants.indexByOwner(c, true)
	if c.Moved {
		m.Moves.movingClaimants[c.Owner.UID] = c
	} else {
		delete(m.Moves.movingClaimants, c.Owner.UID)
	}
	m.Space.restoreRecord(c)
	m.Inventory.UpdateClaimantFacts(c)
	m.Held.holdMovedClaimant(c)
	m.Inventory.confirmGrant(c.Owner.UID)
	m.Queues.requeueOverlapping(c)
	if c.Kind.Traits().AddressKind != nil {
		m.Claimants.ByName[NamespacedNameFromOwner(c.Owner)] = c
		if a := m.Addresses.AddressFor(c); a != nil {
			m.Moves.classifyAddress(m.Addresses.assignClaimant(a))
			m.Inventory.confirmGrant(c.Owner.UID)
		}
	}
	return m.Queues.QueueClaimant(c) || c.Moved
}

// resolveNameOwner reports whether a claimant owns its name, for kinds whose address objects belong to claimants by
// name. Of two claimants of one name, the one with the later resource version proves the end of the other (R7).
func (m *PoolState) resolveNameOwner(c *Claimant) bool {
	known := m.Claimants.ByName[NamespacedNameFromOwner(c.Owner)]
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

// ForgetClaimant records the proof that the claim of a UID is gone.
func (m *PoolState) ForgetClaimant(uid types.UID) {
	m.Claimants.Add(uid)
	c := m.Claimants.ByUID[uid]
	if c == nil {
		return
	}
	m.Queues.dequeueClaimant(c)
	m.Claimants.indexByOwner(c, false)
	m.Failures.ClearFailure(c, false)
	m.Failures.statusFailing.clearFailure(m.Claimants.ByUID, c, false)
	delete(m.Claimants.ByUID, uid)
	delete(m.Moves.movingClaimants, uid)
	m.Claimants.counts[c.Kind]--
	if m.Claimants.ByName[NamespacedNameFromOwner(c.Owner)] == c {
		delete(m.Claimants.ByName, NamespacedNameFromOwner(c.Owner))
	}
	m.Space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceRecord, UID: uid})
	m.Space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceObject, UID: uid})
	if c.countedInQuota {
		m.Quotas.addQuotaUsage(c, -1)
	}
	m.Inventory.confirmGrant(uid)
	m.Queues.requeueOverlapping(c)
	if a := m.Addresses.AddressFor(c); a != nil {
		m.Moves.classifyAddress(a)
		m.Addresses.MarkNeverPublished(c, a)
	}
}

// ObserveAddress records an IPAddress. It reports whether the pool has something to do.
func (m *PoolState) ObserveAddress(a *Address) bool {
	if m.Claimants.Has(a.UID) {
		return false
	}
	if old := m.Addresses.ByName[a.Key()]; old != nil {
		if !term.IsNewerVersion(a.ResourceVersion, old.ResourceVersion) {
			return false
		}
		if old.UID != a.UID {
			m.ForgetAddress(old.UID, old.Key())
		}
	}
	if c := m.Claimants.ByUID[a.ClaimantUID]; c != nil && c.Owner.Name == a.Name {
		a.Name, a.ClaimantUID = c.Owner.Name, c.Owner.UID // equal strings, so that only one copy is kept
	}
	if m.Addresses.ByName[a.Key()] == nil && m.Claimants.ByName[a.Key()] == nil {
		m.Quarantine.recordArrival(time.Unix(a.CreatedUnix, 0))
	}
	a.ClaimantUID = m.Claimants.ClaimantUIDFor(a)
	m.Addresses.addAddress(a)
	if a.moved && a.IP.IsValid() {
		m.Held.holdMovedRange(a.ledgerOwner(), m.Space.Ledger.UnitRange(a.IP))
	}
	wake := m.Moves.classifyAddress(a) || a.moved
	if c := m.Claimants.ByName[a.Key()]; c != nil {
		if a.ClaimantUID == c.Owner.UID {
			c.LostAddress = nil
			m.Inventory.confirmGrant(c.Owner.UID)
		}
		return m.Queues.QueueClaimant(c) || wake
	}
	return wake
}

// ForgetAddress records the proof that the IPAddress of a UID is gone.
func (m *PoolState) ForgetAddress(uid types.UID, name types.NamespacedName) {
	m.Claimants.Add(uid)
	delete(m.Moves.movingAddresses, uid)
	m.Space.Ledger.RemoveFact(ledger.Key{Source: ledger.SourceObject, UID: uid})
	lost := m.Addresses.ByName[name]
	if lost != nil && lost.UID == uid {
		delete(m.Addresses.ByName, name)
		delete(m.Addresses.Orphans, name)
	}
	if c := m.Claimants.ByName[name]; c != nil {
		if lost != nil && lost.UID == uid && lost.ClaimantUID == c.Owner.UID && !c.Deleting {
			c.LostAddress = lost
			m.Space.restoreRecord(c)
			m.Inventory.UpdateClaimantFacts(c)
		}
		c.Failures, c.RetryAt = 0, time.Time{} // it may have waited for this name
		m.Queues.QueueClaimant(c)
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

// ObservePool records a version of the pool, if it is the newest. A caller that publishes the spec of the pool calls
// this first.
func (m *PoolState) ObservePool(pool v1alpha1.Pool) {
	if m.Observed.latest.status == nil || term.IsNewerVersion(pool.GetResourceVersion(), m.Observed.latest.resourceVersion) {
		m.recordObserved(pool)
	}
}

// recordObserved records a version of the pool.
func (m *PoolState) recordObserved(pool v1alpha1.Pool) {
	m.Observed.trackUnresolvedGrants(pool)
	if m.Observed.latest.uid != pool.GetUID() {
		m.Observed.fullyListed = false
		clear(m.Observed.ListedFor) // that was another pool of the same name
	}
	edited := pool.GetGeneration() > 1 || pool.PoolSpec().Carve != nil
	m.Observed.latest = observedPool{uid: pool.GetUID(), resourceVersion: pool.GetResourceVersion(), status: pool.PoolStatus(), mayExceedSpec: edited}
	m.Observed.ever = true
}
