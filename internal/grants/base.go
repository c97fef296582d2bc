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
	if m.BasePool != nil && m.BasePool.GetUID() == seen.GetUID() && !term.IsNewerVersion(seen.GetResourceVersion(), m.BasePool.GetResourceVersion()) {
		return false
	}
	if m.PendingCommit != nil {
		return false // the outcome of the commit is determined first, against the base that it was made on
	}
	seen = seen.DeepCopyObject().(v1alpha1.Pool)
	if m.BasePool != nil && m.BasePool.GetUID() != seen.GetUID() {
		m.Holder, m.QuarantineUntil, m.quarantineStartedAt, m.baseGeneration, m.Arrival = false, time.Time{}, time.Time{}, 0, ArrivalState{}
		m.removePreAllocations()
		m.Layout, m.layoutVersion = nil, SpecVersion{} // the new pool promised nothing of the old layout
		for uid := range m.Grants {
			m.DropGrant(uid)
		}
		m.LoadCoolingAndHeld(seen.PoolStatus())
		m.requeueDeferredReleases()
	}
	state := seen.PoolStatus().Allocator
	if ends = m.Holder && (state == nil || state.Holder != id || state.Term != m.Term); ends {
		m.LoseTerm(now)
	}
	m.ChangedAt, m.CommitAfter = now, time.Time{}
	m.SetBasePool(seen)
	if m.Holder {
		m.LoadCoolingAndHeld(seen.PoolStatus())
	}
	return ends
}

// ClearBasePool records that the pool does not exist. It reports whether there was a base pool before.
func (m *PoolState) ClearBasePool() bool {
	m.observed, m.unresolvedGrants = observedPool{}, nil
	if m.BasePool == nil {
		return false
	}
	m.removePreAllocations()
	m.BasePool, m.Holder, m.PendingCommit, m.baseGeneration, m.Layout, m.layoutVersion = nil, false, nil, 0, nil, SpecVersion{}
	m.Arrival = ArrivalState{}
	m.updateLedgerLayout() // what is still in use is outside any spec: other pools exclude it
	m.RetryOverflow()
	m.requeueDeferredReleases()
	m.TakeoverChecked = false
	for uid := range m.Grants {
		m.DropGrant(uid)
	}
	return true
}

// SetBasePool makes a pool the base of the next commit, and compiles its layout for the next plan if the generation
// or the blocks have changed. It drops the managed fields: a write without them leaves them unchanged, and costs
// less.
func (m *PoolState) SetBasePool(obj v1alpha1.Pool) {
	obj.SetManagedFields(nil)
	m.BasePool = obj
	if m.observed.uid != obj.GetUID() || !term.IsNewerVersion(m.observed.resourceVersion, obj.GetResourceVersion()) {
		m.recordObserved(obj)
	}
	m.Carved.poolMissingSince = time.Time{}
	m.adoptFromOtherNamespaces()
	if m.baseGeneration != obj.GetGeneration() || !slices.EqualFunc(m.layoutBlocks, obj.PoolStatus().Blocks, equalBlockAddresses) {
		m.baseGeneration, m.layoutBlocks = obj.GetGeneration(), obj.PoolStatus().Blocks
		m.CompileLayout()
		m.setDrainedRanges(carve.Decision{})
	}
}

// EndAdoption ends the adoption when the quarantine is over, and queues the claimants without a record again. From
// then on a status without a record is not trusted.
func (m *PoolState) EndAdoption(now time.Time) {
	if !m.Adopting || m.IsQuarantined(now) {
		return
	}
	m.Adopting = false
	for _, c := range m.Claimants {
		if !c.HasRecord() {
			m.QueueClaimant(c)
		}
	}
}

// TakeRevalidation reports whether a job has found a reason to end the term, and resets that request.
func (m *PoolState) TakeRevalidation() bool {
	needed := m.NeedsRevalidation
	m.NeedsRevalidation = false
	return needed && m.Holder
}
