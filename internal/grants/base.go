package grants

import (
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// RefreshBase takes the pool as the cache shows it, if that is news. It reports whether that ends the term.
func (m *Memory) RefreshBase(seen v1alpha1.Pool, id string, now time.Time) (ends bool) {
	if m.Base != nil && m.Base.GetUID() == seen.GetUID() && !term.Newer(seen.GetResourceVersion(), m.Base.GetResourceVersion()) {
		return false
	}
	if m.Unanswered != nil {
		return false // what the commit became is found out first, against the base it was made on
	}
	seen = seen.DeepCopyObject().(v1alpha1.Pool)
	if m.Base != nil && m.Base.GetUID() != seen.GetUID() {
		m.Holder, m.QuarantineUntil, m.quietSince, m.generation, m.Arriving = false, time.Time{}, time.Time{}, 0, Arriving{}
		m.removePins()
		m.Layout, m.laidOut = nil, SpecVersion{} // the new one promised nothing of that
		for uid := range m.Grants {
			m.DropGrant(uid)
		}
		m.LoadCooling(seen.PoolStatus())
		m.resumeReleases()
	}
	state := seen.PoolStatus().Allocator
	if ends = m.Holder && (state == nil || state.Holder != id || state.Term != m.Term); ends {
		m.LoseTerm(now)
	}
	m.Changed, m.CommitAfter = now, time.Time{}
	m.SetBase(seen)
	if m.Holder {
		m.LoadCooling(seen.PoolStatus())
	}
	return ends
}

// UnsetBase notes that there is no pool. It reports whether that is news.
func (m *Memory) UnsetBase() bool {
	m.last, m.unseen = lastSeen{}, nil
	if m.Base == nil {
		return false
	}
	m.removePins()
	m.Base, m.Holder, m.Unanswered, m.generation, m.Layout, m.laidOut = nil, false, nil, 0, nil, SpecVersion{}
	m.Arriving = Arriving{}
	m.relayout() // what it has left in use is outside of any spec: others keep apart from it
	m.RoomToRest()
	m.resumeReleases()
	m.TriedOnce = false
	for uid := range m.Grants {
		m.DropGrant(uid)
	}
	return true
}

// SetBase makes a pool the base of the next commit, and its spec what is planned on. A write
// without managed fields leaves them as they are, and costs less.
func (m *Memory) SetBase(obj v1alpha1.Pool) {
	obj.SetManagedFields(nil)
	m.Base = obj
	if m.last.uid != obj.GetUID() || !term.Newer(m.last.version, obj.GetResourceVersion()) {
		m.note(obj)
	}
	m.Carved.without = time.Time{}
	m.takeFromAbroad()
	if m.generation != obj.GetGeneration() || !slices.EqualFunc(m.compiled, obj.PoolStatus().Blocks, sameAddresses) {
		m.generation, m.compiled = obj.GetGeneration(), obj.PoolStatus().Blocks
		m.Compile()
		m.stateDrained(carve.Decision{})
	}
}

// EndAdoption ends what is taken on trust, when the quarantine is over.
func (m *Memory) EndAdoption(now time.Time) {
	if !m.Adopting || m.InQuarantine(now) {
		return
	}
	m.Adopting = false
	for _, c := range m.Claimants {
		if !c.HasRecord() {
			m.Sort(c)
		}
	}
}

// TakeSuspicion reports whether a job has found a reason to end the term.
func (m *Memory) TakeSuspicion() bool {
	was := m.TermSuspect
	m.TermSuspect = false
	return was && m.Holder
}
