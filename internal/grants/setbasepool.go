package grants

import (
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// RefreshBasePool replaces the base pool with the pool from the cache, if that is newer. It reports whether that ends
// the term of this manager.
func (m *PoolState) RefreshBasePool(seen v1alpha1.Pool, id string, now time.Time) (ends bool) {
	if m.Base.Pool != nil && m.Base.Pool.GetUID() == seen.GetUID() && !term.IsNewerVersion(seen.GetResourceVersion(), m.Base.Pool.GetResourceVersion()) {
		return false
	}
	if m.Term.PendingCommit != nil {
		return false // the outcome of the commit is determined first, against the base that it was made on
	}
	seen = seen.DeepCopyObject().(v1alpha1.Pool)
	if m.Base.Pool != nil && m.Base.Pool.GetUID() != seen.GetUID() {
		m.Term.Holder, m.Quarantine.Until, m.Quarantine.startedAt, m.Base.generation, m.Quarantine.Arrival = false, time.Time{}, time.Time{}, 0, ArrivalState{}
		m.Space.removePreAllocations()
		m.Space.Layout, m.Space.layoutVersion = nil, SpecVersion{} // the new pool promised nothing of the old layout
		for uid := range m.Grants.ByClaimant {
			m.Queues.DropGrant(uid)
		}
		m.LoadCoolingAndHeld(seen.PoolStatus())
		m.Queues.requeueDeferredReleases()
	}
	state := seen.PoolStatus().Allocator
	if ends = m.Term.Holder && (state == nil || state.Holder != id || state.Term != m.Term.Number); ends {
		m.LoseTerm(now)
	}
	m.Term.ChangedAt, m.Term.CommitAfter = now, time.Time{}
	m.SetBasePool(seen)
	if m.Term.Holder {
		m.LoadCoolingAndHeld(seen.PoolStatus())
	}
	return ends
}

// ClearBasePool records that the pool does not exist. It reports whether there was a base pool before.
func (m *PoolState) ClearBasePool() bool {
	m.Observed.latest, m.Observed.unresolvedGrants = observedPool{}, nil
	if m.Base.Pool == nil {
		return false
	}
	m.Space.removePreAllocations()
	m.Base.Pool, m.Term.Holder, m.Term.PendingCommit, m.Base.generation, m.Space.Layout, m.Space.layoutVersion = nil, false, nil, 0, nil, SpecVersion{}
	m.Quarantine.Arrival = ArrivalState{}
	m.Space.updateLedgerLayout() // what is still in use is outside any spec: other pools exclude it
	m.Queues.RetryOverflow()
	m.Queues.requeueDeferredReleases()
	m.Term.TakeoverChecked = false
	for uid := range m.Grants.ByClaimant {
		m.Queues.DropGrant(uid)
	}
	return true
}

// SetBasePool makes a pool the base of the next commit, and compiles its layout for the next plan if the generation
// or the blocks have changed. It drops the managed fields: a write without them leaves them unchanged, and costs
// less.
func (m *PoolState) SetBasePool(obj v1alpha1.Pool) {
	obj.SetManagedFields(nil)
	m.Base.Pool = obj
	if m.Observed.latest.uid != obj.GetUID() || !term.IsNewerVersion(m.Observed.latest.resourceVersion, obj.GetResourceVersion()) {
		m.recordObserved(obj)
	}
	m.Carved.poolMissingSince = time.Time{}
	m.adoptFromOtherNamespaces()
	if m.Base.generation != obj.GetGeneration() || !slices.EqualFunc(m.Space.layoutBlocks, obj.PoolStatus().Blocks, equalBlockAddresses) {
		m.Base.generation, m.Space.layoutBlocks = obj.GetGeneration(), obj.PoolStatus().Blocks
		m.Space.CompileLayout()
		m.Growth.setDrainedRanges(carve.Decision{})
	}
}

// EndAdoption ends the adoption when the quarantine is over, and queues the claimants without a record again. From
// then on a status without a record is not trusted.
func (m *PoolState) EndAdoption(now time.Time) {
	if !m.Quarantine.Adopting || m.Quarantine.IsQuarantined(now) {
		return
	}
	m.Quarantine.Adopting = false
	for _, c := range m.Claimants.ByUID {
		if !c.HasRecord() {
			m.Queues.QueueClaimant(c)
		}
	}
}
