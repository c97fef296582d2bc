package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// objectWriter writes claimants and the objects attached to them, and feeds back what each answer shows. Each write has
// the UID and the resourceVersion of the object as preconditions (R3). It runs in jobs, and locks no pool while it
// waits for the API server.
type objectWriter struct {
	*Options
	queue *workQueue
	pools *poolSet
	feed  *objectFeed
}

// errStateChanged reports that an object differs from its assumed state: the job is tried again, and no failure is
// logged.
var errStateChanged = errors.New("changed meanwhile")

// failuresBeforeRefusal is how many times in a row a write that the API server does not refuse for good may fail before
// the claimant gets a refusal.
const failuresBeforeRefusal = 4

// executeStep executes one step for a claimant, passed as the step was decided on, and feeds back what the answer
// shows.
func (wr *objectWriter) executeStep(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step, t *grants.Attempt) (err error) {
	switch s.Verb {
	case grants.StopJob, grants.EndGrant:
		return s.Err
	case grants.CreateAddress:
		err = wr.createAddress(ctx, p, c, s.Object)
	case grants.DeleteAddress:
		err = wr.deleteAddress(ctx, p, s.Address, t)
	case grants.WriteRecord, grants.PatchObject, grants.RemoveFinalizer:
		if s.Address != nil {
			err = wr.patchAddress(ctx, p, s, t)
		} else {
			err = wr.patchClaimant(ctx, p, c, s)
		}
	case grants.GetClaimant:
		err = wr.refreshClaimant(ctx, p, c)
		t.ClaimantRead = true
	case grants.GetAddress:
		err = wr.verifyAddressGone(ctx, p, c)
		t.AddressGone = true
	case grants.VerifyTerm:
		t.TermVerifiedVersion, err = wr.verifyTerm(ctx, p, c)
	}
	if err == nil && s.Event != nil {
		wr.Recorder.Eventf(c.EventObject(), nil, s.Event.EventType, s.Event.Reason, s.Event.Action, "%s", s.Event.Note)
	}
	if err == nil && s.ForeignAddress != nil {
		wr.recordForeignAddressEvent(p, s.ForeignAddress)
	}
	return err
}

// writeRefusal writes a refusal into the status of a claim that does not show it yet.
func (wr *objectWriter) writeRefusal(ctx context.Context, p *grants.Pool, c grants.Claimant, refusal grants.Refusal) error {
	if c.HasPublished(refusal) {
		return nil
	}
	if err := wr.executeStep(ctx, p, c, c.Kind.RefusalStep(&c, refusal), &grants.Attempt{}); err != nil {
		return err
	}
	if current, known := claimantSnapshot(p, c.Owner.UID); known && !current.Deleting && !current.HasPublished(refusal) {
		return &grants.WriteRevertedError{ObjectName: "the status of " + c.Owner.Kind + " " + grants.NamespacedNameFromOwner(c.Owner).String()}
	}
	metrics.ClaimRefusals.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name, refusal.Reason).Inc()
	return nil
}

// setClaimantCondition writes a condition that shows what delays a claim. The next write of the claim's status removes
// Paused.
func (wr *objectWriter) setClaimantCondition(ctx context.Context, p *grants.Pool, c grants.Claimant, condition metav1.Condition) error {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	// The conditions of a claim that is served are not remembered: read them, and write them with the resourceVersion
	// of that read.
	live := c.NewObject()
	if err := wr.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live); err != nil || live.GetUID() != c.Owner.UID {
		return errors.Join(wr.refreshClaimant(ctx, p, c), client.IgnoreNotFound(err))
	}
	setter, ok := live.(conditions.Setter)
	if !ok {
		return nil
	}
	c.ResourceVersion = live.GetResourceVersion()
	conditions.Set(setter, condition)
	step := grants.Step{Call: grants.Call{Verb: grants.PatchObject, Purpose: "status"}, StatusPatch: map[string]any{grants.ConditionsField: setter.GetConditions()}}
	if err := wr.executeStep(ctx, p, c, step, &grants.Attempt{}); err != nil {
		return err
	}
	latest, known := claimantSnapshot(p, c.Owner.UID)
	if known && !showsCondition(&latest, condition) {
		return &grants.WriteRevertedError{ObjectName: "the status of " + c.Owner.Kind + " " + grants.NamespacedNameFromOwner(c.Owner).String()}
	}
	return nil
}

