package tenancy

import (
	"fmt"
	"strconv"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// InitialSize is the number of load-balancer addresses that a Cluster begins with.
type InitialSize struct {
	// Count is the number of addresses. 0 means no block, which only elastic Clusters can have.
	Count int32
	// Clamped reports whether quotaPerTenant.maxLoadBalancerIPs has reduced the count.
	Clamped bool
	// Message states for users where the size comes from and how the quota reduced it.
	Message string
}

// ComputeInitialSize returns the number of load-balancer addresses that a Cluster with these annotations begins with:
// the value of the annotation lb-pool-size, else initialPoolSize (elastic) or defaultPoolSize (static) of the
// ProviderConfig, else 2 or 8. It is never more than quotaPerTenant.maxLoadBalancerIPs. An annotation that is not a
// number from 1 (elastic: from 0) to 2147483647 is an error whose text states what to do: a Cluster that silently got
// a size other than the one it asked for could not get the right one later.
func ComputeInitialSize(network v1alpha1.ProviderNetwork, annotations map[string]string) (InitialSize, error) {
	text, ok := annotations[v1alpha1.LBPoolSizeAnnotation]
	if !ok {
		return clampToQuota(network, sizeFromConfig(network)), nil
	}
	s, err := sizeFromAnnotation(text, IsElastic(network))
	if err != nil {
		return InitialSize{}, err
	}
	return clampToQuota(network, s), nil
}

// IsElastic reports whether the blocks of Clusters grow and shrink with their Services.
func IsElastic(network v1alpha1.ProviderNetwork) bool {
	return network.LoadBalancer != nil && network.LoadBalancer.AllocationMode == v1alpha1.ElasticAllocation
}

func sizeFromAnnotation(text string, elastic bool) (InitialSize, error) {
	least := uint64(1)
	if elastic {
		least = 0
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n < least {
		return InitialSize{}, fmt.Errorf("annotation %s is %q: write a whole number from %d to 2147483647, or remove it to get the size of the ProviderConfig",
			v1alpha1.LBPoolSizeAnnotation, text, least)
	}
	return InitialSize{Count: int32(n), Message: fmt.Sprintf("the annotation %s asks for %s", v1alpha1.LBPoolSizeAnnotation, formatAddressCount(int32(n)))}, nil
}

// sizeFromConfig returns the size that the ProviderConfig sets, before the quota.
func sizeFromConfig(network v1alpha1.ProviderNetwork) InitialSize {
	field, n, configured := "defaultPoolSize", int32(v1alpha1.DefaultPoolSize), (*int32)(nil)
	if lb := network.LoadBalancer; IsElastic(network) {
		field, n, configured = "initialPoolSize", v1alpha1.DefaultInitialPoolSize, lb.InitialPoolSize
	} else if lb != nil {
		configured = lb.DefaultPoolSize
	}
	if configured != nil {
		n = *configured
	}
	return InitialSize{Count: n, Message: fmt.Sprintf("loadBalancer.%s is %s", field, formatAddressCount(n))}
}

// clampToQuota limits a size to quotaPerTenant.maxLoadBalancerIPs.
func clampToQuota(network v1alpha1.ProviderNetwork, s InitialSize) InitialSize {
	if q := network.QuotaPerTenant; q != nil && q.MaxLoadBalancerIPs != nil && *q.MaxLoadBalancerIPs < s.Count {
		s.Count, s.Clamped = *q.MaxLoadBalancerIPs, true
		s.Message += fmt.Sprintf("; quotaPerTenant.maxLoadBalancerIPs allows %d", s.Count)
	}
	return s
}
