package cli

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// addOrphanedAllocations adds the IPAllocations that have outlived their Cluster or child pool, and that no manager
// deletes. It lists Clusters only where there is an allocation whose owner was paused when it was last seen.
func (a *auditResult) addOrphanedAllocations(ctx context.Context, from client.Reader, o pools.Objects) error {
	clusters, kept := &clusterv1.ClusterList{}, allocationsKeptByPause(o.Allocations)
	if len(kept) == 0 {
		return nil
	}
	switch err := from.List(ctx, clusters); {
	case apierrors.IsForbidden(err):
		a.ClustersUnchecked = err.Error()
		kept = slices.DeleteFunc(kept, func(a *v1alpha1.IPAllocation) bool {
			_, ofPool := pools.ChildPoolKey(a)
			return !ofPool
		})
	case err != nil:
		return fmt.Errorf("listing Clusters: %w", err)
	}
	a.Unsettled = append(a.Unsettled, describeOrphanedAllocations(kept, o.Pools, clusters.Items)...)
	return nil
}

// allocationsKeptByPause returns the allocations with a block that the manager keeps after their Cluster or child pool
// is gone, because that was paused when it was last seen.
func allocationsKeptByPause(all []v1alpha1.IPAllocation) (out []*v1alpha1.IPAllocation) {
	for i := range all {
		a := &all[i]
		seen := v1alpha1.ClusterSeenCondition
		if _, ok := pools.ChildPoolKey(a); ok {
			seen = v1alpha1.PoolSeenCondition
		}
		_, ok := a.Annotations[v1alpha1.AddressAnnotation]
		if ok && a.DeletionTimestamp == nil && meta.IsStatusConditionPresentAndEqual(a.Status.Conditions, seen, metav1.ConditionUnknown) {
			out = append(out, a)
		}
	}
	return out
}

// describeOrphanedAllocations returns a line for each allocation of kept that has outlived its Cluster, or the child
// pool that was carved with it.
func describeOrphanedAllocations(kept []*v1alpha1.IPAllocation, all []v1alpha1.Pool, clusters []clusterv1.Cluster) (out []string) {
	there, carved := map[types.NamespacedName]bool{}, map[pools.Key]pools.Key{}
	for i := range clusters {
		there[client.ObjectKeyFromObject(&clusters[i])] = true
	}
	for _, p := range all {
		if parent, ok := pools.ParentPoolKey(p); ok {
			carved[pools.KeyForPool(p)] = parent
		}
	}
	for _, a := range kept {
		parent, cluster := pools.KeyFromAllocation(a), a.Spec.TenantClusterRef
		gone, paused := "Cluster "+cluster.NamespacedName().String()+" does not exist", "the Cluster"
		if child, ok := pools.ChildPoolKey(a); ok {
			if carved[child] == parent {
				continue
			}
			gone, paused = fmt.Sprintf("no %v is carved from that", child), "a Cluster of namespace "+child.Namespace
		} else if there[cluster.NamespacedName()] {
			continue
		}
		out = append(out, fmt.Sprintf("IPAllocation %s/%s has %s of %v, and %s: it stays, as %s was paused when that was last seen, as clusterctl pauses what it moves; %s",
			a.Namespace, a.Name, a.Annotations[v1alpha1.AddressAnnotation], parent, gone, paused, inspect.AdviseAfterMove(a.Namespace, cluster.Name, cluster.Namespace)))
	}
	return out
}
