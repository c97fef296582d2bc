package grants

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// PendingCommit is a commit: the pool with the status that the commit writes. A commit that was sent stays pending
// until its outcome is known (R4).
type PendingCommit struct {
	Pool          v1alpha1.Pool
	grantUIDs     []types.UID
	ConfirmedUIDs []types.UID
	// OutcomeUnknown reports whether the commit was sent and its outcome is not known.
	OutcomeUnknown bool
}

// PrepareCommit returns a commit of the current state of the pool: the counts, the conditions, and the grants in
// flight, with the new ones among them. It is called once per reconcile.
func (m *PoolState) PrepareCommit(now time.Time) *PendingCommit {
	next := m.BasePool.DeepCopyObject().(v1alpha1.Pool)
	try := &PendingCommit{Pool: next}
	for uid, g := range m.Grants {
		switch {
		case g.Confirmed:
			try.ConfirmedUIDs = append(try.ConfirmedUIDs, uid)
		case !g.Committed:
			try.grantUIDs = append(try.grantUIDs, uid)
		}
	}
	m.FillStatus(next, now)
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
	m.RollbackCommit(m.BasePool)
	m.RecordWriteRefusal(err, now)
}

// RecordWriteRefusal records that the API server has refused a write of the pool permanently. The pool is not written
// again before a pause is over.
func (m *PoolState) RecordWriteRefusal(err error, now time.Time) {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		err = status // without the context that wraps it
	}
	if m.WriteRefusal == nil || normalizeError(err) != m.writeRefusalCause { // a new cause is written to each waiting claimant
		m.WriteRefusal = PoolNotReady("%s cannot be written: the API server refuses its status: %v", m.Key, err)
		m.writeRefusalCause = normalizeError(err)
	}
	m.commitBackoff = term.NextRetryPause(m.commitBackoff)
	m.CommitAfter = now.Add(m.commitBackoff)
}

// IsWriteRefused reports whether the pool is not written now because the API server has refused a write of it.
func (m *PoolState) IsWriteRefused(now time.Time) bool {
	return m.WriteRefusal != nil && now.Before(m.CommitAfter)
}

// RefusalsForPending returns the waiting claimants whose status should report that the pool cannot be written. If
// this manager does not hold the pool, these are only the claimants without a refusal in their status: the holder
// decides on the others.
func (m *PoolState) RefusalsForPending(now time.Time, admission AdmissionFunc) map[*Claimant]*Refusal {
	refused := map[*Claimant]*Refusal{}
	m.PendingClaimants.Scan(func(c *Claimant) bool {
		published := c.HasPublished(*m.WriteRefusal) || (!m.Holder && c.PublishedRefusal() != Refusal{})
		if c.MayStartJob(now) && !published && !admission(c).Wait {
			refused[c] = m.WriteRefusal
		}
		return true
	})
	return refused
}

// CompleteCommit records that the API server has stored the pending commit, and that answer is the pool that it
// returned.
func (m *PoolState) CompleteCommit(answer v1alpha1.Pool, at time.Time) {
	for _, uid := range m.PendingCommit.grantUIDs {
		if g := m.Grants[uid]; g != nil {
			g.Committed = true
			m.confirmGrant(uid) // during the commit the claim may have gone, or have got its address
		}
	}
	for _, g := range m.Grants {
		g.CommitConfirmedAt = at
	}
	for _, uid := range m.PendingCommit.ConfirmedUIDs {
		m.DropGrant(uid)
	}
	if len(m.PendingCommit.ConfirmedUIDs) > 0 || len(m.RetryingClaimants) == 0 {
		m.Reset() // otherwise the writes for its grants fail, here as with another manager
	}
	m.PendingCommit = nil
	m.WriteRefusal, m.commitBackoff, m.CommitAfter = nil, 0, time.Time{}
	m.LastCommitAt = at
	m.SetBasePool(answer)
}

// RollbackCommit drops the pending commit, which cannot be stored any more, and its grants.
func (m *PoolState) RollbackCommit(live v1alpha1.Pool) {
	for _, uid := range m.PendingCommit.grantUIDs {
		m.DropGrant(uid)
	}
	m.PendingCommit = nil
	m.SetBasePool(live)
	m.LoadCoolingAndHeld(live.PoolStatus())
}

// WriteOutcomeFor determines the outcome of a write from the pool that it was based on, the pool that was sent, and
// the live pool of the API server.
func WriteOutcomeFor(base, sent, live v1alpha1.Pool) term.WriteOutcome {
	before, wanted, current := base.PoolStatus(), sent.PoolStatus(), live.PoolStatus()
	there := equality.Semantic.DeepEqual(current.Allocator, wanted.Allocator)
	if equality.Semantic.DeepEqual(before.Allocator, wanted.Allocator) {
		// If the write changes no grant, only the whole status shows whether it was stored.
		there = equality.Semantic.DeepEqual(current, wanted)
	}
	return term.ReadBack{
		SameObject: live.GetUID() == base.GetUID(), SameVersion: live.GetResourceVersion() == base.GetResourceVersion(),
		Written: there, Unchanged: equality.Semantic.DeepEqual(current.Allocator, before.Allocator),
	}.Outcome()
}
