package tenancy

import (
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// RoleForAllocation returns the value that the allocation-role label of an allocation must have. An existing label
// stays. Without one the name decides: {namespace}-{name}-lb-{N} of its Cluster is growth, any other name is initial,
// because only growth blocks are ever taken back. An allocation with a pinned range is initial, whatever its name.
func RoleForAllocation(allocation *v1alpha1.IPAllocation) string {
	if role := allocation.Labels[v1alpha1.AllocationRoleLabel]; role != "" {
		return role
	}
	if allocation.Spec.PinnedRange == nil && isGrowthBlockName(allocation.Name, allocation.Spec.TenantClusterRef) {
		return v1alpha1.GrowthRole
	}
	return v1alpha1.InitialRole
}

// isGrowthBlockName reports whether GrowthBlockName returns this name for the Cluster and some n. It calls
// GrowthBlockName instead of parsing the name, because a cut name cannot be parsed.
func isGrowthBlockName(name string, cluster v1alpha1.ClusterReference) bool {
	at := strings.LastIndexByte(name, '-')
	n, err := strconv.Atoi(name[at+1:])
	return err == nil && n >= 0 && name == GrowthBlockName(cluster, n)
}
