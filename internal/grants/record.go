package grants

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Record is the part of this manager in the record of the pool (R3 to R5): whether it is the holder and in which
// term, the commit in flight, and how long to wait after a conflict or a refusal. A manager that is not the holder
// commits nothing but a takeover.
type Record struct {
	// WriteRefusal is the refusal for all claimants while the API server refuses the status of the pool, nil if it
	// does not. Nothing is committed before CommitAfter.
	WriteRefusal  *Refusal
	CommitAfter   time.Time
	commitBackoff time.Duration
	// writeRefusalCause is the cause of WriteRefusal. After an attempt whose result was not kept, the manager does
	// not add our finalizer to the pool again before AddFinalizerAfter.
	writeRefusalCause string
	AddFinalizerAfter time.Time
	Holder            bool
	Term              int64
	// NeedsRevalidation reports whether a job found that the state of the pool is outdated. The next reconcile ends
	// the term.
	NeedsRevalidation bool
	// FencedTerm is the term in which this manager is the holder on record since before its watches began
	// (allocator.FencePools), which is the first half of a takeover. It is 0 if there is no such term.
	FencedTerm    int64
	PendingCommit *PendingCommit
	// ChangedAt is when another writer last changed the pool; WorkPendingSince is since when work has waited.
	ChangedAt, WorkPendingSince time.Time
	Takeover                    term.TakeoverBackoff
	jitter                      func(time.Duration) time.Duration
	ListDuration                time.Duration
	TakeoverChecked             bool
	LastCommitAt                time.Time

	base *Base
}

// SetFenced records that this manager is the holder on record since before its watches began, in a term.
func (r *Record) SetFenced(term int64) { r.FencedTerm = term }

// TakeFenced returns the term that SetFenced recorded, once, and how long the last list took; 0 means no term.
func (r *Record) TakeFenced() (term int64, listDuration time.Duration) {
	term = r.FencedTerm
	r.FencedTerm = 0
	return term, r.ListDuration
}

// BeginCommit records that a commit is sent. Its outcome is unknown until CompleteCommit, RollbackCommit or LoseTerm.
func (r *Record) BeginCommit(c *PendingCommit) { r.PendingCommit = c }

// PostponeFinalizer records that our finalizer was added to the pool and not kept: the next attempt waits until then.
func (r *Record) PostponeFinalizer(until time.Time) { r.AddFinalizerAfter = until }

// RequestRevalidation records that the state of the pool is outdated: the next reconcile ends the term.
func (r *Record) RequestRevalidation() { r.NeedsRevalidation = true }

// TakeRevalidation reports whether a job has found a reason to end the term, and resets that request.
func (r *Record) TakeRevalidation() bool {
	needed := r.NeedsRevalidation
	r.NeedsRevalidation = false
	return needed && r.Holder
}

// CurrentTerm returns the current term of the pool.
func (r *Record) CurrentTerm() PoolTerm {
	if r.base.Pool == nil {
		return PoolTerm{}
	}
	return PoolTerm{r.base.Pool.GetUID(), r.Term}
}

// RecordWriteRefusal records that the API server has refused a write of the pool permanently. The pool is not written
// again before a pause is over.
func (r *Record) RecordWriteRefusal(err error, now time.Time) {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		err = status // without the context that wraps it
	}
	if r.WriteRefusal == nil || normalizeError(err) != r.writeRefusalCause { // a new cause is written to each waiting claimant
		r.WriteRefusal = PoolNotReady("%s cannot be written: the API server refuses its status: %v", r.base.Key, err)
		r.writeRefusalCause = normalizeError(err)
	}
	r.commitBackoff = term.NextRetryPause(r.commitBackoff)
	r.CommitAfter = now.Add(r.commitBackoff)
}

// IsWriteRefused reports whether the pool is not written now because the API server has refused a write of it.
func (r *Record) IsWriteRefused(now time.Time) bool {
	return r.WriteRefusal != nil && now.Before(r.CommitAfter)
}
