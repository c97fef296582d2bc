package tenancy

import (
	"cmp"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Order returns the pools in the order they are to be tried: by priority, the lowest first, equal ones as
// they are listed. What it is given stays as it is: it may be an object of a cache.
func Order(refs []v1alpha1.ProviderPoolReference) []v1alpha1.PoolReference {
	sorted := slices.Clone(refs)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.ProviderPoolReference) int { return cmp.Compare(a.Priority, b.Priority) })
	out := make([]v1alpha1.PoolReference, len(sorted))
	for i, r := range sorted {
		out[i] = withKind(r.PoolReference)
	}
	return out
}
