package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// carryOut carries out one step for a claimant, given as the step was decided on, and feeds back what the answer shows.
func (a *Allocator) carryOut(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step, t *grants.Attempt) (err error) {
	switch s.Verb {
	case grants.Stop, grants.EndGrant:
		return s.Err
	case grants.Create:
		err = a.create(ctx, p, c, s.Object)
	case grants.Remove:
		err = a.deleteAttached(ctx, p, s.Attached, t)
	case grants.Record, grants.Patch, grants.DropFinalizer:
		if s.Attached != nil {
			err = a.patchAttached(ctx, p, s, t)
		} else {
			err = a.patchClaimant(ctx, p, c, s)
		}
	case grants.LookAtClaimant:
		err = a.refresh(ctx, p, c)
		t.Read = true
	case grants.LookAtAttached:
		err = a.lookForAttached(ctx, p, c)
		t.Gone = true
	case grants.LookAtTerm:
		t.Ours, err = a.suspectTerm(ctx, p, c)
	}
	if err == nil && s.Event != nil {
		a.Recorder.Eventf(c.Subject(), nil, s.Event.EventType, s.Event.Reason, s.Event.Action, "%s", s.Event.Note)
	}
	if err == nil && s.Stranger != nil {
		a.tellStranger(p, s.Stranger)
	}
	return err
}

