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

// consumer describes what a provider does with claims, as far as it is observable from outside.
type consumer struct {
	name string

	// owner is the kind that owns its claims, and refer returns the owner reference in them. Without a kind claims
	// have no owner.
	owner schema.GroupVersionKind
	refer func(owner *unstructured.Unstructured) metav1.OwnerReference

	// claimName returns the name of the claim for the n-th pool of a machine.
	claimName func(machine string, n int, pool string) string
	// labels returns the labels of a claim, which may depend on those of its owner; nil means that it writes none.
	labels      func(m *machine) map[string]string
	annotations map[string]string
	finalizer   string

	// writes and reads are the API versions in which it writes and reads claims.
	writes, reads schema.GroupVersion
	// write creates or updates a claim; set fills in the desired content.
	write func(ctx context.Context, claim *unstructured.Unstructured, set func()) error
	// deletes reports whether it deletes its claims itself; otherwise the garbage collector does.
	deletes bool

	// between lists the kinds that lead from the owner to the Machine: each owns the one before, and the first also
	// the owner itself.
	between []schema.GroupVersionKind

	// onePool reports whether a machine has at most one address from a pool; byPool reports whether it has one of
	// each pool.
	onePool, byPool bool
	// usesName reports whether it expects the IPAddress under the name of the claim; wantsGateway reports whether it
	// accepts no address without a gateway.
	usesName, wantsGateway bool
}

// API versions of claims.
var (
	v1beta1 = ipamv1beta1.GroupVersion
	v1beta2 = ipamv1.GroupVersion
)

// newPlainReference returns an owner reference without optional fields.
func newPlainReference(owner *unstructured.Unstructured) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
	}
}

// controller returns a reference as controllerutil.SetControllerReference and metav1.NewControllerRef write it.
func controller(owner *unstructured.Unstructured) metav1.OwnerReference {
	return *metav1.NewControllerRef(owner, owner.GroupVersionKind())
}

// newUnblockingReference returns a controller reference that does not block the deletion of its owner.
func newUnblockingReference(owner *unstructured.Unstructured) metav1.OwnerReference {
	ref := controller(owner)
	ref.BlockOwnerDeletion = nil
	return ref
}

// createOnce creates a claim that does not exist, and leaves an existing one unchanged.
func createOnce(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	err := k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim)
	if !apierrors.IsNotFound(err) {
		return err
	}
	set()
	return k8s.Create(ctx, claim)
}

// createOrPatch sets all fields each time, and sends the differences.
func createOrPatch(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	_, err := controllerutil.CreateOrPatch(ctx, k8s, claim, func() error { set(); return nil })
	return err
}

// apply sends all fields each time, as a server-side apply.
func apply(ctx context.Context, claim *unstructured.Unstructured, set func()) error {
	set()
	return k8s.Apply(ctx, client.ApplyConfigurationFromUnstructured(claim), client.ForceOwnership, client.FieldOwner("consumer"))
}

// set writes the consumer's fields into a claim; fields of other writers stay.
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