// showsCondition reports whether the status of a claimant shows the condition that setClaimantCondition wrote.
func showsCondition(c *grants.Claimant, condition metav1.Condition) bool {
	return c.PublishedPauseMessage == condition.Message || c.PublishedRefusal().Message == condition.Message || (condition.Status == metav1.ConditionUnknown && c.PublishedOwnerSeen == grants.OwnerSeenPaused)
}

func claimantSnapshot(p *grants.Pool, uid types.UID) (grants.Claimant, bool) {
	m := p.Lock()
	defer m.Unlock()
	c := m.Claimants.ByUID[uid]
	if c == nil {
		return grants.Claimant{}, false
	}
	return *c, true
}

// patchClaimant patches the metadata or the status of a claimant, with its UID and resourceVersion as preconditions
// (R3). A claimant that has changed meanwhile is read again.
func (wr *objectWriter) patchClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant, s grants.Step) error {
	obj := c.NewObject()
	if err := wr.patchObject(ctx, obj, c.Owner.UID, c.ResourceVersion, s.MetadataPatch, s.StatusPatch); err != nil {
		metrics.WriteErrors.WithLabelValues(s.Purpose).Inc()
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			return err
		}
		if getErr := wr.refreshClaimant(ctx, p, c); getErr != nil {
			return getErr
		}
		if apierrors.IsInvalid(err) {
			return err
		}
		return errStateChanged
	}
	if s.FirstPublication {
		metrics.FulfilmentForKind(c.Owner.Kind).Observe(wr.now().Sub(c.Created).Seconds())
	}
	if s.Verb == grants.RemoveFinalizer {
		metrics.ReleasedAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	}
	if s.Verb == grants.RemoveFinalizer && len(c.OtherFinalizers)+len(obj.GetFinalizers()) == 0 {
		wr.feed.forgetClaimant(p, c) // the answer to the patch that removes the last finalizer of a deleted object is its end
		return nil
	}
	next := c.Kind.NewClaimant(obj)
	m := p.Lock()
	defer m.Unlock()
	own := next.RecordedRange
	m.ObserveClaimant(next) // it keeps the record that was remembered before
	if known := m.Claimants.ByUID[c.Owner.UID]; s.Verb == grants.WriteRecord && known != nil && known.RecordedRange != own {
		known.SetRecordedRange(own) // from now on, whatever a user wrote
		m.UpdateClaimantFacts(known)
		m.Queues.QueueClaimant(known)
	}
	return nil
}

// patchObject patches the metadata of an object, with its UID and resourceVersion as preconditions (R3), or its status,
// where one is given.
func (wr *objectWriter) patchObject(ctx context.Context, obj client.Object, uid types.UID, rv string, meta, status map[string]any) error {
	body := map[string]any{"metadata": withPreconditions(meta, uid, rv)}
	if status != nil {
		body["status"] = status
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if status != nil {
		return wr.Client.Status().Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw))
	}
	return wr.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw))
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
func (wr *objectWriter) refreshClaimant(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	live := c.NewObject()
	err := wr.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil || live.GetUID() != c.Owner.UID {
		wr.feed.forgetClaimant(p, c)
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

// verifyTerm reads live whether this manager still holds the pool, since a claim's record differs from what this
// manager believes it granted. If it does, verifyTerm returns the version of the claim for which that is proven. If
// not, this manager's state of the pool is out of date and the term ends; the reconcile ends it, since it may be
// committing now. The claim is read before the pool, so a pool that is still ours was ours when the record was written.
func (wr *objectWriter) verifyTerm(ctx context.Context, p *grants.Pool, c grants.Claimant) (version string, err error) {
	if err := wr.refreshClaimant(ctx, p, c); err != nil {
		return "", err
	}
	before, _ := claimantSnapshot(p, c.Owner.UID)
	live, err := p.Key.GetPool(ctx, wr.Live)
	if err != nil {
		return "", err
	}
	m := p.Lock()
	defer m.Unlock()
	state := live.PoolStatus().Allocator
	if m.Base.Pool != nil && live.GetUID() == m.Base.Pool.GetUID() && state != nil && state.Holder == wr.ManagerID && state.Term == m.Term.Number {
		return before.ResourceVersion, nil // a claim that has changed since is checked again
	}
	m.Term.RequestRevalidation()
	return "", errStateChanged
}

// createAddress creates the object that shows what a claimant was granted. It is idempotent: the object has the
// claimant's name, and names its owner.
func (wr *objectWriter) createAddress(ctx context.Context, p *grants.Pool, c grants.Claimant, obj client.Object) error {
	kind := c.Kind.Traits().AddressKind
	err := wr.Client.Create(ctx, obj)
	if err != nil {
		metrics.WriteErrors.WithLabelValues("create").Inc()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %s %s: %w", kind.KindName(), grants.NamespacedNameFromOwner(c.Owner), err)
		}
		if err := wr.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), obj); err != nil {
			return err
		}
	}
	if key, _ := kind.PoolKeyFor(obj); key != p.Key {
		// Its end is no event of this pool: the name is tried again.
		if key.Kind != "" {
			wr.requestOrphanCleanup(key, grants.NamespacedNameFromOwner(c.Owner))
		}
		return errors.Join(errStateChanged, wr.writeRefusal(ctx, p, c, *kind.NameTakenRefusal(obj)))
	}
	refusal, isIts := observeCreatedAddress(p, &c, kind.NewAddress(obj))
	switch {
	case isIts:
		return nil
	case refusal == nil || c.Failures+1 < failuresBeforeRefusal: // it may be an earlier claimant's, and be gone in a moment
		return errStateChanged
	}
	return errors.Join(errStateChanged, wr.writeRefusal(ctx, p, c, *refusal))
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