// patchClaimant patches the metadata or the status of a claimant, fenced by UID and resource version (R3). What changed
// meanwhile is read.
func (a *Allocator) patchClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step) error {
	obj := c.Object()
	if err := a.patch(ctx, obj, c.Owner.UID, c.Version, s.Meta, s.Status); err != nil {
		metrics.WriteErrs.WithLabelValues(s.Name).Inc()
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
	if s.Fulfils {
		metrics.FulfilmentOf(c.Owner.Kind).Observe(a.now().Sub(c.Created).Seconds())
	}
	if s.Verb == grants.DropFinalizer {
		metrics.Releases.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	}
	if s.Verb == grants.DropFinalizer && len(c.Others)+len(obj.GetFinalizers()) == 0 {
		a.forgetClaimant(p, c) // the answer to the patch that takes the last finalizer off a deleted object is its end
		return nil
	}
	next := c.Kind.Of(obj)
	m := p.Lock()
	defer m.Unlock()
	ours := next.Record
	m.Observe(next) // it takes what was remembered before for the record
	if known := m.Claimants[c.Owner.UID]; s.Verb == grants.Record && known != nil && known.Record != ours {
		known.Record = ours // from now on, whatever a user wrote
		m.State(known)
		m.Sort(known)
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
func (a *Allocator) refresh(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	live := c.Object()
	err := a.Live.Get(ctx, grants.NameOf(c.Owner), live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil || live.GetUID() != c.Owner.UID {
		a.forgetClaimant(p, c)
	}
	if err != nil {
		return nil
	}
	m := p.Lock()
	defer m.Unlock()
	if key, _ := c.Kind.PoolOf(live); key == p.Key {
		m.Observe(c.Kind.Of(live))
	}
	return nil
}

// forgetClaimant feeds the proof that a claimant is gone, to the pool that it is a block for first: what that still has of
// the block is kept from others.
func (a *Allocator) forgetClaimant(p *grants.Pool, c grants.Claimant) {
	var lost []netipx.IPRange
	if c.Child != nil {
		lost = a.forgetBlock(*c.Child, c.Owner.UID, c.Owner.Name)
	}
	m := p.Lock()
	defer m.Unlock()
	if c.Child != nil {
		a.keepLost(m, lost, *c.Child)
	}
	m.Forget(c.Owner.UID)
}

// create makes the object that shows what a claimant was granted. It is idempotent: the name is the claimant's, and the
// object tells whose it is.
func (a *Allocator) create(ctx context.Context, p *grants.Pool, c grants.Claimant, obj client.Object) error {
	kind := c.Kind.Traits().Attaches
	err := a.Client.Create(ctx, obj)
	if err != nil {
		metrics.WriteErrs.WithLabelValues("create").Inc()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s %s: %w", kind.Kind(), grants.NameOf(c.Owner), err)
		}
		if err := a.Live.Get(ctx, grants.NameOf(c.Owner), obj); err != nil {
			return err
		}
	}
	if key, _ := kind.PoolOf(obj); key != p.Key {
		// Its end is none of this pool's events: the name is tried again.
		if key.Kind != "" {
			a.requestCleanup(key, grants.NameOf(c.Owner))
		}
		return errors.Join(errAgain, a.writeRefusal(ctx, p, c, *kind.Taken(obj)))
	}
	no, isIts := a.observeMade(p, &c, kind.Of(obj))
	switch {
	case isIts:
		return nil
	case no == nil || c.Failures+1 < toldFrom: // it may be an earlier claimant's, and go in a moment
		return errAgain
	}
	return errors.Join(errAgain, a.writeRefusal(ctx, p, c, *no))
}

// observeMade takes what was made for a claimant, or what has its name. It reports whether that is the claimant's; else it returns why
// the claimant cannot have it, nil where it can, or where nothing keeps it any more.
func (a *Allocator) observeMade(p *grants.Pool, c *grants.Claimant, made *grants.Attached) (no *grants.Refusal, isIts bool) {
	m := p.Lock()
	defer m.Unlock()
	m.ObserveAttached(made)
	if made.ClaimantUID == c.Owner.UID {
		m.NoteUntold(c, made) // the claimant may have ended meanwhile (R2)
		return nil, true
	}
	known := m.Claimants[c.Owner.UID]
	if known == nil || known.Deleting {
		return nil, false
	}
	if other := m.AttachedTo(known); other == nil || m.Adoptable(known, other) {
		return nil, false
	}
	_, no = known.Kind.Designated(m, known)
	return no, false
}

// patchAttached patches the metadata of an attached object, fenced by UID and resource version (R3).
func (a *Allocator) patchAttached(ctx context.Context, p *grants.Pool, s grants.Step, t *grants.Attempt) error {
	was, obj := s.Attached, s.Attached.Object()
	t.Gone = false // what was proven before spoke of another one
	if err := a.patch(ctx, obj, was.UID, was.Version, s.Meta, nil); err != nil {
		return a.attachedChanged(ctx, p, was, err)
	}
	next := was.Kind.Traits().Attaches.Of(obj)
	m := p.Lock()
	defer m.Unlock()
	if was.Deleting && len(was.Others) == 0 && !next.Protected {
		// The answer to the patch that takes the last finalizer off a deleted object is its end.
		m.ForgetAttached(was.UID, was.Key())
		t.Gone = true
		return nil
	}
	m.ObserveAttached(next)
	t.Answer = next
	return nil
}

// attachedChanged reads an attached object live after a write of it was refused.
func (a *Allocator) attachedChanged(ctx context.Context, p *grants.Pool, was *grants.Attached, err error) error {
	metrics.WriteErrs.WithLabelValues("address").Inc()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	live, kind := was.Object(), was.Kind.Traits().Attaches
	getErr := a.Live.Get(ctx, was.Key(), live)
	m := p.Lock()
	defer m.Unlock()
	switch {
	case apierrors.IsNotFound(getErr):
		m.ForgetAttached(was.UID, was.Key())
	case getErr != nil:
		return getErr
	default:
		if live.GetUID() != was.UID {
			m.ForgetAttached(was.UID, was.Key())
		}
		if key, _ := kind.PoolOf(live); key == p.Key {
			m.ObserveAttached(kind.Of(live))
		}
	}
	return errAgain
}

// deleteAttached deletes an attached object as it was seen. Where no finalizer was on it, ours put back neither, the answer
// proves that it is gone.
func (a *Allocator) deleteAttached(ctx context.Context, p *grants.Pool, was *grants.Attached, t *grants.Attempt) error {
	t.Gone = false // what was proven before spoke of another one
	err := exact.Delete(ctx, a.Client, exact.As(was.Object(), was.UID, was.Version))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // a look tells what there is now
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", was.Text(), err)
	}
	if len(was.Others) == 0 && !was.Protected {
		m := p.Lock()
		m.ForgetAttached(was.UID, was.Key())
		m.Unlock()
		t.Gone = true
	}
	return nil
}

// lookForAttached returns nil when a live read shows that nothing is attached to a claimant's UID.
func (a *Allocator) lookForAttached(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	kind := c.Kind.Traits().Attaches
	live := grants.Named(kind.Object(), c.Owner.Namespace, c.Owner.Name)
	m := p.Lock()
	was := m.AttachedTo(&c) // what comes after the read is not what the read speaks of (R7)
	m.Unlock()
	err := a.Live.Get(ctx, grants.NameOf(c.Owner), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	m = p.Lock()
	defer m.Unlock()
	if err == nil {
		if is := kind.Of(live); m.ClaimantOf(is) == c.Owner.UID {
			m.ObserveAttached(is)
			return errAgain // somebody else's finalizer keeps it, or it was not seen before
		}
	}
	if was != nil && was.ClaimantUID == c.Owner.UID {
		m.ForgetAttached(was.UID, was.Key())
	}
	return nil
}

// detach removes an attached object that has no claimant.
func (a *Allocator) detach(ctx context.Context, p *grants.Pool, o *grants.Attached) error {
	t := &grants.Attempt{}
	if o.Protected {
		if err := a.patchAttached(ctx, p, grants.Removal(o, t), t); err != nil || t.Gone {
			return err
		}
		// As the answer shows it, and not as it is known by now: a claimant may have adopted it meanwhile (R2, R3).
		o = t.Answer
	}
	return a.deleteAttached(ctx, p, o, t)
}
