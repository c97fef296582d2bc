package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// carryOut carries out one step for a claimant, given as the step was decided on, and feeds back what the answer shows.
func (a *Allocator) carryOut(ctx context.Context, p *pool, c claimant, s step, t *attempt) (err error) {
	switch s.verb {
	case stop, endGrant:
		return s.err
	case create:
		err = a.create(ctx, p, c, s.object)
	case remove:
		err = a.deleteAttached(ctx, p, s.attached, t)
	case record, patch, dropFinalizer:
		if s.attached != nil {
			err = a.patchAttached(ctx, p, s, t)
		} else {
			err = a.patchClaimant(ctx, p, c, s)
		}
	case lookAtClaimant:
		err = a.refresh(ctx, p, c)
		t.read = true
	case lookAtAttached:
		err = a.lookForAttached(ctx, p, c)
		t.gone = true
	case lookAtTerm:
		t.ours, err = a.suspectTerm(ctx, p, c)
	}
	if err == nil && s.event != nil {
		a.Recorder.Eventf(c.subject(), nil, s.event.eventType, s.event.reason, s.event.action, "%s", s.event.note)
	}
	return err
}

// patchClaimant patches the metadata or the status of a claimant, fenced by UID and resource version (R3). What changed
// meanwhile is read.
func (a *Allocator) patchClaimant(ctx context.Context, p *pool, c claimant, s step) error {
	obj := c.object()
	if err := a.patch(ctx, obj, c.owner.UID, c.rv, s.meta, s.status); err != nil {
		metrics.WriteErrs.WithLabelValues(s.name).Inc()
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			return err
		}
		if getErr := a.refresh(ctx, p, c); getErr != nil {
			return getErr
		}
		if apierrors.IsInvalid(err) {
			return err
		}
		return errAgain
	}
	if s.fulfils {
		metrics.FulfilmentOf(c.owner.Kind).Observe(a.now().Sub(c.created).Seconds())
	}
	if s.verb == dropFinalizer {
		metrics.Releases.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name).Inc()
	}
	next := c.kind.of(obj)
	m := p.lock()
	defer m.unlock()
	if s.verb == dropFinalizer && len(c.others) == 0 {
		// The answer to the patch that takes the last finalizer off a deleted object is its end.
		m.forget(c.owner.UID)
		return nil
	}
	ours := next.record
	m.observe(next) // it takes what was remembered before for the record
	if known := m.claimants[c.owner.UID]; s.verb == record && known != nil && known.record != ours {
		known.record = ours // from now on, whatever a user wrote
		m.state(known)
		m.sort(known)
	}
	return nil
}

// patch patches the metadata of an object, fenced by UID and resource version (R3), or its status, where one is given.
func (a *Allocator) patch(ctx context.Context, obj client.Object, uid types.UID, rv string, meta, status map[string]any) error {
	body := map[string]any{"metadata": withPreconditions(meta, uid, rv)}
	if status != nil {
		body["status"] = status
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if status != nil {
		return a.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw))
	}
	return a.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw))
}

// withPreconditions adds to the metadata of a patch which object it is for, in which state (R3).
func withPreconditions(meta map[string]any, uid types.UID, rv string) map[string]any {
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = uid, rv
	return meta
}

// refresh reads a claimant live: the answer to a write that was refused.
func (a *Allocator) refresh(ctx context.Context, p *pool, c claimant) error {
	live := c.object()
	err := a.Live.Get(ctx, nameOf(c.owner), live)
	m := p.lock()
	defer m.unlock()
	switch {
	case apierrors.IsNotFound(err):
		m.forget(c.owner.UID)
		return nil
	case err != nil:
		return err
	case live.GetUID() != c.owner.UID:
		m.forget(c.owner.UID)
	}
	if key, _ := c.kind.poolOf(live); key == p.key {
		m.observe(c.kind.of(live))
	}
	return nil
}

