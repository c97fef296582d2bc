package tenancy

import (
	"math"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// defaultNodesPerTenant is the number of machine addresses of a Cluster if no pool sets another number.
const defaultNodesPerTenant = 5

// EstimateCapacity estimates what is left for new Clusters: the free addresses of the pools that may grant, and the
// number of Clusters that these addresses last for. Each Cluster counts with the load-balancer addresses that the
// settings give it, as ComputeInitialSize does without an annotation, and with the machine addresses that the first
// pool sets, at most quotaPerTenant.maxNodeIPs. The result is an estimate because free addresses need not be
// contiguous. pools are in the order of OrderPoolRefs; sums saturate.
func EstimateCapacity(network v1alpha1.ProviderNetwork, pools []Pool) v1alpha1.ProviderCapacity {
	var out v1alpha1.ProviderCapacity
	if network.Mode != v1alpha1.IPAMMode {
		return out
	}
	for _, p := range pools {
		if p.MayGrant() {
			out.AvailableIPs = addSaturating(out.AvailableIPs, max(p.AvailableIPs, 0))
		}
	}
	out.EstimatedTenants = out.AvailableIPs / (int64(nodesPerTenant(network, pools)) + int64(max(clampToQuota(network, sizeFromConfig(network)).Count, 0)))
	return out
}

// nodesPerTenant returns the value of the first pool that exists, limited by the quota, at least 1.
func nodesPerTenant(network v1alpha1.ProviderNetwork, pools []Pool) int32 {
	n := int32(defaultNodesPerTenant)
	for _, p := range pools {
		if p.Availability == PoolMissing {
			continue
		}
		if p.NodesPerTenant > 0 {
			n = p.NodesPerTenant
		}
		break
	}
	if q := network.QuotaPerTenant; q != nil && q.MaxNodeIPs != nil {
		n = min(n, *q.MaxNodeIPs)
	}
	return max(n, 1)
}

// addSaturating returns a+b, or math.MaxInt64 on overflow.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
