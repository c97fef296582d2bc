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

// executeStep executes one step for a claimant, passed as the step was decided on, and feeds back what the answer
// shows.
func (a *Allocator) executeStep(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step, t *grants.Attempt) (err error) {
	switch s.Verb {
	case grants.StopJob, grants.EndGrant:
		return s.Err
	case grants.CreateAddress:
		err = a.createAddress(ctx, p, c, s.Object)
	case grants.DeleteAddress:
		err = a.deleteAddress(ctx, p, s.Address, t)
	case grants.WriteRecord, grants.PatchObject, grants.RemoveFinalizer:
		if s.Address != nil {
			err = a.patchAddress(ctx, p, s, t)
		} else {
			err = a.patchClaimant(ctx, p, c, s)
		}
	case grants.GetClaimant:
		err = a.refreshClaimant(ctx, p, c)
		t.ClaimantRead = true
	case grants.GetAddress:
		err = a.verifyAddressGone(ctx, p, c)
		t.AddressGone = true
	case grants.VerifyTerm:
		t.TermVerifiedVersion, err = a.verifyTerm(ctx, p, c)
	}
	if err == nil && s.Event != nil {
		a.Recorder.Eventf(c.EventObject(), nil, s.Event.EventType, s.Event.Reason, s.Event.Action, "%s", s.Event.Note)
	}
	if err == nil && s.ForeignAddress != nil {
		a.recordForeignAddressEvent(p, s.ForeignAddress)
	}
	return err
}

// patchClaimant patches the metadata or the status of a claimant, with its UID and resourceVersion as preconditions
// (R3). A claimant that has changed meanwhile is read again.
func (a *Allocator) patchClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step) error {
	obj := c.NewObject()
	if err := a.patchObject(ctx, obj, c.Owner.UID, c.ResourceVersion, s.MetadataPatch, s.StatusPatch); err != nil {
		metrics.WriteErrors.WithLabelValues(s.Purpose).Inc()
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			return err
		}
		if getErr := a.refreshClaimant(ctx, p, c); getErr != nil {
			return getErr
		}
		if apierrors.IsInvalid(err) {
			return err
		}
		return errStateChanged
	}
	if s.FirstPublication {
		metrics.FulfilmentForKind(c.Owner.Kind).Observe(a.now().Sub(c.Created).Seconds())
	}
	if s.Verb == grants.RemoveFinalizer {
		metrics.ReleasedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	}
	if s.Verb == grants.RemoveFinalizer && len(c.OtherFinalizers)+len(obj.GetFinalizers()) == 0 {
		a.forgetClaimant(p, c) // the answer to the patch that removes the last finalizer of a deleted object is its end
		return nil
	}
	next := c.Kind.NewClaimant(obj)
	m := p.Lock()
	defer m.Unlock()
	own := next.RecordedRange
	m.ObserveClaimant(next) // it keeps the record that was remembered before
	if known := m.Claimants.ByUID[c.Owner.UID]; s.Verb == grants.WriteRecord && known != nil && known.RecordedRange != own {
		known.RecordedRange = own // from now on, whatever a user wrote
		m.UpdateClaimantFacts(known)
		m.Queues.QueueClaimant(known)
	}
	return nil
}

// patchObject patches the metadata of an object, with its UID and resourceVersion as preconditions (R3), or its status,
// where one is given.
func (a *Allocator) patchObject(ctx context.Context, obj client.Object, uid types.UID, rv string, meta, status map[string]any) error {
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

// withPreconditions adds the UID and the resourceVersion of the object to the metadata of a patch (R3).
func withPreconditions(meta map[string]any, uid types.UID, rv string) map[string]any {
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = uid, rv
	return meta
}

// refreshClaimant reads a claimant live, for example after a write of it was refused, and feeds the result.
func (a *Allocator) refreshClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	live := c.NewObject()
	err := a.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live)
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
	if key, _ := c.Kind.PoolKeyFor(live); key == p.Key {
		m.ObserveClaimant(c.Kind.NewClaimant(live))
	}
	return nil
}

// forgetClaimant feeds the proof that a claimant is gone, first to the pool that it is a block for: addresses of the
// block that are in use there are excluded from other grants.
func (a *Allocator) forgetClaimant(p *grants.Pool, c grants.Claimant) {
	var lost []netipx.IPRange
	if c.ChildPool != nil {
		lost = a.forgetBlock(*c.ChildPool, c.Owner.UID, c.Owner.Name)
	}
	m := p.Lock()
	defer m.Unlock()
	if c.ChildPool != nil {
		excludeLostRanges(m, lost, *c.ChildPool)
	}
	m.ForgetClaimant(c.Owner.UID)
}

// createAddress creates the object that shows what a claimant was granted. It is idempotent: the object has the
// claimant's name, and names its owner.
func (a *Allocator) createAddress(ctx context.Context, p *grants.Pool, c grants.Claimant, obj client.Object) error {
	kind := c.Kind.Traits().AddressKind
	err := a.Client.Create(ctx, obj)
	if err != nil {
		metrics.WriteErrors.WithLabelValues("create").Inc()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s %s: %w", kind.KindName(), grants.NamespacedNameFromOwner(c.Owner), err)
		}
		if err := a.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), obj); err != nil {
			return err
		}
	}
	if key, _ := kind.PoolKeyFor(obj); key != p.Key {
		// Its end is no event of this pool: the name is tried again.
		if key.Kind != "" {
			a.requestOrphanCleanup(key, grants.NamespacedNameFromOwner(c.Owner))
		}
		return errors.Join(errStateChanged, a.writeRefusal(ctx, p, c, *kind.NameTakenRefusal(obj)))
	}
	refusal, isIts := observeCreatedAddress(p, &c, kind.NewAddress(obj))
	switch {
	case isIts:
		return nil
	case refusal == nil || c.Failures+1 < failuresBeforeRefusal: // it may be an earlier claimant's, and be gone in a moment
		return errStateChanged
	}
	return errors.Join(errStateChanged, a.writeRefusal(ctx, p, c, *refusal))
}

