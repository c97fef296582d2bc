package grants

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// TermState is the state of this manager as a holder of the pool (R3 to R5): whether it is the holder, the number of
// its term, the commit in flight, and how long to wait after a conflict or a refusal. A manager that is not the holder
// commits nothing but a takeover.
type TermState struct {
	// WriteRefusal is the refusal for all claimants while the API server refuses the status of the pool, or while this
	// manager may not take it over; nil if neither. Nothing is committed before CommitAfter.
	WriteRefusal  *Refusal
	CommitAfter   time.Time
	commitBackoff time.Duration
	// writeRefusalCause is the cause of WriteRefusal. After an attempt whose result was not kept, the manager does
	// not add our finalizer to the pool again before AddFinalizerAfter.
	writeRefusalCause string
	AddFinalizerAfter time.Time
	Holder            bool
	Number            int64
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

	base *BasePool
}

// SetFenced records that this manager is the holder on record since before its watches began, in a term.
func (ts *TermState) SetFenced(term int64) { ts.FencedTerm = term }

// TakeFenced returns the term that SetFenced recorded, once, and how long the last list took; 0 means no term.
func (ts *TermState) TakeFenced() (term int64, listDuration time.Duration) {
	term = ts.FencedTerm
	ts.FencedTerm = 0
	return term, ts.ListDuration
}

// BeginCommit records that a commit is sent. Its outcome is unknown until CompleteCommit, RollbackCommit or LoseTerm.
func (ts *TermState) BeginCommit(c *PendingCommit) { ts.PendingCommit = c }

// PostponeFinalizer records that our finalizer was added to the pool and not kept: the next attempt waits until then.
func (ts *TermState) PostponeFinalizer(until time.Time) { ts.AddFinalizerAfter = until }

// RequestRevalidation records that the state of the pool is outdated: the next reconcile ends the term.
func (ts *TermState) RequestRevalidation() { ts.NeedsRevalidation = true }

// TakeRevalidation reports whether a job has found a reason to end the term, and resets that request.
func (ts *TermState) TakeRevalidation() bool {
	needed := ts.NeedsRevalidation
	ts.NeedsRevalidation = false
	return needed && ts.Holder
}

// CurrentTerm returns the current term of the pool.
func (ts *TermState) CurrentTerm() PoolTerm {
	if ts.base.Pool == nil {
		return PoolTerm{}
	}
	return PoolTerm{ts.base.Pool.GetUID(), ts.Number}
}

// RecordWriteRefusal records that the API server has refused a write of the pool permanently. The pool is not written
// again before a pause is over.
func (ts *TermState) RecordWriteRefusal(err error, now time.Time) {
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		err = status // without the context that wraps it
	}
	ts.recordRefusal(PoolNotReady("%s cannot be written: the API server refuses its status: %v", ts.base.Key, err), normalizeError(err), now)
}

// RecordUnknownKind records that this manager may not take the pool over: it has grants in flight to objects of a kind
// that this manager does not observe, which would end. The takeover is tried again after a pause.
func (ts *TermState) RecordUnknownKind(kind string, now time.Time) {
	ts.recordRefusal(PoolNotReady("%s has grants in flight to objects of kind %s, which this version of the manager does not know; run the version that made them", ts.base.Key, kind), kind, now)
}

func (ts *TermState) recordRefusal(refusal *Refusal, cause string, now time.Time) {
	if ts.WriteRefusal == nil || cause != ts.writeRefusalCause { // a new cause is written to each waiting claimant
		ts.WriteRefusal, ts.writeRefusalCause = refusal, cause
	}
	ts.commitBackoff = term.NextRetryPause(ts.commitBackoff)
	ts.CommitAfter = now.Add(ts.commitBackoff)
}

// IsWriteRefused reports whether the pool is not written now because of WriteRefusal.
func (ts *TermState) IsWriteRefused(now time.Time) bool {
	return ts.WriteRefusal != nil && now.Before(ts.CommitAfter)
}
