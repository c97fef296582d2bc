package balancer

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ApplyObject applies an object with force, and so takes ownership of the fields that it sets, whichever manager
// owned them before.
func ApplyObject(ctx context.Context, tenant client.Client, u *unstructured.Unstructured) error {
	if err := tenant.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// CreateObject creates an object that was not observed. If it exists nevertheless, the error is a conflict: the
// object may belong to another owner.
func CreateObject(ctx context.Context, tenant client.Client, u *unstructured.Unstructured, resource string) error {
	err := tenant.Create(ctx, u, FieldOwner)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(schema.GroupResource{Group: u.GroupVersionKind().Group, Resource: resource}, u.GetName(), err)
	}
	if err != nil {
		return fmt.Errorf("creating %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// CreatePool creates a pool that was not observed, and then applies the same content (ADR 13), because server-side
// apply has no mode that only creates. If another writer changed the pool in between, CreatePool reads it into now,
// and applies only if asMade reports that the pool is still as it was created.
func CreatePool(ctx context.Context, tenant client.Client, u *unstructured.Unstructured, resource string, now client.Object, asMade func() bool) error {
	same := u.DeepCopy()
	if err := CreateObject(ctx, tenant, u, resource); err != nil {
		return err
	}
	same.SetUID(u.GetUID())
	same.SetResourceVersion(u.GetResourceVersion())
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		conflict := ApplyObject(ctx, tenant, same.DeepCopy())
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		// The load balancer updates the address counts of the pool at the same time. A change by another writer
		// stays.
		if err := tenant.Get(ctx, client.ObjectKeyFromObject(u), now); err != nil {
			return fmt.Errorf("reading %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
		}
		if now.GetUID() != u.GetUID() || !asMade() {
			return nil
		}
		same.SetResourceVersion(now.GetResourceVersion())
		return conflict
	})
}
