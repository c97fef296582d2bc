package migrate

import (
	"context"
	"fmt"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
)

// entryMover moves entries from one side to the other: in an import, or in a rollback.
type entryMover struct {
	client   client.Client
	from, to poolSide
	// recordRelease records in the journal that an entry is released, before it is.
	recordRelease func(ctx context.Context, key client.ObjectKey) error
}

// moveEntry moves one entry as far as it is not moved yet. It continues from any state that a crash has left, in this
// direction or the other, and, when it is called again after a conflict, from what other writers have changed.
func (em *entryMover) moveEntry(ctx context.Context, e Entry, released bool) error {
	claim, address, err := em.getLive(ctx, e)
	if err != nil {
		return err
	}
	switch {
	case claim == nil && released:
		if address != nil && address.Spec.PoolRef == em.from.poolRef {
			return deleteWithFinalizers(ctx, em.client, address) // its claim is gone for good
		}
		return nil
	case claim != nil && claim.Spec.PoolRef == em.from.poolRef:
		if claim.DeletionTimestamp != nil {
			return em.releaseClaim(ctx, e, claim, address)
		}
		if err := deleteWithFinalizers(ctx, em.client, claim); err != nil {
			return err
		}
		claim = nil
	}
	if claim == nil {
		claim = em.to.newClaim(e)
		if err := em.client.Create(ctx, claim); err != nil {
			return fmt.Errorf("creating claim %s: %w", e.key(), err)
		}
	}
	want := em.to.newClaim(e)
	if err := ensureOwnersAndFinalizers(ctx, em.client, claim, want.OwnerReferences, want.Finalizers); err != nil {
		return err
	}
	if e.Address == nil || claim.DeletionTimestamp != nil && address == nil {
		return nil
	}
	if err := em.restoreStatus(ctx, claim, e); err != nil {
		return err
	}
	if address != nil && address.Spec.PoolRef == em.from.poolRef {
		if err := deleteWithFinalizers(ctx, em.client, address); err != nil {
			return err
		}
		address = nil
	}
	desired := em.to.newAddress(e, claim)
	if address == nil {
		if err := em.client.Create(ctx, desired); err != nil {
			return fmt.Errorf("creating IPAddress %s: %w", e.key(), err)
		}
		return nil
	}
	return ensureOwnersAndFinalizers(ctx, em.client, address, desired.OwnerReferences, desired.Finalizers)
}

// getLive reads the claim and the IPAddress of an entry; nil for one that is gone. It returns an error if one of them
// is not of the entry.
func (em *entryMover) getLive(ctx context.Context, e Entry) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress, error) {
	claim, address := &ipamv1.IPAddressClaim{}, &ipamv1.IPAddress{}
	if err := em.client.Get(ctx, e.key(), claim); apierrors.IsNotFound(err) {
		claim = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading claim %s: %w", e.key(), err)
	}
	if err := em.client.Get(ctx, e.key(), address); apierrors.IsNotFound(err) {
		address = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading IPAddress %s: %w", e.key(), err)
	}
	if claim != nil && claim.Spec.PoolRef != em.from.poolRef && claim.Spec.PoolRef != em.to.poolRef {
		return nil, nil, fmt.Errorf("claim %s names another pool now, %s %s: it was recreated; delete it, or give it up with its address",
			e.key(), claim.Spec.PoolRef.Kind, claim.Spec.PoolRef.Name)
	}
	if address == nil {
		return claim, nil, nil
	}
	namesPool := address.Spec.PoolRef == em.from.poolRef || address.Spec.PoolRef == em.to.poolRef
	if !namesPool || e.Address == nil || address.Spec.Address != e.Address.Spec.Address {
		return nil, nil, fmt.Errorf("IPAddress %s is not the one it was: it has %s of %s %s", e.key(), address.Spec.Address,
			address.Spec.PoolRef.Kind, address.Spec.PoolRef.Name)
	}
	return claim, address, nil
}

// releaseClaim does for a claim that a user has deleted what its provider would do if it ran: it deletes the IPAddress
// and removes our finalizer, and the entry is not restored.
func (em *entryMover) releaseClaim(ctx context.Context, e Entry, claim *ipamv1.IPAddressClaim, address *ipamv1.IPAddress) error {
	if err := em.recordRelease(ctx, e.key()); err != nil {
		return err
	}
	if address != nil {
		if err := deleteWithFinalizers(ctx, em.client, address); err != nil {
			return err
		}
	}
	controllerutil.RemoveFinalizer(claim, v1alpha1.ClaimFinalizer)
	if err := client.IgnoreNotFound(em.client.Update(ctx, claim)); err != nil {
		return fmt.Errorf("releasing claim %s: %w", e.key(), err)
	}
	return nil
}

// deleteWithFinalizers deletes an object and all of its finalizers; the object that replaces it gets them again. The
// finalizers are removed first, so an object that is being deleted was always deleted by another writer.
func deleteWithFinalizers(ctx context.Context, c client.Client, obj client.Object) error {
	kind := kindName(obj)
	if len(obj.GetFinalizers()) > 0 {
		if err := patchObject(ctx, c, obj, func() { obj.SetFinalizers(nil) }); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("taking the finalizers off %s %s: %w", kind, client.ObjectKeyFromObject(obj), err)
		}
	}
	err := exact.DeleteWithPreconditions(ctx, c, obj, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("deleting %s %s: %w", kind, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// ensureOwnersAndFinalizers adds missing owners and finalizers to an existing object: a crash may have come between the
// removal of its finalizers and its deletion.
func ensureOwnersAndFinalizers(ctx context.Context, c client.Client, obj client.Object, owners []metav1.OwnerReference, finalizers []string) error {
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	missing := slices.ContainsFunc(finalizers, func(f string) bool { return !controllerutil.ContainsFinalizer(obj, f) })
	if !missing && equality.Semantic.DeepEqual(owners, obj.GetOwnerReferences()) {
		return nil
	}
	err := patchObject(ctx, c, obj, func() {
		obj.SetOwnerReferences(owners)
		for _, f := range finalizers {
			controllerutil.AddFinalizer(obj, f)
		}
	})
	if err != nil {
		return fmt.Errorf("writing %s %s: %w", kindName(obj), client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// patchObject writes the changes of do to an object at the version that was read, and nothing else: it may have fields
// that this program does not know.
func patchObject(ctx context.Context, c client.Client, obj client.Object, do func()) error {
	before := obj.DeepCopyObject().(client.Object)
	do()
	return c.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// restoreStatus restores the status of a claim, so that its consumer sees the same address as before.
func (em *entryMover) restoreStatus(ctx context.Context, claim *ipamv1.IPAddressClaim, e Entry) error {
	if claim.Status.AddressRef == e.Claim.Status.AddressRef {
		return nil
	}
	claim.Status = *e.Claim.Status.DeepCopy()
	if err := em.client.Status().Update(ctx, claim); err != nil {
		return fmt.Errorf("writing the status of claim %s: %w", e.key(), err)
	}
	return nil
}

func kindName(obj client.Object) string {
	switch obj.(type) {
	case *ipamv1.IPAddress:
		return "IPAddress"
	case *m3ipamv1.IPAddress:
		return "IPAddress of Metal3"
	case *m3ipamv1.IPClaim:
		return "IPClaim"
	case *unstructured.Unstructured:
		return "IPPool"
	}
	return "claim"
}
