package webhooks

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// The webhook rejects nothing, so no request waits for a manager that does not run.
// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-ipallocation,mutating=false,failurePolicy=ignore,sideEffects=None,timeoutSeconds=2,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=ipallocations,verbs=create,versions=v1alpha1,name=validation.ipallocation.butler.butlerlabs.dev,admissionReviewVersions=v1

// AllocationValidator warns a user who creates an IPAllocation of references to objects that do not exist yet: the spec
// cannot be corrected later.
type AllocationValidator struct {
	// Reader reads pools and Clusters; a cache is enough for a warning.
	Reader client.Reader
}

// ValidateCreate allows every IPAllocation.
func (v *AllocationValidator) ValidateCreate(ctx context.Context, a *v1alpha1.IPAllocation) (admission.Warnings, error) {
	var out admission.Warnings
	key := pools.KeyFromAllocation(a)
	if _, err := key.GetPool(ctx, v.Reader); apierrors.IsNotFound(err) {
		out = append(out, fmt.Sprintf("%s does not exist yet; nothing is allocated before it does", key))
	}
	if child, ok := pools.ChildPoolKey(a); ok {
		if _, err := child.GetPool(ctx, v.Reader); apierrors.IsNotFound(err) {
			out = append(out, fmt.Sprintf("%s does not exist yet; nothing is allocated before it does", child))
		}
		return out, nil
	}
	cluster := a.Spec.TenantClusterRef.NamespacedName()
	if err := v.Reader.Get(ctx, cluster, &clusterv1.Cluster{}); apierrors.IsNotFound(err) {
		out = append(out, fmt.Sprintf("Cluster %s does not exist yet; addresses are allocated all the same, and kept for it", cluster))
	}
	return out, nil
}

// ValidateUpdate allows every change that the schema allows.
func (v *AllocationValidator) ValidateUpdate(context.Context, *v1alpha1.IPAllocation, *v1alpha1.IPAllocation) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete allows every deletion.
func (v *AllocationValidator) ValidateDelete(context.Context, *v1alpha1.IPAllocation) (admission.Warnings, error) {
	return nil, nil
}
