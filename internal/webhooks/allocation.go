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

// It refuses nothing, so nothing waits for a manager that does not run.
// +kubebuilder:webhook:path=/validate-butler-butlerlabs-dev-v1alpha1-ipallocation,mutating=false,failurePolicy=ignore,sideEffects=None,timeoutSeconds=2,matchPolicy=Equivalent,groups=butler.butlerlabs.dev,resources=ipallocations,verbs=create,versions=v1alpha1,name=validation.ipallocation.butler.butlerlabs.dev,admissionReviewVersions=v1

// Allocations warns whoever makes an IPAllocation of names that mean nothing yet: the spec cannot be corrected later.
type Allocations struct {
	// Reader finds pools and Clusters; a cache will do, for a warning.
	Reader client.Reader
}

// ValidateCreate allows every IPAllocation.
func (v *Allocations) ValidateCreate(ctx context.Context, a *v1alpha1.IPAllocation) (admission.Warnings, error) {
	var out admission.Warnings
	key := pools.KeyOfAllocation(a)
	if _, err := key.Get(ctx, v.Reader); apierrors.IsNotFound(err) {
		out = append(out, fmt.Sprintf("%s does not exist yet; nothing is allocated before it does", key))
	}
	if child, is := pools.ChildOf(a); is {
		if _, err := child.Get(ctx, v.Reader); apierrors.IsNotFound(err) {
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

// ValidateUpdate allows every change that the schema does.
func (v *Allocations) ValidateUpdate(context.Context, *v1alpha1.IPAllocation, *v1alpha1.IPAllocation) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete allows it.
func (v *Allocations) ValidateDelete(context.Context, *v1alpha1.IPAllocation) (admission.Warnings, error) {
	return nil, nil
}
