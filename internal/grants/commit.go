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

// PendingCommit is a commit: the pool with the status that it is to have. One that was sent stays until its outcome is
// known (R4).
type PendingCommit struct {
	Pool      v1alpha1.Pool
	grants    []types.UID
	Confirmed []types.UID
	// Doubtful: it was sent, and what became of it is not known.
	Doubtful bool
}

// Prepare returns the commit of what the pool is now: counts, conditions, and the grants that are in flight, the new
// ones among them. It is called once a turn.
func (m *Memory) Prepare(now time.Time) *PendingCommit {
	next := m.Base.DeepCopyObject().(v1alpha1.Pool)
	try := &PendingCommit{Pool: next}
	for uid, g := range m.Grants {
		switch {
		case g.Confirmed:
			try.Confirmed = append(try.Confirmed, uid)
		case !g.Committed:
			try.grants = append(try.grants, uid)
		}
	}
	m.Describe(next, now)
	return try
}

// News reports whether a commit says anything that is not on record, and whether that should be shown without delay.
func (c *PendingCommit) News(base v1alpha1.Pool) (differs, urgent bool) {
	was, is := base.PoolStatus(), c.Pool.PoolStatus()
	if equality.Semantic.DeepEqual(was, is) {
		return false, false
	}
	for _, cond := range is.Conditions {
		old := meta.FindStatusCondition(was.Conditions, cond.Type)
		if old == nil || old.Status != cond.Status || old.Reason != cond.Reason {
			return true, true
		}
	}
	return true, !slices.Equal(is.Held, was.Held) || !slices.EqualFunc(was.Blocks, is.Blocks, sameBlock) || !slices.Equal(is.Yields, was.Yields) || is.ObservedGeneration != was.ObservedGeneration
}

// Refused drops a commit that the API server refuses for good. It is not sent again as it is: the next commit is
// planned anew, after a pause that doubles or when the pool has changed, and those who wait are told why.
func (m *Memory) Refused(err error, now time.Time) {
	m.Rollback(m.Base)
	m.NoteRefused(err, now)
}

// NoteRefused notes that the API server refuses a write of the pool for good: there is none before a pause is over.
func (m *Memory) NoteRefused(err error, now time.Time) {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		err = status // whatever was being done
	}
	if m.Refusal == nil || cause(err) != m.refusedFor { // those who wait are told anew when it changes
		m.Refusal = NotReady("%s cannot be written: the API server refuses its status: %v", m.Key, err)
		m.refusedFor = cause(err)
	}
	m.commitPause = term.NextPause(m.commitPause)
	m.CommitAfter = now.Add(m.commitPause)
}

// IsRefused reports whether the pool is not written now because the API server refuses that.
func (m *Memory) IsRefused(now time.Time) bool { return m.Refusal != nil && now.Before(m.CommitAfter) }

// RefuseAll returns those who wait, and are to be told that the pool cannot be written. A manager that does not hold the pool
// has not the last word: it informs those who were told nothing.
func (m *Memory) RefuseAll(now time.Time, admission Admit) map[*Claimant]*Refusal {
	refused := map[*Claimant]*Refusal{}
	m.Pending.Scan(func(c *Claimant) bool {
		told := c.Shows(*m.Refusal) || (!m.Holder && c.ShownRefusal() != Refusal{})
		if c.MayBeTried(now) && !told && !admission(c).Waits {
			refused[c] = m.Refusal
		}
		return true
	})
	return refused
}

// CommitLanded notes that the commit is what the API server has.
func (m *Memory) CommitLanded(answer v1alpha1.Pool, at time.Time) {
	for _, uid := range m.Unanswered.grants {
		if g := m.Grants[uid]; g != nil {
			g.Committed = true
			m.confirm(uid) // while the commit was under way the claim went, or got what it needs
		}
	}
	for _, g := range m.Grants {
		g.At = at
	}
	for _, uid := range m.Unanswered.Confirmed {
		m.DropGrant(uid)
	}
	if len(m.Unanswered.Confirmed) > 0 || len(m.Retrying) == 0 {
		m.Win() // else what is committed comes to nothing, here as with the other
	}
	m.Unanswered = nil
	m.Refusal, m.commitPause, m.CommitAfter = nil, 0, time.Time{}
	m.LastCommit = at
	m.SetBase(answer)
}

// Rollback forgets the grants of a commit that cannot land any more.
func (m *Memory) Rollback(live v1alpha1.Pool) {
	for _, uid := range m.Unanswered.grants {
		m.DropGrant(uid)
	}
	m.Unanswered = nil
	m.SetBase(live)
	m.LoadCooling(live.PoolStatus())
}

// VerdictOn compares the pool that a write was made on, what was sent, and what the API server has now.
func VerdictOn(base, sent, live v1alpha1.Pool) term.Verdict {
	was, wanted, is := base.PoolStatus(), sent.PoolStatus(), live.PoolStatus()
	there := equality.Semantic.DeepEqual(is.Allocator, wanted.Allocator)
	if equality.Semantic.DeepEqual(was.Allocator, wanted.Allocator) {
		// Where the write changes no grant, only the whole status reports whether it is there.
		there = equality.Semantic.DeepEqual(is, wanted)
	}
	return term.Sighting{
		SameObject: live.GetUID() == base.GetUID(), SameVersion: live.GetResourceVersion() == base.GetResourceVersion(),
		There: there, AsBefore: equality.Semantic.DeepEqual(is.Allocator, was.Allocator),
	}.Verdict()
}
