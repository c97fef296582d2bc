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
	if m.Claimants.Gone.Has(c.Owner.UID) || !m.resolveNameOwner(c) {
		return false
	}
	old := m.Claimants.ByUID[c.Owner.UID]
	if old != nil {
		if !term.IsNewerVersion(c.ResourceVersion, old.ResourceVersion) {
			return false
		}
		c.Retry, c.LostAddress, c.servingBlocked = old.Retry, old.LostAddress, old.servingBlocked
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
	m.UpdateClaimantFacts(c)
	m.Held.holdMovedClaimant(c)
	m.confirmGrant(c.Owner.UID)
	m.Queues.requeueOverlapping(c)
	if c.Kind.Traits().AddressKind != nil {
		m.Claimants.ByName[NamespacedNameFromOwner(c.Owner)] = c
		if a := m.Addresses.AddressFor(c); a != nil {
			m.Moves.classifyAddress(m.Addresses.assignClaimant(a))
			m.confirmGrant(c.Owner.UID)
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

// UpdateClaimantFacts updates the facts about the range that a claimant has on record, and about the range in its
// status.
func (m *PoolState) UpdateClaimantFacts(c *Claimant) {
	record, shown := c.Kind.TakenRanges(m.Inventory, c)
	m.Space.setClaimantFact(ledger.SourceRecord, c, record)
	m.Space.setClaimantFact(ledger.SourceObject, c, shown)
}

// ForgetClaimant records the proof that the claim of a UID is gone.
func (m *PoolState) ForgetClaimant(uid types.UID) {
	m.Claimants.Gone.Add(uid)
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
	m.confirmGrant(uid)
	m.Queues.requeueOverlapping(c)
	if a := m.Addresses.AddressFor(c); a != nil {
		m.Moves.classifyAddress(a)
		m.Addresses.MarkNeverPublished(c, a)
	}
}

// ObserveAddress records an IPAddress. It reports whether the pool has something to do.
func (m *PoolState) ObserveAddress(a *Address) bool {
	if m.Claimants.Gone.Has(a.UID) {
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
	a.ClaimantUID = m.Addresses.ClaimantUIDFor(a)
	m.Addresses.addAddress(a)
	if a.moved && a.IP.IsValid() {
		m.Held.holdMovedRange(a.ledgerOwner(), m.Space.Ledger.UnitRange(a.IP))
	}
	wake := m.Moves.classifyAddress(a) || a.moved
	if c := m.Claimants.ByName[a.Key()]; c != nil {
		if a.ClaimantUID == c.Owner.UID {
			c.LostAddress = nil
			m.confirmGrant(c.Owner.UID)
		}
		return m.Queues.QueueClaimant(c) || wake
	}
	return wake
}

// ForgetAddress records the proof that the IPAddress of a UID is gone.
func (m *PoolState) ForgetAddress(uid types.UID, name types.NamespacedName) {
	m.Claimants.Gone.Add(uid)
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
			m.UpdateClaimantFacts(c)
		}
		c.Reset() // it may have waited for this name
		m.Queues.QueueClaimant(c)
	}
}

// ObserveBlock records a block of this pool. It reports whether the pool has something to do.
func (m *PoolState) ObserveBlock(b *Block) bool {
	if m.Claimants.Gone.Has(b.UID) {
		return false
	}
	old := m.Carved.Blocks[b.Name]
	if b.InOtherNamespace && (old == nil || old.UID != b.UID) && !m.Base.isBlockOpenWithUID(b.Name, b.UID) {
		if m.Carved.inOtherNamespace == nil {
			m.Carved.inOtherNamespace = map[types.UID]*Block{}
		}
		if previous := m.Carved.inOtherNamespace[b.UID]; previous == nil || term.IsNewerVersion(b.ResourceVersion, previous.ResourceVersion) {
			m.Carved.inOtherNamespace[b.UID] = b
		}
		return m.Base.Pool == nil
	}
	if old != nil {
		if !term.IsNewerVersion(b.ResourceVersion, old.ResourceVersion) {
			return false
		}
		if old.UID == b.UID {
			b.verifiedTerm, b.Allocation = old.verifiedTerm, b.WithHistory(old.Allocation)
		}
	}
	if (old == nil || old.UID != b.UID) && len(b.RecordedRanges) > 0 {
		m.Quarantine.recordArrival(b.Created) // objects that have addresses of the block may arrive later
	}
	if m.Carved.Blocks == nil {
		m.Carved.Blocks = map[string]*Block{}
	}
	m.Carved.Blocks[b.Name] = b
	m.Held.holdMovedBlock(b)
	return true
}

// adoptFromOtherNamespaces adds the blocks in other namespaces that are open on record to the blocks of the pool: the
// manager has moved to another namespace since they were created.
func (m *PoolState) adoptFromOtherNamespaces() {
	for uid, b := range m.Carved.inOtherNamespace {
		if m.Base.isBlockOpenWithUID(b.Name, uid) && m.Carved.Blocks[b.Name] == nil {
			delete(m.Carved.inOtherNamespace, uid)
			m.ObserveBlock(b)
		}
	}
}

// confirmGrant confirms a committed grant whose claimant is gone, or has the granted range on record (R6).
func (m *PoolState) confirmGrant(uid types.UID) {
	g := m.Grants.ByClaimant[uid]
	if g == nil || !g.Committed {
		return
	}
	c := m.Claimants.ByUID[uid]
	g.Confirmed = g.Confirmed || c == nil || c.Kind.IsConfirmed(m.Inventory, c)
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

// ObserveObject records an object of a kind. It reports whether the pool has something to do.
func (m *PoolState) ObserveObject(r ResourceKind, o Object) bool {
	switch k := r.(type) {
	case ClaimantKind:
		return m.ObserveClaimant(k.NewClaimant(o))
	case AddressKind:
		return m.ObserveAddress(k.NewAddress(o))
	}
	return false
}

// ForgetObject records the proof that an object of a kind is gone.
func (m *PoolState) ForgetObject(r ResourceKind, o Object) {
	switch r.(type) {
	case ClaimantKind:
		m.ForgetClaimant(o.GetUID())
	case AddressKind:
		m.ForgetAddress(o.GetUID(), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	}
}

// UnlistedObjects returns the known objects of a kind that are not among the listed UIDs, as objects that have a
// name, a UID and their pool only. It costs no memory for the listed ones.
func (m *PoolState) UnlistedObjects(r ResourceKind, listed map[types.UID]struct{}) (out []Object) {
	add := func(namespace, name string, uid types.UID) {
		if _, ok := listed[uid]; !ok {
			o := WithName(r.NewObject(), namespace, name)
			o.SetUID(uid)
			r.SetPoolRef(o, m.Base.Key)
			out = append(out, o)
		}
	}
	for _, c := range m.Claimants.ByUID {
		if c.Kind == r {
			add(c.Owner.Namespace, c.Owner.Name, c.Owner.UID)
		}
	}
	for _, a := range m.Addresses.ByName {
		if a.Kind.Traits().AddressKind == r {
			add(a.Namespace, a.Name, a.UID)
		}
	}
	if carver, ok := r.(BlockKind); ok {
		out = append(out, m.Carved.unlistedBlocks(carver, listed)...)
	}
	return out
}

// ObserveListed records the objects of a list.
func (m *PoolState) ObserveListed(found *ListedObjects) {
	for _, c := range found.Claimants {
		m.ObserveClaimant(c)
	}
	for _, a := range found.Addresses {
		m.ObserveAddress(a)
	}
	for _, b := range found.Blocks {
		m.ObserveBlock(b)
	}
}
