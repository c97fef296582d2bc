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

// turner moves entries from one side to the other: an import, or one that is rolled back.
type turner struct {
	client   client.Client
	from, to side
	// release notes in the journal that an entry is given up, before it is.
	release func(ctx context.Context, key client.ObjectKey) error
}

// turn moves one entry as far as it is not there yet. Whatever a crash has left, in this direction or the other,
// it goes on from; so does it from what others write meanwhile, when it is called again after a conflict.
func (t *turner) turn(ctx context.Context, e Entry, released bool) error {
	claim, address, err := t.look(ctx, e)
	if err != nil {
		return err
	}
	switch {
	case claim == nil && released:
		if address != nil && address.Spec.PoolRef == t.from.ref {
			return remove(ctx, t.client, address) // its claim is gone for good
		}
		return nil
	case claim != nil && claim.Spec.PoolRef == t.from.ref:
		if claim.DeletionTimestamp != nil {
			return t.letGo(ctx, e, claim, address)
		}
		if err := remove(ctx, t.client, claim); err != nil {
			return err
		}
		claim = nil
	}
	if claim == nil {
		claim = t.to.claim(e)
		if err := t.client.Create(ctx, claim); err != nil {
			return fmt.Errorf("creating claim %s: %w", e.key(), err)
		}
	}
	want := t.to.claim(e)
	if err := likeBefore(ctx, t.client, claim, want.OwnerReferences, want.Finalizers); err != nil {
		return err
	}
	if e.Address == nil || claim.DeletionTimestamp != nil && address == nil {
		return nil
	}
	if err := t.status(ctx, claim, e); err != nil {
		return err
	}
	if address != nil && address.Spec.PoolRef == t.from.ref {
		if err := remove(ctx, t.client, address); err != nil {
			return err
		}
		address = nil
	}
	like := t.to.address(e, claim)
	if address == nil {
		if err := t.client.Create(ctx, like); err != nil {
			return fmt.Errorf("creating IPAddress %s: %w", e.key(), err)
		}
		return nil
	}
	return likeBefore(ctx, t.client, address, like.OwnerReferences, like.Finalizers)
}

// look reads what there is of an entry, and refuses what is not of it.
func (t *turner) look(ctx context.Context, e Entry) (*ipamv1.IPAddressClaim, *ipamv1.IPAddress, error) {
	claim, address := &ipamv1.IPAddressClaim{}, &ipamv1.IPAddress{}
	if err := t.client.Get(ctx, e.key(), claim); apierrors.IsNotFound(err) {
		claim = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading claim %s: %w", e.key(), err)
	}
	if err := t.client.Get(ctx, e.key(), address); apierrors.IsNotFound(err) {
		address = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading IPAddress %s: %w", e.key(), err)
	}
	if claim != nil && claim.Spec.PoolRef != t.from.ref && claim.Spec.PoolRef != t.to.ref {
		return nil, nil, fmt.Errorf("claim %s names another pool now, %s %s: it was created anew; delete it, or give it up with its address",
			e.key(), claim.Spec.PoolRef.Kind, claim.Spec.PoolRef.Name)
	}
	if address == nil {
		return claim, nil, nil
	}
	ours := address.Spec.PoolRef == t.from.ref || address.Spec.PoolRef == t.to.ref
	if !ours || e.Address == nil || address.Spec.Address != e.Address.Spec.Address {
		return nil, nil, fmt.Errorf("IPAddress %s is not the one it was: it has %s of %s %s", e.key(), address.Spec.Address,
			address.Spec.PoolRef.Kind, address.Spec.PoolRef.Name)
	}
	return claim, address, nil
}

// letGo does for a claim that somebody deleted what its provider would do, were it there: what is ours of it
// goes, and it is not brought back.
func (t *turner) letGo(ctx context.Context, e Entry, claim *ipamv1.IPAddressClaim, address *ipamv1.IPAddress) error {
	if err := t.release(ctx, e.key()); err != nil {
		return err
	}
	if address != nil {
		if err := remove(ctx, t.client, address); err != nil {
			return err
		}
	}
	controllerutil.RemoveFinalizer(claim, v1alpha1.ClaimFinalizer)
	if err := client.IgnoreNotFound(t.client.Update(ctx, claim)); err != nil {
		return fmt.Errorf("releasing claim %s: %w", e.key(), err)
	}
	return nil
}

// remove takes an object away, with all of its finalizers, which come back with the one that is created in its
// place. They go first: an object that is being deleted is then always one that somebody else deleted.
func remove(ctx context.Context, c client.Client, obj client.Object) error {
	kind := kindOf(obj)
	if len(obj.GetFinalizers()) > 0 {
		if err := change(ctx, c, obj, func() { obj.SetFinalizers(nil) }); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("taking the finalizers off %s %s: %w", kind, client.ObjectKeyFromObject(obj), err)
		}
	}
	err := exact.Delete(ctx, c, obj, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("deleting %s %s: %w", kind, client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// likeBefore gives an object that exists the owners and finalizers it is to have: a crash may have come between taking
// the one away and the deletion.
func likeBefore(ctx context.Context, c client.Client, obj client.Object, owners []metav1.OwnerReference, finalizers []string) error {
	if obj.GetDeletionTimestamp() != nil {
		return nil
	}
	lacks := slices.ContainsFunc(finalizers, func(f string) bool { return !controllerutil.ContainsFinalizer(obj, f) })
	if !lacks && equality.Semantic.DeepEqual(owners, obj.GetOwnerReferences()) {
		return nil
	}
	err := change(ctx, c, obj, func() {
		obj.SetOwnerReferences(owners)
		for _, f := range finalizers {
			controllerutil.AddFinalizer(obj, f)
		}
	})
	if err != nil {
		return fmt.Errorf("writing %s %s: %w", kindOf(obj), client.ObjectKeyFromObject(obj), err)
	}
	return nil
}

// change writes what is changed of an object, as it was read, and nothing else: it may have fields that are not known here.
func change(ctx context.Context, c client.Client, obj client.Object, do func()) error {
	before := obj.DeepCopyObject().(client.Object)
	do()
	return c.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// status shows whoever made the claim the address it has, as before.
func (t *turner) status(ctx context.Context, claim *ipamv1.IPAddressClaim, e Entry) error {
	if claim.Status.AddressRef == e.Claim.Status.AddressRef {
		return nil
	}
	claim.Status = *e.Claim.Status.DeepCopy()
	if err := t.client.Status().Update(ctx, claim); err != nil {
		return fmt.Errorf("writing the status of claim %s: %w", e.key(), err)
	}
	return nil
}

func kindOf(obj client.Object) string {
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
