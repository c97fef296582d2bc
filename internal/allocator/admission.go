package allocator

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// newAdmissionFunc returns the rules that decide on a claim before an address is chosen for it, and that record each
// decision in m. They read from caches, once per Cluster and namespace.
func (a *Allocator) newAdmissionFunc(ctx context.Context, m *grants.PoolState, now time.Time) grants.AdmissionFunc {
	return m.Conditions.RecordingAdmission(a.admissionRules(ctx, m, now))
}

// newReleaseAdmissionFunc returns the rules that decide on the release of a deleted claimant, and that record each
// decision in m. They read each Cluster once, however many claimants it has.
func (a *Allocator) newReleaseAdmissionFunc(ctx context.Context, m *grants.PoolState) grants.AdmissionFunc {
	clusters := a.newClusterLookup(ctx)
	return m.Conditions.RecordingAdmission(func(c *grants.Claimant) grants.AdmissionResult { return a.admitRelease(m, c, clusters) })
}

// admissionRules returns the rules of newAdmissionFunc without the recording: they change nothing. Results that are the
// same for all claimants are computed once, for the first claimant.
func (a *Allocator) admissionRules(ctx context.Context, m *grants.PoolState, now time.Time) grants.AdmissionFunc {
	clusters := a.newClusterLookup(ctx)
	namespaces := map[string]*grants.Refusal{}
	direct, indirect := m.Base.DirectClaimRefusal(), m.Base.MirroredClaimRefusal()
	closed := sync.OnceValue(func() *grants.Refusal { return closedPoolRefusal(m, now) })
	return func(c *grants.Claimant) grants.AdmissionResult {
		if a.shouldIgnoreClaimant(c) {
			return grants.AdmissionResult{Wait: true, Quiet: a.isForOtherManager(c)}
		}
		var out grants.AdmissionResult
		if c.Cluster.Name != "" {
			out.ClusterState = clusters(c.Cluster).state
			switch out.ClusterState {
			case grants.ClusterReady:
			case grants.ClusterPaused, grants.ClusterUnknown:
				out.Wait = true
				return out
			case grants.ClusterNotFound:
				// A platform may request the blocks of a Cluster before it creates the Cluster.
				if c.Kind.Traits().NeedsCluster {
					out.Refusal = grants.AllocationFailed("waiting for Cluster %s, which does not exist; create the Cluster, or correct spec.clusterName or the label cluster.x-k8s.io/cluster-name of the claim", c.Cluster)
					return out
				}
			}
		}
		if m.Base.Pool == nil {
			return out
		}
		if annotations.HasPaused(m.Base.Pool) {
			out.Wait = true
			return out
		}
		if !c.HasRecord() || m.Space.Layout == nil {
			if out.Refusal = closed(); out.Refusal != nil {
				return out
			}
		}
		if direct != nil && !c.UsesMirroredPool && !c.HasRecord() {
			out.Refusal = direct
			return out
		}
		if c.ChildPool != nil {
			if out.Refusal = a.refusalForBlock(m, c); out.Refusal != nil {
				return out
			}
		}
		if indirect != nil && c.UsesMirroredPool && !c.HasRecord() {
			out.Refusal = indirect
			return out
		}
		if c.ChildPool != nil && c.ChildPool.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace == a.BlockNamespace {
			return out // a user who may create a global pool is no tenant
		}
		if global, ok := m.Base.Pool.(*v1alpha1.GlobalNetworkPool); ok {
			refusal, known := namespaces[c.Owner.Namespace]
			if !known {
				refusal = a.refusalForNamespace(ctx, global, c.Owner.Namespace)
				namespaces[c.Owner.Namespace] = refusal
			}
			out.Refusal = refusal
		}
		if out.Refusal == nil {
			return a.admitByMachine(m, c, out)
		}
		return out
	}
}

// deletingPoolMessage returns the message for claims of a pool that is being deleted.
func deletingPoolMessage(pool v1alpha1.Pool) string {
	if source := grants.MirroredPoolName(pool); source != "" {
		return fmt.Sprintf("the pool is being deleted, and is made again for %s when all of its addresses are released; use another pool until then", source)
	}
	return "the pool is being deleted; use another pool"
}

// closedPoolRefusal returns the refusal for all claims to which the pool grants nothing new; nil means that it grants.
func closedPoolRefusal(m *grants.PoolState, now time.Time) *grants.Refusal {
	reason, message := m.Status.ClosedReason(now)
	switch reason {
	case "":
		return nil
	case v1alpha1.DeletingReason:
		message = deletingPoolMessage(m.Base.Pool) // the claims that it waits for change with every release
	case v1alpha1.AdoptingReason: // the time of the last arrival changes with every arrival
		message = "other claimants may have addresses of it that are not known yet; its condition Ready states what ends this, or when"
	case v1alpha1.PoolExhaustedReason: // the reason that the contract names, whatever the cause
		return &grants.Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf("%s has no free address: %s", m.Base.Key, message))}
	}
	return grants.PoolNotReady("%s grants nothing now (%s): %s", m.Base.Key, reason, message)
}

