package tenancy

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"

// Settings decide how the load-balancer blocks of a Cluster follow its Services.
type Settings struct {
	// Elastic reports whether they follow at all.
	Elastic bool
	// Apart reports whether each block has a pool of MetalLB of its own.
	Apart bool
	// Class of the Services that MetalLB serves. Usually empty.
	Class string
	// Increment is the least that the Cluster grows by.
	Increment int64
	// Quota is how many addresses it may have, all blocks together; negative: any number.
	Quota int64
}

// SettingsOf are those that a ProviderConfig gives its Clusters. A Cluster that gets nothing new has none: what it has
// stays as it is, and apart is how that is.
func SettingsOf(config *v1alpha1.ProviderConfig, apart bool) Settings {
	s := Settings{Increment: v1alpha1.DefaultGrowthIncrement, Quota: -1}
	if config == nil {
		s.Apart = apart
		return s
	}
	network := config.Network()
	s.Elastic = Elastic(network)
	if lb := network.LoadBalancer; lb != nil {
		s.Class, s.Apart = lb.Class, lb.Projection == v1alpha1.PoolPerAllocationProjection
		if lb.GrowthIncrement != nil {
			s.Increment = int64(*lb.GrowthIncrement)
		}
	}
	if q := network.QuotaPerTenant; q != nil && q.MaxLoadBalancerIPs != nil {
		s.Quota = int64(*q.MaxLoadBalancerIPs)
	}
	return s
}

// NodeQuota is how many addresses for machines a Cluster may have; false: any number.
func NodeQuota(network v1alpha1.ProviderNetwork) (limit int64, limited bool) {
	q := network.QuotaPerTenant
	if network.Mode != v1alpha1.IPAMMode || q == nil || q.MaxNodeIPs == nil {
		return 0, false
	}
	return int64(*q.MaxNodeIPs), true
}
