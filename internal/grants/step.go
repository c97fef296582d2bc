package grants

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Step is the next thing to do for a claimant: at most one request. The job records the result of the request, and
// then calls the kind of the claimant again.
type Step struct {
	Call
	// Object is the object to create.
	Object Object
	// Address is the address object to patch, delete or read instead of the claimant.
	Address *Address
	// MetadataPatch and StatusPatch are the contents of a patch. A patch of the status has no metadata.
	MetadataPatch, StatusPatch map[string]any
	// Err is why nothing can be done now, if the verb is StopJob.
	Err error
	// ForeignAddress is the IPAddress that is being recorded, if another provider created it while this manager
	// served the pool.
	ForeignAddress *Address
	// FirstPublication reports whether the status names the address of the claimant for the first time. Event is
	// recorded after the request succeeded.
	FirstPublication bool
	Event            *Event
}

// Call is the action of a step and its purpose, which is a label of the metrics. A job makes no call twice.
type Call struct {
	Verb    Verb
	Purpose string
}

// Event is the event of a step.
type Event struct{ EventType, Reason, Action, Note string }

// NewWarningEvent returns the event of a step that reports a problem.
func NewWarningEvent(reason, action, note string) *Event {
	return &Event{corev1.EventTypeWarning, reason, action, note}
}

// NewNormalEvent returns the event of a step that reports a success.
func NewNormalEvent(reason, action, note string) *Event {
	return &Event{corev1.EventTypeNormal, reason, action, note}
}

// Verb is the action of a step.
type Verb int

const (
	// StopJob ends the job, because there is nothing to do or, with an error, because nothing can be done now.
	StopJob Verb = iota
	// WriteRecord writes the range of the claimant to its annotation, together with our finalizer (R1).
	WriteRecord
	// CreateAddress creates the address object of the claimant.
	CreateAddress
	// PatchObject patches the claimant or its address object.
	PatchObject
	// DeleteAddress deletes the address object of the claimant.
	DeleteAddress
	// GetClaimant reads the claimant from the API server.
	GetClaimant
	// GetAddress reads the address object of the claimant from the API server.
	GetAddress
	// VerifyTerm reads the pool from the API server, and ends the job if another manager has taken the pool over.
	VerifyTerm
	// EndGrant ends the grant of a deleted claimant that has nothing, with the next commit (R6), and ends the job.
	// The release goes on after that commit.
	EndGrant
	// RemoveFinalizer removes our finalizer from a deleted claimant that has nothing any more.
	RemoveFinalizer
)

// IsRead reports whether a step changes nothing on the API server.
func (v Verb) IsRead() bool { return v == GetClaimant || v == GetAddress || v == VerifyTerm }

// Attempt is the state of one job for a claimant: what the job has found out so far.
type Attempt struct {
	Now time.Time
	// Grant is the grant of the claimant, nil if there is none or the job may not write for it now.
	Grant *Grant
	// ClaimantRead reports whether the job has read the claimant live; AddressGone reports whether the job has proven
	// that the claimant has no address object.
	ClaimantRead, AddressGone bool
	// TermVerifiedVersion is the resource version of the claimant that was read before a live read of the pool showed
	// the term of this manager.
	TermVerifiedVersion string
	// PatchedAddress is the address object as its last patch returned it.
	PatchedAddress *Address
	// CompletedCalls are the calls that were carried out.
	CompletedCalls []Call
}

// HasCompleted reports whether the job has carried out a call with a verb.
func (t *Attempt) HasCompleted(v Verb) bool {
	return slices.ContainsFunc(t.CompletedCalls, func(r Call) bool { return r.Verb == v })
}

// StopStep returns the step that ends a job.
func StopStep() Step { return Step{} }

// WriteRevertedError is the error of a write that succeeded and was not kept: the answer does not show it.
type WriteRevertedError struct{ ObjectName string }

func (e *WriteRevertedError) Error() string {
	return e.ObjectName + " differs from the manager's write: a mutating webhook or another controller changes it; exempt the manager from it"
}

// ErrorStep returns the step that ends a job with an error.
func ErrorStep(err error) Step { return Step{Err: err} }

