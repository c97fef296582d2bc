package tenancy

import (
	"cmp"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// OrderPoolRefs returns the pools in the order in which they are tried: by ascending priority, pools of equal
// priority in the order of the list. It does not modify refs, which may belong to an object of a cache.
func OrderPoolRefs(refs []v1alpha1.ProviderPoolReference) []v1alpha1.PoolReference {
	sorted := slices.Clone(refs)
	slices.SortStableFunc(sorted, func(a, b v1alpha1.ProviderPoolReference) int { return cmp.Compare(a.Priority, b.Priority) })
	out := make([]v1alpha1.PoolReference, len(sorted))
	for i, r := range sorted {
		out[i] = withDefaultKind(r.PoolReference)
	}
	return out
}