// requestOrphanCleanup has a pool settle at once what an earlier claim of a name has left: a claim of another pool
// needs the name.
func (wr *objectWriter) requestOrphanCleanup(key pools.Key, name types.NamespacedName) {
	m := wr.pools.lockPool(key)
	defer m.Unlock()
	if s := m.Addresses.Orphans[name]; s != nil && s.MarkConflict() {
		wr.queue.enqueuePool(key)
	}
}

// patchAddress patches the metadata of an attached object, with its UID and resourceVersion as preconditions (R3).
func (wr *objectWriter) patchAddress(ctx context.Context, p *grants.Pool, s grants.Step, t *grants.Attempt) error {
	known, obj := s.Address, s.Address.NewObject()
	t.AddressGone = false // the proof was about another object
	if err := wr.patchObject(ctx, obj, known.UID, known.ResourceVersion, s.MetadataPatch, nil); err != nil {
		return wr.refreshRefusedAddress(ctx, p, known, err)
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
func (wr *objectWriter) refreshRefusedAddress(ctx context.Context, p *grants.Pool, known *grants.Address, err error) error {
	metrics.WriteErrors.WithLabelValues("address").Inc()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	live, kind := known.NewObject(), known.Kind.Traits().AddressKind
	getErr := wr.Live.Get(ctx, known.Key(), live)
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
func (wr *objectWriter) deleteAddress(ctx context.Context, p *grants.Pool, known *grants.Address, t *grants.Attempt) error {
	t.AddressGone = false // the proof was about another object
	err := exact.DeleteWithPreconditions(ctx, wr.Client, exact.WithUIDAndVersion(known.NewObject(), known.UID, known.ResourceVersion))
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
func (wr *objectWriter) verifyAddressGone(ctx context.Context, p *grants.Pool, c grants.Claimant) error {
	kind := c.Kind.Traits().AddressKind
	live := grants.WithName(kind.NewObject(), c.Owner.Namespace, c.Owner.Name)
	m := p.Lock()
	known := m.Addresses.AddressFor(&c) // the read proves nothing about what comes after it (R7)
	m.Unlock()
	err := wr.Live.Get(ctx, grants.NamespacedNameFromOwner(c.Owner), live)
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

// recordForeignAddressEvent records an event that another provider serves a pool beside this manager.
func (wr *objectWriter) recordForeignAddressEvent(p *grants.Pool, address *grants.Address) {
	metrics.ForeignAddresses.WithLabelValues(p.Key.Kind, p.Key.Namespace, p.Key.Name).Inc()
	m := p.Lock()
	base := m.Base.Pool
	m.Unlock()
	if base == nil {
		return
	}
	wr.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "TwoProviders", "Allocate",
		"%s was written by another provider, which serves this pool beside this manager and may give an address twice; "+
			"stop it (kubectl butler-ipam drop-in lists what runs), and prevent its restart", address.DisplayName())
}
