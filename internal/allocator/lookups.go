package allocator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// cacheLookups reads from caches what other controllers own: Clusters, namespaces and quotas. Each lookup that it
// returns reads an object once and is for one reconcile or one job.
type cacheLookups struct {
	*Options
	relations *poolRelations
}

// clusterLookup returns the observation of a Cluster.
type clusterLookup func(types.NamespacedName) clusterObservation

// clusterObservation is the result of reading a Cluster.
type clusterObservation struct {
	state grants.ClusterState
	// uid is the UID of the Cluster while it keeps what it owns; empty if the Cluster is gone, or was not read.
	uid types.UID
	// ownerSeen is how the Cluster was seen, as the owner of IPAllocations.
	ownerSeen grants.OwnerSeen
}

// newClusterLookup returns a lookup that reads each Cluster once.
func (cl *cacheLookups) newClusterLookup(ctx context.Context) clusterLookup {
	seen := map[types.NamespacedName]clusterObservation{}
	return func(key types.NamespacedName) clusterObservation {
		c, ok := seen[key]
		if !ok {
			c = cl.lookUpCluster(ctx, key)
			seen[key] = c
		}
		return c
	}
}

// lookUpCluster reads a Cluster from the cache. Both spec.paused and the annotation pause it, as required by the
// [IPAM provider contract] of Cluster API.
//
// [IPAM provider contract]: https://cluster-api.sigs.k8s.io/developer/providers/contracts/ipam
func (cl *cacheLookups) lookUpCluster(ctx context.Context, key types.NamespacedName) clusterObservation {
	if cl.Namespace != "" && key.Namespace != cl.Namespace {
		return clusterObservation{state: grants.ClusterReady} // out of view: a block may be for a Cluster of any namespace
	}
	cluster := &clusterv1.Cluster{}
	err := cl.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return clusterObservation{state: grants.ClusterNotFound, ownerSeen: grants.OwnerNeverSeen}
	case err != nil:
		return clusterObservation{state: grants.ClusterUnknown}
	}
	out := clusterObservation{state: grants.ClusterReady, uid: cluster.UID, ownerSeen: ownerSeenFromCluster(cluster, false)}
	if annotations.IsPaused(cluster, cluster) {
		out.state = grants.ClusterPaused
	}
	if ending.HasOnlyFinalizers(cluster, v1alpha1.TenantNetworkFinalizer) {
		out.uid = "" // its machines are gone, and the garbage collector waits for the objects that it owns
	}
	return out
}

// isOwnerOf reports whether the observed Cluster owns a deleted claim and exists, so that its machines use the address:
// a user deleted the claim, or deleted the Cluster in the foreground. By itself the garbage collector deletes the claim
// only after the Cluster is gone.
func (co clusterObservation) isOwnerOf(c *grants.Claimant) bool {
	owner := c.OwnerCluster()
	return owner != "" && !c.Moved && owner == co.uid
}

// newOwnerLookup returns a lookup that finds out whether the owner of an IPAllocation, its Cluster or its child pool,
// is alive. It reads each Cluster, and the Clusters of each namespace, once.
func (cl *cacheLookups) newOwnerLookup(ctx context.Context) func(pool pools.Key, c *grants.Claimant) grants.OwnerSeen {
	clusters, pausedIn := cl.newClusterLookup(ctx), cl.newNamespacePauseLookup(ctx)
	return func(pool pools.Key, c *grants.Claimant) grants.OwnerSeen {
		if c.ChildPool == nil {
			return clusters(c.Cluster).ownerSeen
		}
		if found := cl.relations.childPoolSeen(pool, *c.ChildPool); found != grants.OwnerSeenAlive {
			return found
		}
		switch around := pausedIn(c.ChildPool.Namespace); {
		case around != grants.OwnerNeverSeen:
			return around
		case max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= grants.OwnerSeenPaused:
			return grants.OwnerUnknown // the Clusters that were paused may have been moved
		}
		return grants.OwnerSeenAlive
	}
}

// ownerSeenFromCluster returns how a Cluster was seen, as it is, or as it was at its end. A Cluster that clusterctl is
// deleting counts as paused for good: clusterctl may unpause it in order to move on.
func ownerSeenFromCluster(cluster *clusterv1.Cluster, ended bool) grants.OwnerSeen {
	_, marked := cluster.Annotations[v1alpha1.DeleteForMoveAnnotation]
	if annotations.IsPaused(cluster, cluster) || ending.IsMoved(cluster) || (ended && marked) {
		return grants.OwnerSeenPaused
	}
	return grants.OwnerSeenAlive
}

// newNamespacePauseLookup returns a lookup that reads how the Clusters of a pool's namespace were seen: clusterctl
// pauses the Clusters of a namespace and moves its pools away, too. OwnerNeverSeen means that there is no Cluster, or
// no longer one.
func (cl *cacheLookups) newNamespacePauseLookup(ctx context.Context) func(namespace string) grants.OwnerSeen {
	seen := map[string]grants.OwnerSeen{"": grants.OwnerSeenAlive}
	return func(namespace string) grants.OwnerSeen {
		state, known := seen[namespace]
		if known {
			return state
		}
		clusters := &clusterv1.ClusterList{}
		state = grants.OwnerNeverSeen
		if err := cl.Client.List(ctx, clusters, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			state = grants.OwnerUnknown
		}
		for i := range clusters.Items {
			state = max(state, ownerSeenFromCluster(&clusters.Items[i], false))
		}
		seen[namespace] = state
		return state
	}
}

// newQuotaLimits returns a lookup of how many claims of a Cluster may have an address. It reads each Cluster once.
func (cl *cacheLookups) newQuotaLimits(ctx context.Context) func(types.NamespacedName) (int64, bool) {
	if cl.NodeQuota == nil {
		return nil
	}
	type limit struct {
		n       int64
		limited bool
	}
	known := map[types.NamespacedName]limit{}
	return func(cluster types.NamespacedName) (int64, bool) {
		l, ok := known[cluster]
		if !ok {
			l.n, l.limited = cl.NodeQuota(ctx, cluster)
			known[cluster] = l
		}
		return l.n, l.limited
	}
}

// refusalForNamespace returns why a global pool does not serve a namespace; nil means that it does.
func (cl *cacheLookups) refusalForNamespace(ctx context.Context, pool *v1alpha1.GlobalNetworkPool, namespace string) *grants.Refusal {
	if pool.Spec.NamespaceSelector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.NamespaceSelector)
	if err != nil {
		return grants.PoolNotReady("spec.namespaceSelector of GlobalNetworkPool %s is invalid: %v", pool.Name, err)
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := cl.Client.Get(ctx, types.NamespacedName{Name: namespace}, ns); err != nil {
		return grants.AllocationFailed("the labels of namespace %s cannot be read: %v", namespace, err)
	}
	if !selector.Matches(labels.Set(ns.Labels)) {
		return grants.AllocationFailed("GlobalNetworkPool %s does not serve namespace %s; label the namespace to match %s",
			pool.Name, namespace, selector)
	}
	return nil
}
