package grants

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Step is the next thing to do for a claimant: one request at most. What the answer shows is fed back, and the kind of
// the claimant is asked again.
type Step struct {
	Request
	// Object is what is created.
	Object Object
	// Attached is what is patched, deleted or read instead of the claimant.
	Attached *Attached
	// Meta and status are what a patch says; a status patch has no meta.
	Meta, Status map[string]any
	// Err is why nothing can be done now, where the verb is stop.
	Err error
	// Stranger is an IPAddress that is recorded, and that another provider has written while this manager served the pool.
	Stranger *Attached
	// Fulfils: the status names for the first time what the claimant has. Event is recorded when the request was
	// carried out.
	Fulfils bool
	Event   *Event
}

// Request is what a step does, and what for, as metrics have it. A job makes none twice.
type Request struct {
	Verb Verb
	Name string
}

// Event is what is recorded of a step.
type Event struct{ EventType, Reason, Action, Note string }

// Warning returns the event of a step that goes wrong for somebody.
func Warning(reason, action, note string) *Event {
	return &Event{corev1.EventTypeWarning, reason, action, note}
}

// Normal returns the event of a step that goes right.
func Normal(reason, action, note string) *Event {
	return &Event{corev1.EventTypeNormal, reason, action, note}
}

// Verb is what a step does.
type Verb int

const (
	// Stop means that there is nothing to do, or, with an error, nothing can be done now.
	Stop Verb = iota
	// Record writes what the claimant is given into its annotation, together with our finalizer (R1).
	Record
	// Create makes the object that shows what the claimant was granted.
	Create
	// Patch changes the claimant, or what is attached to it.
	Patch
	// Remove deletes what is attached to the claimant.
	Remove
	// LookAtClaimant reads the claimant live.
	LookAtClaimant
	// LookAtAttached reads live what is attached to the claimant.
	LookAtAttached
	// LookAtTerm ends the job if another manager has taken the pool over.
	LookAtTerm
	// EndGrant ends the grant of a deleted claimant that has nothing, with the next commit (R6), and the job: the
	// release goes on then.
	EndGrant
	// DropFinalizer takes our finalizer off a deleted claimant that has nothing any more.
	DropFinalizer
)

// Attempt is one try to bring a claimant forward: what it has found out for itself.
type Attempt struct {
	Now time.Time
	// Grant is that of the claimant, if it may be written on now.
	Grant *Grant
	// Read: the claimant was read live. Gone: it is proven that nothing is attached to the claimant.
	Read, Gone bool
	// Ours is the version of the claimant after which the pool was read live, and was this manager's.
	Ours string
	// Answer is what is attached to the claimant, as the last patch of it returned it.
	Answer *Attached
	// Done are the requests that were carried out.
	Done []Request
}

// Did reports whether a job has made a request.
func (t *Attempt) Did(v Verb) bool {
	return slices.ContainsFunc(t.Done, func(r Request) bool { return r.Verb == v })
}

// Nothing is the step that ends a job.
func Nothing() Step { return Step{} }

// UndoneError is the error of a write that was carried out and is not kept: the answer does not show it.
type UndoneError struct{ What string }

func (u *UndoneError) Error() string {
	return u.What + " is not as the manager wrote it: a mutating webhook, or another controller, changes what is written; exempt the manager from it"
}

// Fails ends a job that cannot go on.
func Fails(err error) Step { return Step{Err: err} }

// Removal returns the next request that removes what is attached to a claimant: our finalizer goes first. It is taken off
// once, whoever puts it back.
func Removal(a *Attached, t *Attempt) Step {
	if a.Protected && !t.Did(Patch) {
		return Step{Request: Request{Verb: Patch, Name: "address"}, Attached: a, Meta: map[string]any{"finalizers": a.Others}}
	}
	return Step{Request: Request{Verb: Remove}, Attached: a}
}

// Look is the step that finds something out.
func Look(v Verb) Step { return Step{Request: Request{Verb: v}} }

// Ended is the last step for a deleted claimant that has nothing any more.
func Ended(c *Claimant) Step {
	if !c.HasFinalizer {
		return Nothing()
	}
	return Step{Request: Request{Verb: DropFinalizer, Name: "release"}, Meta: map[string]any{"finalizers": c.Others}}
}

// RecordOn writes on a claimant what it is given, together with our finalizer, before anything else (R1).
func RecordOn(c *Claimant, text string) Step {
	return Step{Request: Request{Verb: Record, Name: "record"}, Meta: map[string]any{
		"finalizers":  append(slices.Clone(c.Others), c.Kind.Traits().Finalizer),
		"annotations": map[string]string{v1alpha1.AddressAnnotation: text},
	}}
}
