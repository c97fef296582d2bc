package allocator

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// step is the next thing to do for a claimant: one request at most. What the answer shows is fed back, and the kind of
// the claimant is asked again.
type step struct {
	request
	// object is what is created.
	object Object
	// attached is what is patched, deleted or read instead of the claimant.
	attached *attached
	// meta and status are what a patch says; a status patch has no meta.
	meta, status map[string]any
	// err is why nothing can be done now, where the verb is stop.
	err error
	// fulfils: the status names for the first time what the claimant has. event is recorded when the request was
	// carried out.
	fulfils bool
	event   *event
}

// request is what a step does, and what for, as metrics have it. A job makes none twice.
type request struct {
	verb verb
	name string
}

type event struct{ eventType, reason, action, note string }

func warning(reason, action, note string) *event {
	return &event{corev1.EventTypeWarning, reason, action, note}
}
func normal(reason, action, note string) *event {
	return &event{corev1.EventTypeNormal, reason, action, note}
}

type verb int

const (
	// stop: there is nothing to do, or, with an error, nothing can be done now.
	stop verb = iota
	// record writes what the claimant is given into its annotation, together with our finalizer (R1).
	record
	// create makes the object that shows what the claimant was granted.
	create
	// patch changes the claimant, or what is attached to it.
	patch
	// remove deletes what is attached to the claimant.
	remove
	// lookAtClaimant reads the claimant live; lookAtAttached, what is attached to it.
	lookAtClaimant
	lookAtAttached
	// lookAtTerm ends the job if another manager has taken the pool over.
	lookAtTerm
	// endGrant ends the grant of a deleted claimant that has nothing, with the next commit (R6), and the job: the
	// release goes on then.
	endGrant
	// dropFinalizer takes our finalizer off a deleted claimant that has nothing any more.
	dropFinalizer
)

// attempt is one try to bring a claimant forward: what it has found out for itself.
type attempt struct {
	now time.Time
	// grant is that of the claimant, if it may be written on now.
	grant *grant
	// read: the claimant was read live. gone: it is proven that nothing is attached to the claimant.
	read, gone bool
	// ours is the version of the claimant after which the pool was read live, and was this manager's.
	ours string
	// answer is what is attached to the claimant, as the last patch of it returned it.
	answer *attached
	// done are the requests that were carried out.
	done []request
}

// did reports whether a job has made a request.
func (t *attempt) did(v verb) bool {
	return slices.ContainsFunc(t.done, func(r request) bool { return r.verb == v })
}

// nothing is the step that ends a job.
func nothing() step { return step{} }

// fails ends a job that cannot go on.
func fails(err error) step { return step{err: err} }

// removal returns the next request that removes what is attached to a claimant: our finalizer goes first. It is taken off
// once, whoever puts it back.
func removal(a *attached, t *attempt) step {
	if a.protected && !t.did(patch) {
		return step{request: request{verb: patch, name: "address"}, attached: a, meta: map[string]any{"finalizers": a.others}}
	}
	return step{request: request{verb: remove}, attached: a}
}

// look is the step that finds something out.
func look(v verb) step { return step{request: request{verb: v}} }

// ended is the last step for a deleted claimant that has nothing any more.
func ended(c *claimant) step {
	if !c.hasFinalizer {
		return nothing()
	}
	return step{request: request{verb: dropFinalizer, name: "release"}, meta: map[string]any{"finalizers": c.others}}
}

// recordOn writes on a claimant what it is given, together with our finalizer, before anything else (R1).
func recordOn(c *claimant, text string) step {
	return step{request: request{verb: record, name: "record"}, meta: map[string]any{
		"finalizers":  append(slices.Clone(c.others), c.kind.traits().finalizer),
		"annotations": map[string]string{v1alpha1.AddressAnnotation: text},
	}}
}
