package consumers

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// consumer is what a provider does with claims, as far as it can be seen from outside.
type consumer struct {
	name string

	// owner is the kind that owns its claims, and refer how it is written into them. Without a kind
	// claims have no owner.
	owner schema.GroupVersionKind
	refer func(owner *unstructured.Unstructured) metav1.OwnerReference

	// claimName names the claim of the n-th pool of a machine.
	claimName func(machine string, n int, pool string) string
	// labels of a claim, which may depend on those of its owner; nil: it writes none.
	labels      func(m *machine) map[string]string
	annotations map[string]string
	finalizer   string

	// writes and reads are the versions of the API in which it does so.
	writes, reads schema.GroupVersion
	// write makes a claim: set says what is to be in it.
	write func(ctx context.Context, claim *unstructured.Unstructured, set func()) error
	// deletes its claims itself; else they are left to the garbage collector.
	deletes bool

	// between are the kinds that lead from the owner to the Machine: each owns the one before, and the first also the owner
	// itself.
	between []schema.GroupVersionKind

	// onePool: a machine has no more than one address from a pool. byPool: and one of each pool.
	onePool, byPool bool
	// usesName: it expects the IPAddress under the name of the claim. wantsGateway: it takes no address
	// without one.
	usesName, wantsGateway bool
}

// Versions of the API of claims.
var (
	v1beta1 = ipamv1beta1.GroupVersion
	v1beta2 = ipamv1.GroupVersion
)

// plain is a reference that says nothing but who the owner is.
func plain(owner *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
	}
}

// controller is a reference as controllerutil.SetControllerReference and metav1.NewControllerRef write it.
func controller(owner *unstructured.Unstructured) metav1.OwnerReference {
	return *metav1.NewControllerRef(owner, owner.GroupVersionKind())
}

// unblocking is a controller's reference that does not block the deletion of its owner.
func unblocking(owner *unstructured.Unstructured) metav1.OwnerReference {
	ref := controller(owner)
	ref.BlockOwnerDeletion = nil
	return ref
}

// createOnce makes a claim that does not exist, and leaves one that does.
func createOnce(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	err := k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	if !apierrors.IsNotFound(err) {
		return err
	}
	set()
	return k8s.Create(ctx, claim)
}

// createOrPatch sets everything again each time, and sends what differs.
func createOrPatch(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	_, err := controllerutil.CreateOrPatch(ctx, k8s, claim, func() error { set(); return nil })
	return err
}

// apply sends everything again each time, as a server-side apply.
func apply(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	set()
	return k8s.Apply(ctx, client.ApplyConfigurationFromUnstructured(claim), client.ForceOwnership, client.FieldOwner("consumer"))
}

// set writes into a claim what the consumer wants in it; what others wrote stays.
func (c *consumer) set(claim *unstructured.Unstructured, m *machine, pool ipamv1.IPPoolReference) {
	if c.labels != nil {
		claim.SetLabels(merged(claim.GetLabels(), c.labels(m)))
	}
	if c.annotations != nil {
		claim.SetAnnotations(merged(claim.GetAnnotations(), c.annotations))
	}
	if c.finalizer != "" {
		controllerutil.AddFinalizer(claim, c.finalizer)
	}
	if m.owner != nil {
		ref := c.refer(m.owner)
		others := slices.DeleteFunc(claim.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.Kind == ref.Kind && r.Name == ref.Name })
		claim.SetOwnerReferences(append(others, ref))
	}
	for field, value := range map[string]string{"apiGroup": pool.APIGroup, "kind": pool.Kind, "name": pool.Name} {
		_ = unstructured.SetNestedField(claim.Object, value, "spec", "poolRef", field)
	}
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(b)
	for k, v := range a {
		if _, set := out[k]; !set {
			out[k] = v
		}
	}
	return out
}
