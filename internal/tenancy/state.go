package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

type projectionFinalizer struct {
	loadBalancer v1alpha1.LoadBalancerType
	finalizer    string
}

// projectionFinalizers are the finalizers of the blocks that are projected to each load balancer.
var projectionFinalizers = []projectionFinalizer{
	{v1alpha1.MetalLBLoadBalancer, v1alpha1.TenantPoolFinalizer},
	{v1alpha1.CiliumLoadBalancer, v1alpha1.CiliumPoolFinalizer},
}

// IsProjected reports whether a block is or is about to be projected to the load balancer of its Cluster. Such a
// block is not deleted before the Cluster has released it.
func IsProjected(a *v1alpha1.IPAllocation) bool {
	return ProjectedTo(a) != ""
}

// ProjectedTo returns the load balancer that a block is or is about to be projected to, empty if there is none.
func ProjectedTo(a *v1alpha1.IPAllocation) v1alpha1.LoadBalancerType {
	for _, p := range projectionFinalizers {
		if slices.Contains(a.Finalizers, p.finalizer) {
			return p.loadBalancer
		}
	}
	return ""
}

// IsProjectionFinalizer reports whether a finalizer is that of the blocks that are projected to some load balancer.
func IsProjectionFinalizer(finalizer string) bool {
	return slices.ContainsFunc(projectionFinalizers, func(p projectionFinalizer) bool { return p.finalizer == finalizer })
}

// ProjectionFinalizer returns the finalizer of the blocks that are projected to a load balancer. It is empty, which the
// API server refuses, for a load balancer without one.
func ProjectionFinalizer(of v1alpha1.LoadBalancerType) string {
	for _, p := range projectionFinalizers {
		if p.loadBalancer == of {
			return p.finalizer
		}
	}
	return ""
}

// HasDemandCondition reports whether a block has the condition DemandSatisfied, which shows whether the Services of
// its Cluster have the addresses that they ask for.
func HasDemandCondition(a *v1alpha1.IPAllocation) bool {
	return meta.FindStatusCondition(a.Status.Conditions, v1alpha1.DemandSatisfiedCondition) != nil
}

// IsDraining reports whether a block is being withdrawn from its Cluster. Draining can still end, and the Cluster
// then keeps the block.
func IsDraining(a *v1alpha1.IPAllocation) bool {
	return meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.DrainingCondition)
}

// IsDrainingOrDeleting reports whether a block is being withdrawn from its Cluster, permanently or temporarily.
func IsDrainingOrDeleting(a *v1alpha1.IPAllocation) bool {
	return !a.DeletionTimestamp.IsZero() || IsDraining(a)
}