// create makes the object that shows what a claimant was granted. It is idempotent: the name is the claimant's, and the
// object tells whose it is.
func (a *Allocator) create(ctx context.Context, p *pool, c claimant, obj client.Object) error {
	kind := c.kind.traits().attaches
	err := a.Client.Create(ctx, obj)
	if err != nil {
		metrics.WriteErrs.WithLabelValues("create").Inc()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s %s: %w", kind.kind(), nameOf(c.owner), err)
		}
		if err := a.Live.Get(ctx, nameOf(c.owner), obj); err != nil {
			return err
		}
	}
	if key, _ := kind.poolOf(obj); key != p.key {
		// Its end is none of this pool's events: the name is tried again.
		if key.Kind != "" {
			a.requestCleanup(key, nameOf(c.owner))
		}
		return errors.Join(errAgain, a.writeRefusal(ctx, p, c, *kind.taken(obj)))
	}
	made := kind.of(obj)
	m := p.lock()
	defer m.unlock()
	m.observeAttached(made)
	if made.claimantUID == c.owner.UID {
		return nil
	}
	return errAgain
}

// patchAttached patches the metadata of an attached object, fenced by UID and resource version (R3).
func (a *Allocator) patchAttached(ctx context.Context, p *pool, s step, t *attempt) error {
	was, obj := s.attached, s.attached.object()
	t.gone = false // what was proven before spoke of another one
	if err := a.patch(ctx, obj, was.uid, was.rv, s.meta, nil); err != nil {
		return a.attachedChanged(ctx, p, was, err)
	}
	next := was.kind.traits().attaches.of(obj)
	m := p.lock()
	defer m.unlock()
	if was.deleting && len(was.others) == 0 && !next.protected {
		// The answer to the patch that takes the last finalizer off a deleted object is its end.
		m.forgetAttached(was.uid, was.key())
		t.gone = true
		return nil
	}
	m.observeAttached(next)
	t.answer = next
	return nil
}

// attachedChanged reads an attached object live after a write of it was refused.
func (a *Allocator) attachedChanged(ctx context.Context, p *pool, was *attached, err error) error {
	metrics.WriteErrs.WithLabelValues("address").Inc()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	live, kind := was.object(), was.kind.traits().attaches
	getErr := a.Live.Get(ctx, was.key(), live)
	m := p.lock()
	defer m.unlock()
	switch {
	case apierrors.IsNotFound(getErr):
		m.forgetAttached(was.uid, was.key())
	case getErr != nil:
		return getErr
	default:
		if live.GetUID() != was.uid {
			m.forgetAttached(was.uid, was.key())
		}
		if key, _ := kind.poolOf(live); key == p.key {
			m.observeAttached(kind.of(live))
		}
	}
	return errAgain
}

// deleteAttached deletes an attached object as it was seen. Where nobody else's finalizer was on it, the answer proves
// that it is gone.
func (a *Allocator) deleteAttached(ctx context.Context, p *pool, was *attached, t *attempt) error {
	uid, rv := was.uid, was.rv
	t.gone = false // what was proven before spoke of another one
	err := a.Client.Delete(ctx, was.object(), client.Preconditions{UID: &uid, ResourceVersion: &rv})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // a look tells what there is now
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", was.text(), err)
	}
	if len(was.others) == 0 {
		m := p.lock()
		m.forgetAttached(was.uid, was.key())
		m.unlock()
		t.gone = true
	}
	return nil
}

// lookForAttached returns nil when a live read shows that nothing is attached to a claimant's UID.
func (a *Allocator) lookForAttached(ctx context.Context, p *pool, c claimant) error {
	kind := c.kind.traits().attaches
	live := named(kind.object(), c.owner.Namespace, c.owner.Name)
	m := p.lock()
	was := m.attachedTo(&c) // what comes after the read is not what the read speaks of (R7)
	m.unlock()
	err := a.Live.Get(ctx, nameOf(c.owner), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	m = p.lock()
	defer m.unlock()
	if err == nil {
		if is := kind.of(live); is.claimantUID == c.owner.UID {
			m.observeAttached(is)
			return errAgain // somebody else's finalizer keeps it, or it was not seen before
		}
	}
	if was != nil && was.claimantUID == c.owner.UID {
		m.forgetAttached(was.uid, was.key())
	}
	return nil
}

// detach removes an attached object that has no claimant.
func (a *Allocator) detach(ctx context.Context, p *pool, o *attached) error {
	t := &attempt{}
	if o.protected {
		if err := a.patchAttached(ctx, p, removal(o, t), t); err != nil || t.gone {
			return err
		}
		// As the answer shows it, and not as it is known by now: a claimant may have adopted it meanwhile (R2, R3).
		o = t.answer
	}
	return a.deleteAttached(ctx, p, o, t)
}
