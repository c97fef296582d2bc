package grants

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// PendingCommit is a commit: the pool with the status that the commit writes. A commit that was sent stays pending
// until its outcome is known (R4).
type PendingCommit struct {
	term.Write
	Pool          v1alpha1.Pool
	grantUIDs     []types.UID
	ConfirmedUIDs []types.UID
}

// PrepareCommit returns a commit of the current state of the pool: the counts, the conditions, and the grants in
// flight, with the new ones among them. It is called once per reconcile.
func (m *PoolState) PrepareCommit(now time.Time) *PendingCommit {
	next := m.Base.Pool.DeepCopyObject().(v1alpha1.Pool)
	try := &PendingCommit{Pool: next}
	for uid, g := range m.Grants.ByClaimant {
		switch {
		case g.Confirmed:
			try.ConfirmedUIDs = append(try.ConfirmedUIDs, uid)
		case !g.Committed:
			try.grantUIDs = append(try.grantUIDs, uid)
		}
	}
	m.Status.FillStatus(next, now)
	return try
}

// HasChanges reports whether a commit changes anything on record, and whether the change should be published without
// delay.
func (c *PendingCommit) HasChanges(base v1alpha1.Pool) (differs, urgent bool) {
	before, next := base.PoolStatus(), c.Pool.PoolStatus()
	if equality.Semantic.DeepEqual(before, next) {
		return false, false
	}
	for _, cond := range next.Conditions {
		old := meta.FindStatusCondition(before.Conditions, cond.Type)
		if old == nil || old.Status != cond.Status || old.Reason != cond.Reason {
			return true, true
		}
	}
	return true, !slices.Equal(next.Held, before.Held) || !slices.EqualFunc(before.Blocks, next.Blocks, equalBlockEntries) || !slices.Equal(next.Yields, before.Yields) || next.ObservedGeneration != before.ObservedGeneration
}

// RejectCommit drops a commit that the API server has refused permanently. The commit is not sent again: the next one
// is planned after a pause, which doubles each time, or when the pool has changed, and the claimants that wait get
// the reason in their status.
func (m *PoolState) RejectCommit(err error, now time.Time) {
	m.RollbackCommit(m.Base.Pool)
	m.Term.RecordWriteRefusal(err, now)
}

// CompleteCommit records that the API server has stored the pending commit, and that answer is the pool that it
// returned.
func (m *PoolState) CompleteCommit(answer v1alpha1.Pool, at time.Time) {
	for _, uid := range m.Term.PendingCommit.grantUIDs {
		if g := m.Grants.ByClaimant[uid]; g != nil {
			g.Committed = true
			m.confirmGrant(uid) // during the commit the claim may have gone, or have got its address
		}
	}
	for _, g := range m.Grants.ByClaimant {
		g.CommitConfirmedAt = at
	}
	for _, uid := range m.Term.PendingCommit.ConfirmedUIDs {
		m.Queues.DropGrant(uid)
	}
	if len(m.Term.PendingCommit.ConfirmedUIDs) > 0 || len(m.Queues.Retrying) == 0 {
		m.Term.Takeover.Reset() // otherwise the writes for its grants fail, here as with another manager
	}
	m.Term.PendingCommit = nil
	m.Term.WriteRefusal, m.Term.commitBackoff, m.Term.CommitAfter = nil, 0, time.Time{}
	m.Term.LastCommitAt = at
	m.SetBasePool(answer)
}

// RollbackCommit drops the pending commit, which cannot be stored any more, and its grants.
func (m *PoolState) RollbackCommit(live v1alpha1.Pool) {
	for _, uid := range m.Term.PendingCommit.grantUIDs {
		m.Queues.DropGrant(uid)
	}
	m.Term.PendingCommit = nil
	m.SetBasePool(live)
	m.LoadCoolingAndHeld(live.PoolStatus())
}

// ReadBackFor returns what a live read of a pool shows of a write, given the pool that the write was based on and the
// pool that was sent.
func ReadBackFor(base, sent, live v1alpha1.Pool) term.ReadBack {
	before, wanted, current := base.PoolStatus(), sent.PoolStatus(), live.PoolStatus()
	there := equality.Semantic.DeepEqual(current.Allocator, wanted.Allocator)
	if equality.Semantic.DeepEqual(before.Allocator, wanted.Allocator) {
		// If the write changes no grant, only the whole status shows whether it was stored.
		there = equality.Semantic.DeepEqual(current, wanted)
	}
	return term.ReadBack{
		SameObject: live.GetUID() == base.GetUID(), SameVersion: live.GetResourceVersion() == base.GetResourceVersion(),
		Written: there, Unchanged: equality.Semantic.DeepEqual(current.Allocator, before.Allocator),
	}
}
