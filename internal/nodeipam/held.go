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

// held are objects of a kind that a finalizer holds while they are in use. The methods read into an empty object of it.
type held struct {
	client    client.Client
	live      client.Reader
	finalizer string
	// inUse reports what keeps the finalizer on besides Nodes; nil: nothing does.
	inUse func(client.Object) bool
}

// read reads an object live. errClosing: it is gone, or another one has its name.
func (h held) read(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err := h.live.Get(ctx, client.ObjectKey{Name: ref.Name}, into)
	if apierrors.IsNotFound(err) || (err == nil && into.GetUID() != ref.UID) {
		return errClosing
	}
	return err
}

// protect puts the finalizer on an object that is not being deleted.
func (h held) protect(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	err := h.read(ctx, ref, into)
	switch {
	case err != nil:
		return fmt.Errorf("reading %s before CIDRs are given from it: %w", ref, err)
	case into.GetDeletionTimestamp() != nil:
		return errClosing
	case controllerutil.ContainsFinalizer(into, h.finalizer):
		return nil
	}
	return h.patch(ctx, ref, into, controllerutil.AddFinalizer)
}

// release takes the finalizer off an object that is being deleted.
func (h held) release(ctx context.Context, ref podcidr.Ref, into client.Object) error {
	err := h.read(ctx, ref, into)
	switch {
	case errors.Is(err, errClosing):
		return nil
	case err != nil:
		return fmt.Errorf("reading %s before it goes: %w", ref, err)
	case into.GetDeletionTimestamp() == nil || !controllerutil.ContainsFinalizer(into, h.finalizer):
		return nil
	case h.inUse != nil && h.inUse(into):
		return nil
	}
	return h.patch(ctx, ref, into, controllerutil.RemoveFinalizer)
}

// patch writes the finalizers of an object as it was read, and of no later version.
func (h held) patch(ctx context.Context, ref podcidr.Ref, live client.Object, change func(client.Object, string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	next := live.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy is of the same type
	change(next, h.finalizer)
	err := h.client.Patch(ctx, next, client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{}))
	if err != nil && (!apierrors.IsNotFound(err) || live.GetDeletionTimestamp() == nil) {
		return fmt.Errorf("writing the finalizer of %s: %w", ref, err)
	}
	return nil
}

// Kinds are objects of several kinds, by the kind that their refs name.
type Kinds map[string]Objects

// Protect implements Objects.
func (k Kinds) Protect(ctx context.Context, ref podcidr.Ref) error {
	return k[ref.Kind].Protect(ctx, ref)
}

// Release implements Objects.
func (k Kinds) Release(ctx context.Context, ref podcidr.Ref, mark string) error {
	return k[ref.Kind].Release(ctx, ref, mark)
}

// AnyProtected implements Objects.
func (k Kinds) AnyProtected(ctx context.Context) (bool, error) {
	for _, of := range k {
		if is, err := of.AnyProtected(ctx); is || err != nil {
			return is, err
		}
	}
	return false, nil
}
