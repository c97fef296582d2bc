package tenancy

import (
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Projected reports whether a block was shown to its Cluster, or is about to be: it does not go before the Cluster has
// let go of it.
func Projected(a *v1alpha1.IPAllocation) bool {
	return slices.Contains(a.Finalizers, v1alpha1.TenantPoolFinalizer)
}
