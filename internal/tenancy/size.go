package tenancy

import (
	"fmt"
	"strconv"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Sizing is how many load-balancer addresses a Cluster begins with.
type Sizing struct {
	// Count is the number of addresses. 0 asks for no block, which happens in elastic mode alone.
	Count int32
	// Clamped is whether it would be larger without quotaPerTenant.maxLoadBalancerIPs.
	Clamped bool
	// Message says where the size comes from and what the quota cut off, in words for a person.
	Message string
}

// Size is how many load-balancer addresses a Cluster with these annotations begins with: what the annotation
// lb-pool-size says, else initialPoolSize (elastic) or defaultPoolSize (static) of the ProviderConfig, else
// 2 or 8; never more than quotaPerTenant.maxLoadBalancerIPs. An annotation that is no number from
// 1 (elastic: from 0) to 2147483647 is an error, whose text says what to do: a Cluster that silently got
// another size than it asked for could not be given the right one later.
func Size(network v1alpha1.ProviderNetwork, annotations map[string]string) (Sizing, error) {
	text, ok := annotations[v1alpha1.LBPoolSizeAnnotation]
	if !ok {
		return clamp(network, configured(network)), nil
	}
	s, err := asked(text, Elastic(network))
	if err != nil {
		return Sizing{}, err
	}
	return clamp(network, s), nil
}

// Elastic reports whether Clusters grow and shrink with their Services.
func Elastic(network v1alpha1.ProviderNetwork) bool {
	return network.LoadBalancer != nil && network.LoadBalancer.AllocationMode == v1alpha1.ElasticAllocation
}

func asked(text string, elastic bool) (Sizing, error) {
	least := uint64(1)
	if elastic {
		least = 0
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n < least {
		return Sizing{}, fmt.Errorf("annotation %s is %q: write a whole number from %d to 2147483647, or remove it to get the size of the ProviderConfig",
			v1alpha1.LBPoolSizeAnnotation, text, least)
	}
	return Sizing{Count: int32(n), Message: fmt.Sprintf("the annotation %s asks for %s", v1alpha1.LBPoolSizeAnnotation, addresses(int32(n)))}, nil
}

// configured is the size that the ProviderConfig gives.
func configured(network v1alpha1.ProviderNetwork) Sizing {
	field, n, said := "defaultPoolSize", int32(v1alpha1.DefaultPoolSize), (*int32)(nil)
	if lb := network.LoadBalancer; Elastic(network) {
		field, n, said = "initialPoolSize", v1alpha1.DefaultInitialPoolSize, lb.InitialPoolSize
	} else if lb != nil {
		said = lb.DefaultPoolSize
	}
	if said != nil {
		n = *said
	}
	return Sizing{Count: n, Message: fmt.Sprintf("loadBalancer.%s is %s", field, addresses(n))}
}

// clamp keeps the quota.
func clamp(network v1alpha1.ProviderNetwork, s Sizing) Sizing {
	if q := network.QuotaPerTenant; q != nil && q.MaxLoadBalancerIPs != nil && *q.MaxLoadBalancerIPs < s.Count {
		s.Count, s.Clamped = *q.MaxLoadBalancerIPs, true
		s.Message += fmt.Sprintf("; quotaPerTenant.maxLoadBalancerIPs allows %d", s.Count)
	}
	return s
}
