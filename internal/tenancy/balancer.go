package tenancy

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"

// Serving says which load balancer of a Cluster is dealt with at one look at it.
type Serving struct {
	// Wanted is what the ProviderConfig names. By is shown blocks, or is to let go of those that it was shown: it is another
	// one where Services would lose their addresses by a change.
	Wanted, By v1alpha1.LoadBalancerType
	// Moving reports whether By is another one, and all that it was shown is being taken away: until that is done, nothing is
	// shown to either.
	Moving bool
}

// Kept reports whether a load balancer that the ProviderConfig does not name stays.
func (s Serving) Kept() bool { return s.By != s.Wanted && !s.Moving }

// ServingOf decides it from the ProviderConfig, nil for a Cluster that gets nothing new, and the blocks: one that is shown
// any stays, until no block is left that it has not let go of.
func ServingOf(config *v1alpha1.ProviderConfig, blocks []*v1alpha1.IPAllocation) Serving {
	shown, stays := v1alpha1.LoadBalancerType(""), false
	for _, a := range blocks {
		if of := ShownTo(a); of != "" && (shown == "" || (!stays && !Leaving(a))) {
			shown, stays = of, !Leaving(a)
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
	return Serving{Wanted: wanted, By: shown, Moving: shown != wanted && !stays}
}
