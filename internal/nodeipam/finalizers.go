package nodeipam

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// finalizerProtector protects objects of one kind with a finalizer while they are in use. Its methods read into an
// empty object of the kind.
type finalizerProtector struct {
	client    client.Client
	live      client.Reader
	finalizer string
	// isInUse reports whether anything besides Nodes keeps the finalizer on; nil means that nothing does.
	isInUse func(client.Object) bool
}

// getLive reads an object live. It returns errClosing where the object is gone, or another one has its name.
func (fp finalizerProtector) getLive(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err := fp.live.Get(ctx, client.ObjectKey{Name: ref.Name}, into)
	if apierrors.IsNotFound(err) || (err == nil && into.GetUID() != ref.UID) {
		return errClosing
	}
	return err
}

// addFinalizer adds the finalizer to an object that is not being deleted.
func (fp finalizerProtector) addFinalizer(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	err := fp.getLive(ctx, ref, into)
	switch {
	case err != nil:
		return fmt.Errorf("reading %s before CIDRs are given from it: %w", ref, err)
	case into.GetDeletionTimestamp() != nil:
		return errClosing
	case controllerutil.ContainsFinalizer(into, fp.finalizer):
		return nil
	}
	return fp.patchFinalizers(ctx, ref, into, controllerutil.AddFinalizer)
}

// removeFinalizer removes the finalizer from an object that is being deleted.
func (fp finalizerProtector) removeFinalizer(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	err := fp.getLive(ctx, ref, into)
	switch {
	case errors.Is(err, errClosing):
		return nil
	case err != nil:
		return fmt.Errorf("reading %s before it goes: %w", ref, err)
	case into.GetDeletionTimestamp() == nil || !controllerutil.ContainsFinalizer(into, fp.finalizer):
		return nil
	case fp.isInUse != nil && fp.isInUse(into):
		return nil
	}
	return fp.patchFinalizers(ctx, ref, into, controllerutil.RemoveFinalizer)
}

// patchFinalizers changes the finalizers of an object as it was read; a later version conflicts.
func (fp finalizerProtector) patchFinalizers(ctx context.Context, ref podcidr.Ref, live client.Object, change func(client.Object, string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	next := live.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy is of the same type
	change(next, fp.finalizer)
	err := fp.client.Patch(ctx, next, client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{}))
	if err != nil && (!apierrors.IsNotFound(err) || live.GetDeletionTimestamp() == nil) {
		return fmt.Errorf("writing the finalizer of %s: %w", ref, err)
	}
	return nil
}

// ProtectorByKind protects objects of several kinds; it is keyed by the kind in their refs.
type ProtectorByKind map[string]ObjectProtector

// ProtectObject implements ObjectProtector.
func (k ProtectorByKind) ProtectObject(ctx context.Context, ref podcidr.Ref) error {
	return k[ref.Kind].ProtectObject(ctx, ref)
}

// UnprotectObject implements ObjectProtector.
func (k ProtectorByKind) UnprotectObject(ctx context.Context, ref podcidr.Ref, mark string) error {
	return k[ref.Kind].UnprotectObject(ctx, ref, mark)
}

// HasProtectedObjects implements ObjectProtector.
func (k ProtectorByKind) HasProtectedObjects(ctx context.Context) (bool, error) {
	for _, of := range k {
		if protected, err := of.HasProtectedObjects(ctx); protected || err != nil {
			return protected, err
		}
	}
	return false, nil
}
