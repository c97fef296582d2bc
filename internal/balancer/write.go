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

// Apply takes over what it says of an object, whoever said it before.
func Apply(ctx context.Context, tenant client.Client, u *unstructured.Unstructured) error {
	if err := tenant.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// CreateNew makes an object that was not observed. If there is one nevertheless, that is a conflict like any other: it may
// be somebody else's.
func CreateNew(ctx context.Context, tenant client.Client, u *unstructured.Unstructured, resource string) error {
	err := tenant.Create(ctx, u, FieldOwner)
	if apierrors.IsAlreadyExists(err) {
		err = apierrors.NewConflict(schema.GroupResource{Group: u.GroupVersionKind().Group, Resource: resource}, u.GetName(), err)
	}
	if err != nil {
		return fmt.Errorf("creating %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(u), err)
	}
	return nil
}

// CreatePool makes a pool that was not observed, and applies what it made (ADR 13): server-side apply cannot be told to make
// what does not exist and nothing else. now is read when somebody has changed the pool in between; it is applied if it is
// as it was made.
func CreatePool(ctx context.Context, tenant client.Client, u *unstructured.Unstructured, resource string, now client.Object, asMade func() bool) error {
	same := u.DeepCopy()
	if err := CreateNew(ctx, tenant, u, resource); err != nil {
		return err
	}
	same.SetUID(u.GetUID())
	same.SetResourceVersion(u.GetResourceVersion())
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		conflict := Apply(ctx, tenant, same.DeepCopy())
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		// The load balancer counts the addresses of the pool at the same time. Whoever changes something else has it changed.
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
