package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Projected reports whether a block was shown to its Cluster, or is about to be: it does not go before the Cluster has
// let go of it.
func Projected(a *v1alpha1.IPAllocation) bool {
	return slices.Contains(a.Finalizers, v1alpha1.TenantPoolFinalizer)
}

// Draining reports whether a block is being taken away from its Cluster. It may still be given back to it.
func Draining(a *v1alpha1.IPAllocation) bool {
	return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)
}

// Leaving reports whether a block is being taken away, for good or for the time being.
func Leaving(a *v1alpha1.IPAllocation) bool {
	return !a.DeletionTimestamp.IsZero() || Draining(a)
}
