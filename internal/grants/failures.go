package grants

import (
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Failures has the namespaces with claimants for which writes fail, so that one namespace neither fills the pool nor
// makes the manager retry all of its claimants. A namespace is failing while a known claimant of it has failed.
type Failures struct {
	// failing are the namespaces with claimants that cannot be served, and statusFailing are those with claimants
	// whose status cannot be written. nextTrialAt is when the next claimant that waits for others of its namespace is
	// tried.
	failing, statusFailing failingNamespaces
	nextTrialAt            time.Time
	// healthyNamespaces are the namespaces in which a claimant was served since the last failure.
	healthyNamespaces map[string]struct{}

	claimants *Claimants
	grants    *Grants
}

// failingNamespaces are the namespaces with claimants for which writes fail, by name.
type failingNamespaces map[string]*failingNamespace

// failingNamespace is the state of a namespace with claimants for which writes fail.
type failingNamespace struct {
	// failedClaimants are the claimants whose last write failed.
	failedClaimants map[types.UID]struct{}
	// lastError is the error in the refusal for other claimants of the namespace: the last permanent refusal of the
	// API server, otherwise the first error. lastErrorAt is when it was set.
	lastError   error
	lastErrorAt time.Time
	// nextTrialAt is when another claimant of the namespace is tried; trialBackoff is the pause until the trial after
	// that.
	nextTrialAt  time.Time
	trialBackoff time.Duration
}

// RecordFailure records that a claimant could not be served and is retried later. If the API server has refused the
// write permanently, no write for its grant can be stored any more, so the next commit ends the grant. The claimant
// is granted its range on record again at the retry (R6).
func (f *Failures) RecordFailure(c *Claimant, err error, now time.Time) {
	if g := f.grants.ByClaimant[c.Owner.UID]; g != nil {
		if !term.IsPermanentRefusal(err) {
			g.outcomeUnknown = true
		} else if !g.outcomeUnknown && !g.Inherited {
			g.Confirmed = g.Confirmed || g.Committed
		}
	}
	delete(f.healthyNamespaces, c.Owner.Namespace)
	f.failing.recordFailure(c, err, now)
}

// RecordStatusFailure records that the status of a waiting claimant could not be written and is retried later.
func (f *Failures) RecordStatusFailure(c *Claimant, err error, now time.Time) {
	f.statusFailing.recordFailure(c, err, now)
}

func (fns failingNamespaces) recordFailure(c *Claimant, err error, now time.Time) {
	t := fns[c.Owner.Namespace]
	if t == nil {
		t = &failingNamespace{failedClaimants: map[types.UID]struct{}{}, trialBackoff: term.MinRetryPause}
		fns[c.Owner.Namespace] = t
	}
	t.updateError(err, now)
	_, again := t.failedClaimants[c.Owner.UID]
	t.failedClaimants[c.Owner.UID] = struct{}{}
	// The claimants of a namespace are not retried all at once.
	c.RetryAt = term.NextRetryTime(now, c.Failures, len(t.failedClaimants)-1, err)
	if !again && len(t.failedClaimants) == term.SerialRetryThreshold {
		t.nextTrialAt = now.Add(t.trialBackoff)
	}
}

// updateError sets the error in the refusal for other claimants if it is more useful than the last one: a permanent
// refusal replaces another error at once, and replaces a permanent refusal of another cause after term.MaxRetryPause.
// Each change is written to each of these claimants.
func (fn *failingNamespace) updateError(err error, now time.Time) {
	wasPermanent, isPermanent := fn.lastError != nil && term.IsPermanentRefusal(fn.lastError), term.IsPermanentRefusal(err)
	switch {
	case fn.lastError == nil, isPermanent && !wasPermanent:
	case !isPermanent, normalizeError(err) == normalizeError(fn.lastError), now.Before(fn.lastErrorAt.Add(term.MaxRetryPause)):
		return
	}
	fn.lastError, fn.lastErrorAt = err, now
}

// ClearFailure records that a claimant was served, or is gone. If it was served, all others of its namespace are
// retried at once. It reports whether the namespace was failing.
func (f *Failures) ClearFailure(c *Claimant, served bool) bool {
	if served {
		f.healthyNamespaces[c.Owner.Namespace] = struct{}{}
	}
	return f.failing.clearFailure(f.claimants.ByUID, c, served)
}

// HasStatusFailure reports whether the last write of the status of a waiting claimant failed.
func (f *Failures) HasStatusFailure(c *Claimant) bool {
	t := f.statusFailing[c.Owner.Namespace]
	if t == nil {
		return false
	}
	_, ok := t.failedClaimants[c.Owner.UID]
	return ok
}

// ClearStatusFailure records that the status of a waiting claimant was written. The status of all others of its
// namespace is retried at once. It reports whether the namespace was failing.
func (f *Failures) ClearStatusFailure(c *Claimant) bool {
	return f.statusFailing.clearFailure(f.claimants.ByUID, c, true)
}

func (fns failingNamespaces) clearFailure(claimants map[types.UID]*Claimant, c *Claimant, well bool) bool {
	t := fns[c.Owner.Namespace]
	if t == nil {
		return false
	}
	if delete(t.failedClaimants, c.Owner.UID); !well {
		if len(t.failedClaimants) == 0 {
			delete(fns, c.Owner.Namespace)
		}
		return true
	}
	delete(fns, c.Owner.Namespace)
	for uid := range t.failedClaimants {
		if other := claimants[uid]; other != nil && !other.Busy {
			other.Reset()
		}
	}
	return true
}

// RecordTrial records that a claimant is granted a range, which is the trial if its namespace is failing.
func (f *Failures) RecordTrial(c *Claimant, now time.Time) { f.failing.recordTrial(c, now) }

// MaySetCondition reports whether the condition of a waiting claimant may be written now.
func (f *Failures) MaySetCondition(c *Claimant, now time.Time) bool {
	if !c.IsDue(now) {
		return false
	}
	t := f.statusFailing.blockingNamespace(c, now)
	if t != nil {
		f.scheduleTrial(t)
	}
	return t == nil
}

// RecordConditionTrial records that the condition of a waiting claimant is being written, which is the trial if the
// status of others of its namespace cannot be written.
func (f *Failures) RecordConditionTrial(c *Claimant, now time.Time) {
	f.statusFailing.recordTrial(c, now)
}

// blockingNamespace returns the failing namespace that blocks a claimant: too many of its claimants fail, and no
// trial is due. It returns nil if the claimant may be tried.
func (fns failingNamespaces) blockingNamespace(c *Claimant, now time.Time) *failingNamespace {
	if t := fns.trialNamespaceFor(c); t != nil && now.Before(t.nextTrialAt) {
		return t
	}
	return nil
}

// recordTrial counts an attempt for a claimant as the trial of its namespace, if that is failing and a trial is due.
func (fns failingNamespaces) recordTrial(c *Claimant, now time.Time) {
	if t := fns.trialNamespaceFor(c); t != nil && !now.Before(t.nextTrialAt) {
		t.trialBackoff = term.NextRetryPause(t.trialBackoff)
		t.nextTrialAt = term.NextBatchTime(now.Add(t.trialBackoff))
	}
}

// trialNamespaceFor returns the failing namespace whose trials a claimant waits for. It returns nil if the claimant
// waits for none, or if it has failed itself and has its own retry time.
func (fns failingNamespaces) trialNamespaceFor(c *Claimant) *failingNamespace {
	t := fns[c.Owner.Namespace]
	if t == nil || len(t.failedClaimants) < term.SerialRetryThreshold {
		return nil
	}
	if _, failed := t.failedClaimants[c.Owner.UID]; failed {
		return nil
	}
	return t
}

// scheduleTrial makes sure that the pool is reconciled when the next trial of a namespace is due. It is called only
// if a claimant waits for the trial.
func (f *Failures) scheduleTrial(t *failingNamespace) {
	if f.nextTrialAt.IsZero() || t.nextTrialAt.Before(f.nextTrialAt) {
		f.nextTrialAt = t.nextTrialAt
	}
}

// refusalForOthers returns the refusal for the claimants of a namespace that wait for others.
func (fn *failingNamespace) refusalForOthers(namespace string) *Refusal {
	if !term.IsPermanentRefusal(fn.lastError) {
		return writeFailed("writing the IPAddresses of other claims in namespace %s fails: %v; this claim is tried when one of those is served", namespace, fn.lastError)
	}
	return writeFailed("%s the IPAddresses of other claims in namespace %s: %v; change what refuses them: this claim is tried when one of those is served", refusedPrefix, namespace, fn.lastError)
}

// variableErrorParts matches the parts that differ between errors of the same cause: names, and the counts of a
// quota.
var variableErrorParts = regexp.MustCompile(`"[^"]*"|[0-9]+`)

// normalizeError returns the text of an error without the parts that depend on the object.
func normalizeError(err error) string { return variableErrorParts.ReplaceAllString(err.Error(), "") }
