package tenancy

import (
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Role is the value of the allocation-role label that an allocation is to have. One that it has
// already stays. Else the name tells: {namespace}-{name}-lb-{N} of its Cluster is growth, anything else
// initial, for only growth is ever taken back. So is a pinned range, whatever its name.
func Role(allocation *v1alpha1.IPAllocation) string {
	if role := allocation.Labels[v1alpha1.AllocationRoleLabel]; role != "" {
		return role
	}
	if allocation.Spec.PinnedRange == nil && grown(allocation.Name, allocation.Spec.TenantClusterRef) {
		return v1alpha1.GrowthRole
	}
	return v1alpha1.InitialRole
}

// grown reports whether GrowthName gives a Cluster this name for some n. Asking it again spares taking apart
// names that were cut.
func grown(name string, cluster v1alpha1.ClusterReference) bool {
	at := strings.LastIndexByte(name, '-')
	n, err := strconv.Atoi(name[at+1:])
	return err == nil && n >= 0 && name == GrowthName(cluster, n)
}