// observeCreatedAddress feeds the object that was created for a claimant, or that has its name. isIts reports whether
// the object is the claimant's; otherwise refusal is why the claimant cannot have it, nil where it can, or where nothing
// blocks it any more.
func observeCreatedAddress(p *grants.Pool, c *grants.Claimant, made *grants.Address) (refusal *grants.Refusal, isIts bool) {
	m := p.Lock()
	defer m.Unlock()
	m.ObserveAddress(made)
	if made.ClaimantUID == c.Owner.UID {
		m.Addresses.MarkNeverPublished(c, made) // the claimant may have ended meanwhile (R2)
		return nil, true
	}
	known := m.Claimants.ByUID[c.Owner.UID]
	if known == nil || known.Deleting {
		return nil, false
	}
	if other := m.Addresses.AddressFor(known); other == nil || m.Inventory.IsAdoptable(known, other) {
		return nil, false
	}
	_, refusal = known.Kind.DesignatedRange(m.Inventory, known)
	return refusal, false
}

// patchAddress patches the metadata of an attached object, with its UID and resourceVersion as preconditions (R3).
func (a *Allocator) patchAddress(ctx context.Context, p *grants.Pool, s grants.Step, t *grants.Attempt) error {
	known, obj := s.Address, s.Address.NewObject()
	t.AddressGone = false // the proof was about another object
	if err := a.patchObject(ctx, obj, known.UID, known.ResourceVersion, s.MetadataPatch, nil); err != nil {
		return a.refreshRefusedAddress(ctx, p, known, err)
	}
	next := known.Kind.Traits().AddressKind.NewAddress(obj)
	m := p.Lock()
	defer m.Unlock()
	if known.Deleting && len(known.OtherFinalizers) == 0 && !next.HasFinalizer {
		// The answer to the patch that removes the last finalizer of a deleted object is its end.
		m.ForgetAddress(known.UID, known.Key())
		t.AddressGone = true
		return nil
	}
	m.ObserveAddress(next)
	t.PatchedAddress = next
	return nil
}

// refreshRefusedAddress reads an attached object live after a write of it was refused.
func (a *Allocator) refreshRefusedAddress(ctx context.Context, p *grants.Pool, known *grants.Address, err error) error {
	metrics.WriteErrors.WithLabelValues("address").Inc()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	live, kind := known.NewObject(), known.Kind.Traits().AddressKind
	getErr := a.Live.Get(ctx, known.Key(), live)
	m := p.Lock()
	defer m.Unlock()
	switch {
	case apierrors.IsNotFound(getErr):
		m.ForgetAddress(known.UID, known.Key())
	case getErr != nil:
		return getErr
	default:
		if live.GetUID() != known.UID {
			m.ForgetAddress(known.UID, known.Key())
		}
		if key, _ := kind.PoolKeyFor(live); key == p.Key {
			m.ObserveAddress(kind.NewAddress(live))
		}
	}
	return errStateChanged
}

// deleteAddress deletes an attached object, if it is unchanged. Where it had no finalizer, not even ours written back,
// the answer proves that it is gone.
func (a *Allocator) deleteAddress(ctx context.Context, p *grants.Pool, known *grants.Address, t *grants.Attempt) error {
	t.AddressGone = false // the proof was about another object
	err := exact.DeleteWithPreconditions(ctx, a.Client, exact.WithUIDAndVersion(known.NewObject(), known.UID, known.ResourceVersion))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // a read shows what there is now
	}
	if err != nil {
		return fmt.Errorf("deleting %s: %w", known.DisplayName(), err)
	}
	if len(known.OtherFinalizers) == 0 && !known.HasFinalizer {
		m := p.Lock()
		m.ForgetAddress(known.UID, known.Key())
		m.Unlock()
		t.AddressGone = true
	}
	return nil
}

// verifyAddressGone returns nil when a live read shows that nothing is attached to a claimant's UID.
func (a *Allocator) verifyAddressGone(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	kind := c.Kind.Traits().AddressKind
	live := grants.WithName(kind.NewObject(), c.Owner.Namespace, c.Owner.Name)
	m := p.Lock()
	known := m.Addresses.AddressFor(&c) // the read proves nothing about what comes after it (R7)
	m.Unlock()
	err := a.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	m = p.Lock()
	defer m.Unlock()
	if err == nil {
		if found := kind.NewAddress(live); m.Addresses.ClaimantUIDFor(found) == c.Owner.UID {
			m.ObserveAddress(found)
			return errStateChanged // another controller's finalizer keeps it, or it was not seen before
		}
	}
	if known != nil && known.ClaimantUID == c.Owner.UID {
		m.ForgetAddress(known.UID, known.Key())
	}
	return nil
}

// removeOrphanAddress removes an attached object that has no claimant.
func (a *Allocator) removeOrphanAddress(ctx context.Context, p *grants.Pool, o *grants.Address) error {
	t := &grants.Attempt{}
	if o.HasFinalizer {
		if err := a.patchAddress(ctx, p, grants.RemoveAddressStep(o, t), t); err != nil || t.AddressGone {
			return err
		}
		// Delete the object of the answer, not the current one: a claimant may have adopted it meanwhile (R2, R3).
		o = t.PatchedAddress
	}
	return a.deleteAddress(ctx, p, o, t)
}