// RemoveAddressStep returns the next step that removes an address object: first the removal of our finalizer, then
// the delete. Our finalizer is removed only once per job, even if another writer adds it again.
func RemoveAddressStep(a *Address, t *Attempt) Step {
	if a.HasFinalizer && !t.HasCompleted(PatchObject) {
		return Step{Call: Call{Verb: PatchObject, Purpose: "address"}, Address: a, MetadataPatch: map[string]any{"finalizers": a.OtherFinalizers}}
	}
	return Step{Call: Call{Verb: DeleteAddress}, Address: a}
}

// NewStep returns the step of a verb that needs no further content.
func NewStep(v Verb) Step { return Step{Call: Call{Verb: v}} }

// RemoveFinalizerStep returns the last step for a deleted claimant that has nothing any more.
func RemoveFinalizerStep(c *Claimant) Step {
	if !c.HasFinalizer {
		return StopStep()
	}
	return Step{Call: Call{Verb: RemoveFinalizer, Purpose: "release"}, MetadataPatch: map[string]any{"finalizers": c.OtherFinalizers}}
}

// WriteRecordStep returns the step that writes the range of a claimant on it, together with our finalizer, before any
// other write (R1).
func WriteRecordStep(c *Claimant, text string) Step {
	return Step{Call: Call{Verb: WriteRecord, Purpose: "record"}, MetadataPatch: map[string]any{
		"finalizers":  append(slices.Clone(c.OtherFinalizers), c.Kind.Traits().Finalizer),
		"annotations": map[string]string{v1alpha1.AddressAnnotation: text},
	}}
}

// Refusal is the reason why a claimant gets nothing now: a reason of the IPAM contract of Cluster API, and a message
// with what a user can do about it.
type Refusal struct{ Reason, Message string }

// AllocationFailed returns the refusal of a claimant that cannot be served as it is.
func AllocationFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyAllocationFailedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// PoolNotReady returns the refusal of a claimant whose pool cannot serve it.
func PoolNotReady(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolNotReadyReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// MayChangeAddress reports whether a claimant may get another address than the one on record. If the in-cluster
// provider and this manager serve a pool in turns, that provider may have granted an address of ours that was not
// published yet: it does not read records.
func (c *Claimant) MayChangeAddress() bool { return c.UsesMirroredPool && !c.StatusHasAddress }

// hasRecordPriority reports whether the record of a claimant has priority over that of another one with the same
// address, as copies of a manifest have. The claimant that has the address in its status has priority, otherwise the
// older one.
func (c *Claimant) hasRecordPriority(other *Claimant) bool {
	if c.StatusHasAddress != other.StatusHasAddress {
		return c.StatusHasAddress
	}
	return isOlderClaimant(c, other)
}

// refusedPrefix is the beginning of the message in the status of a claim whose IPAddress the API server refuses.
// Managers that are older than the reason WriteFailed recognize such a claim by it.
const refusedPrefix = "the API server refuses"

// RefusalForWriteError returns the refusal for the claimant whose own write has failed.
func RefusalForWriteError(err error) Refusal {
	do := "change the quota, policy or schema that refuses it"
	switch {
	case !term.IsPermanentRefusal(err):
		return *writeFailed("a write of this claim or its IPAddress fails: %v; the manager tries again", err)
	case isRBACForbidden(err):
		do = "apply the manifests of the manager's release again, which give it this right"
	}
	return *writeFailed("%s a write of this claim or its IPAddress: %v; %s, and the manager tries again", refusedPrefix, err, do)
}

// writeFailed returns the refusal for a claimant for which a write fails or is not attempted.
func writeFailed(format string, args ...any) *Refusal {
	return &Refusal{Reason: v1alpha1.WriteFailedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}

// isRBACForbidden reports whether RBAC refuses a write. It goes by the message of the API server, because the answers
// of quotas and policies have the reason Forbidden as well.
func isRBACForbidden(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}

// isWriteFailure reports whether the refusal reports a failed write. Another manager would not succeed soon either.
func (r Refusal) isWriteFailure() bool {
	older := r.Reason == ipamv1.IPAddressClaimReadyAllocationFailedReason && strings.HasPrefix(r.Message, refusedPrefix)
	return r.Reason == v1alpha1.WriteFailedReason || older
}
