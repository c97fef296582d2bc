package tenancy

import (
	"math"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// defaultNodes is how many machine addresses a Cluster takes where no pool says so.
const defaultNodes = 5

// Estimate is what is left for new Clusters: the free addresses of the pools that grant any, and
// for how many Clusters they last if each takes what the settings give it: the load-balancer addresses that
// Size says, and as many for machines as the first pool says, at most quotaPerTenant.maxNodeIPs. It is an
// estimate: free addresses need not be in a row. pools are in the order of Order; sums saturate.
func Estimate(network v1alpha1.ProviderNetwork, pools []Pool) v1alpha1.ProviderCapacity {
	var out v1alpha1.ProviderCapacity
	if network.Mode != v1alpha1.IPAMMode {
		return out
	}
	for _, p := range pools {
		if p.Grants() {
			out.AvailableIPs = add(out.AvailableIPs, max(p.AvailableIPs, 0))
		}
	}
	out.EstimatedTenants = out.AvailableIPs / (int64(nodesPerTenant(network, pools)) + int64(max(clamp(network, configured(network)).Count, 0)))
	return out
}

// nodesPerTenant is what the first pool that exists says.
func nodesPerTenant(network v1alpha1.ProviderNetwork, pools []Pool) int32 {
	n := int32(defaultNodes)
	for _, p := range pools {
		if p.State == Missing {
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

// add saturates.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
