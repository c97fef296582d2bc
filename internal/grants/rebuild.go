package grants

import (
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// RebuildLedger builds the ledger from a list, from newer observations of the watches, and from the grants in flight.
func (m *PoolState) RebuildLedger(found *ListedObjects) {
	status := m.Base.Pool.PoolStatus()
	space, unit := m.Space.grantableSpace()
	m.Space.Ledger = ledger.New(space, unit)
	m.Space.Ledger.SetOrder(m.Space.allocationOrder())
	m.Space.loadReleaseOrder(status)
	m.Space.Ledger.SetCountedRanges(m.Base.OpenBlockRanges())
	m.Carved.drainedPrefixes = nil
	for _, b := range m.Carved.Blocks {
		b.verifiedTerm = PoolTerm{} // a restored pool counts its terms from the beginning again
	}
	m.Growth.setDrainedRanges(carve.Decision{})
	m.Excluded.byRange, m.Observed.unresolvedGrants, m.Observed.fullyListed = map[netipx.IPRange]pools.Key{}, nil, true
	m.Quarantine.Arrival.NeedsListing = false
	m.Space.addPreAllocations()
	for uid := range m.Grants.ByClaimant {
		delete(m.Grants.ByClaimant, uid)
	}
	m.ObserveListed(found)
	for _, c := range m.Claimants.ByUID {
		m.UpdateClaimantFacts(c)
	}
	for _, addr := range m.Addresses.ByName {
		if addr.IP.IsValid() {
			m.Space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceObject, UID: addr.UID}, Owner: addr.ledgerOwner(), Range: m.Space.Ledger.UnitRange(addr.IP)})
		}
	}
	for _, g := range InFlightFromStatus(status) {
		r, err := poolutil.ParseRange(g.First + "-" + g.Last)
		if err != nil {
			continue
		}
		owner := ledger.Owner{Kind: m.Claimants.kindByName(g.Kind).Traits().Name, Namespace: g.Namespace, Name: g.Name, UID: types.UID(g.UID)}
		if c := m.Claimants.ByUID[owner.UID]; c != nil && c.MayChangeAddress() && m.Inventory.hasOtherAddress(r, owner) {
			continue
		}
		m.Grants.ByClaimant[owner.UID] = &Grant{Owner: owner, Range: r, Committed: true, Inherited: true}
		m.confirmGrant(owner.UID) // the list began after the fence, so it is proof (R6)
		m.Space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: owner.UID}, Owner: owner, Range: r})
	}
	m.LoadCoolingAndHeld(status)
	for _, c := range m.Claimants.ByUID {
		m.Queues.QueueClaimant(c)
	}
	for _, addr := range m.Addresses.ByName {
		m.Moves.classifyAddress(addr)
	}
	if len(m.Addresses.Orphans) == 0 {
		m.Addresses.Orphans = map[types.NamespacedName]*Orphan{} // before the claims arrived, all were orphans; maps do not shrink
	}
}

// LoadCoolingAndHeld loads the cooling and the held ranges from the status of the pool, because an operator may have
// removed an entry.
func (m *PoolState) LoadCoolingAndHeld(status *v1alpha1.NetworkPoolStatus) {
	for _, rest := range m.Cooling.Periods.All() {
		m.Cooling.Periods.Remove(rest.Range)
	}
	for r := range m.Held.byRange {
		m.Held.removeHeldRange(r)
	}
	rests, _ := cooling.ParseGroups(status.Cooling) // unreadable text was not written by a manager
	for _, rest := range rests {
		m.Cooling.Periods.ForceAdd(rest)
	}
	m.Queues.RetryOverflow()
	for _, h := range status.Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			m.Held.AddHeldRange(r, h)
		}
	}
	m.Held.holdAllMoved()
}
