package tenancy

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"

// LoadBalancerChoice is the load balancer of a Cluster that one reconcile works on.
type LoadBalancerChoice struct {
	// Configured is the load balancer that the ProviderConfig names. Active is the one that blocks are projected to,
	// or that has to release the blocks projected to it. The two differ where a change would cost Services their
	// addresses.
	Configured, Active v1alpha1.LoadBalancerType
	// Switching reports whether Active differs from Configured and all blocks projected to Active are being
	// withdrawn. Until that is done, no block is projected to either.
	Switching bool
}

// KeepsPrevious reports whether a load balancer that the ProviderConfig does not name stays active.
func (s LoadBalancerChoice) KeepsPrevious() bool { return s.Active != s.Configured && !s.Switching }

// ChooseLoadBalancer chooses the load balancer from the ProviderConfig, nil for a Cluster that gets nothing new, and
// the blocks. A load balancer that blocks are projected to stays active until it has released all of them.
func ChooseLoadBalancer(config *v1alpha1.ProviderConfig, blocks []*v1alpha1.IPAllocation) LoadBalancerChoice {
	shown, stays := v1alpha1.LoadBalancerType(""), false
	for _, a := range blocks {
		if of := ProjectedTo(a); of != "" && (shown == "" || (!stays && !IsDrainingOrDeleting(a))) {
			shown, stays = of, !IsDrainingOrDeleting(a)
		}
	}
	wanted := v1alpha1.MetalLBLoadBalancer
	switch {
	case config == nil && shown != "":
		wanted = shown
	case config != nil && config.Network().LoadBalancer != nil && config.Network().LoadBalancer.Type != "":
		wanted = config.Network().LoadBalancer.Type
	}
	if shown == "" {
		shown = wanted
	}
	return LoadBalancerChoice{Configured: wanted, Active: shown, Switching: shown != wanted && !stays}
}
