package tenancy

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"

// LoadBalancerSettings control how the load-balancer blocks of a Cluster follow its Services.
type LoadBalancerSettings struct {
	// Elastic reports whether blocks are added and removed on demand at all.
	Elastic bool
	// PoolPerAllocation reports whether each block is projected as a MetalLB pool of its own.
	PoolPerAllocation bool
	// LoadBalancerClass is the class of the Services that MetalLB serves. It is usually empty.
	LoadBalancerClass string
	// Increment is the minimum number of addresses that the Cluster grows by.
	Increment int64
	// Quota is the maximum number of addresses of all blocks together; a negative value means no limit.
	Quota int64
}

// SettingsFromConfig returns the settings that a ProviderConfig gives its Clusters. A Cluster that gets nothing new
// has no config: its blocks stay as they are, and poolPerAllocation reports how they are projected, which becomes
// PoolPerAllocation.
func SettingsFromConfig(config *v1alpha1.ProviderConfig, poolPerAllocation bool) LoadBalancerSettings {
	s := LoadBalancerSettings{Increment: v1alpha1.DefaultGrowthIncrement, Quota: -1}
	if config == nil {
		s.PoolPerAllocation = poolPerAllocation
		return s
	}
	network := config.Network()
	s.Elastic = IsElastic(network)
	if lb := network.LoadBalancer; lb != nil {
		s.LoadBalancerClass, s.PoolPerAllocation = lb.Class, lb.Projection == v1alpha1.PoolPerAllocationProjection
		if lb.GrowthIncrement != nil {
			s.Increment = int64(*lb.GrowthIncrement)
		}
	}
	if q := network.QuotaPerTenant; q != nil && q.MaxLoadBalancerIPs != nil {
		s.Quota = int64(*q.MaxLoadBalancerIPs)
	}
	return s
}

// NodeQuota returns the maximum number of machine addresses of a Cluster. limited is false if there is no limit.
func NodeQuota(network v1alpha1.ProviderNetwork) (limit int64, limited bool) {
	q := network.QuotaPerTenant
	if network.Mode != v1alpha1.IPAMMode || q == nil || q.MaxNodeIPs == nil {
		return 0, false
	}
	return int64(*q.MaxNodeIPs), true
}
