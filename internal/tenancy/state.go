package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Projected reports whether a block was shown to its Cluster, or is about to be: it does not go before the Cluster has
// let go of it.
func Projected(a *v1alpha1.IPAllocation) bool {
	return ShownTo(a) != ""
}

// ShownTo is the load balancer that a block was shown to, or is about to be; none, if it was not.
func ShownTo(a *v1alpha1.IPAllocation) v1alpha1.LoadBalancerType {
	for _, of := range []v1alpha1.LoadBalancerType{v1alpha1.MetalLBLoadBalancer, v1alpha1.CiliumLoadBalancer} {
		if slices.Contains(a.Finalizers, ShownFinalizer(of)) {
			return of
		}
	}
	return ""
}

// ShownFinalizer is on the blocks that a load balancer is shown.
func ShownFinalizer(of v1alpha1.LoadBalancerType) string {
	if of == v1alpha1.CiliumLoadBalancer {
		return v1alpha1.CiliumPoolFinalizer
	}
	return v1alpha1.TenantPoolFinalizer
}

// Speaks reports whether a block says whether the Services of its Cluster have what they ask for.
func Speaks(a *v1alpha1.IPAllocation) bool {
	return meta.FindStatusCondition(a.Status.Conditions, v1alpha1.DemandSatisfiedCondition) != nil
}

// Draining reports whether a block is being taken away from its Cluster. It may still be given back to it.
func Draining(a *v1alpha1.IPAllocation) bool {
	return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)
}

// Leaving reports whether a block is being taken away, for good or for the time being.
func Leaving(a *v1alpha1.IPAllocation) bool {
	return !a.DeletionTimestamp.IsZero() || Draining(a)
}