// shouldIgnoreClaimant reports whether this manager does nothing for a claimant: it is paused, or another manager's.
func (a *Allocator) shouldIgnoreClaimant(c *grants.Claimant) bool {
	return c.Paused || a.isForOtherManager(c)
}

// isForOtherManager reports whether a claimant is another manager's: by its watch-filter label, or because it is an
// IPLease and this manager serves no leases.
func (a *Allocator) isForOtherManager(c *grants.Claimant) bool {
	return (a.WatchFilter != "" && c.WatchLabel != a.WatchFilter) || (a.WithoutLeases && c.Owner.Kind == v1alpha1.IPLeaseKind)
}

// clusterObservation is the result of reading a Cluster.
type clusterObservation struct {
	state grants.ClusterState
	// uid is the UID of the Cluster while it keeps what it owns; empty if the Cluster is gone, or was not read.
	uid types.UID
	// ownerSeen is how the Cluster was seen, as the owner of IPAllocations.
	ownerSeen grants.OwnerSeen
}

// clusterLookup returns the observation of a Cluster.
type clusterLookup func(types.NamespacedName) clusterObservation

// newClusterLookup returns a lookup that reads each Cluster once.
func (a *Allocator) newClusterLookup(ctx context.Context) clusterLookup {
	seen := map[types.NamespacedName]clusterObservation{}
	return func(key types.NamespacedName) clusterObservation {
		c, ok := seen[key]
		if !ok {
			c = a.lookUpCluster(ctx, key)
			seen[key] = c
		}
		return c
	}
}

// lookUpCluster reads a Cluster from the cache. Both spec.paused and the annotation pause it, as required by the
// [IPAM provider contract] of Cluster API.
//
// [IPAM provider contract]: https://cluster-api.sigs.k8s.io/developer/providers/contracts/ipam
func (a *Allocator) lookUpCluster(ctx context.Context, key types.NamespacedName) clusterObservation {
	if a.Namespace != "" && key.Namespace != a.Namespace {
		return clusterObservation{state: grants.ClusterReady} // out of view: a block may be for a Cluster of any namespace
	}
	cluster := &clusterv1.Cluster{}
	err := a.Client.Get(ctx, key, cluster)
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

// refusalForNamespace returns why a global pool does not serve a namespace; nil means that it does.
func (a *Allocator) refusalForNamespace(ctx context.Context, pool *v1alpha1.GlobalNetworkPool, namespace string) *grants.Refusal {
	if pool.Spec.NamespaceSelector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(pool.Spec.NamespaceSelector)
	if err != nil {
		return grants.PoolNotReady("spec.namespaceSelector of GlobalNetworkPool %s is invalid: %v", pool.Name, err)
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := a.Client.Get(ctx, types.NamespacedName{Name: namespace}, ns); err != nil {
		return grants.AllocationFailed("the labels of namespace %s cannot be read: %v", namespace, err)
	}
	if !selector.Matches(labels.Set(ns.Labels)) {
		return grants.AllocationFailed("GlobalNetworkPool %s does not serve namespace %s; label the namespace to match %s",
			pool.Name, namespace, selector)
	}
	return nil
}

// admitRelease decides whether a deleted claimant may be released now: neither the claimant nor its pool nor its
// Cluster is paused, and no consumer still uses the address. A Cluster that is gone does not block the release.
func (a *Allocator) admitRelease(m *grants.PoolState, c *grants.Claimant, clusters clusterLookup) grants.AdmissionResult {
	if c.InUse && !m.Inventory.HasUnpublishedGrant(c) {
		return grants.AdmissionResult{Wait: true, Quiet: true} // a consumer's finalizer shows that; its end is an event
	}
	if m.Addresses.IsFinalizerHeld(c) {
		return grants.AdmissionResult{Wait: true, Quiet: a.shouldIgnoreClaimant(c), FinalizerHeld: true} // its end is an event
	}
	if a.shouldIgnoreClaimant(c) || (m.Base.Pool != nil && annotations.HasPaused(m.Base.Pool)) {
		return grants.AdmissionResult{Wait: true, Quiet: a.isForOtherManager(c)}
	}
	if c.Cluster.Name == "" {
		return grants.AdmissionResult{}
	}
	cluster := clusters(c.Cluster)
	if g := cluster.state; g == grants.ClusterPaused || g == grants.ClusterUnknown {
		return grants.AdmissionResult{Wait: true, ClusterState: g}
	}
	if m.Base.Pool != nil && m.Inventory.ReleasableRange(c).IsValid() && cluster.isOwnerOf(c) {
		return grants.AdmissionResult{Wait: true, OwnedByCluster: true}
	}
	return grants.AdmissionResult{}
}

// isOwnerOf reports whether the observed Cluster owns a deleted claim and exists, so that its machines use the address:
// a user deleted the claim, or deleted the Cluster in the foreground. By itself the garbage collector deletes the claim
// only after the Cluster is gone.
func (k clusterObservation) isOwnerOf(c *grants.Claimant) bool {
	owner := c.OwnerCluster()
	return owner != "" && !c.Moved && owner == k.uid
}
