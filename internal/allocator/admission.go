package allocator

import (
	"context"
	"fmt"
	"sync"
	"time"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// admissionPolicy decides whether a claimant may be served, or released, before the plan is made. It reads the caches,
// and writes nothing.
type admissionPolicy struct {
	*Options
	scope    *servedScope
	overlaps *overlapIndex
	lookups  *cacheLookups
	machines *machineLookups
}

// newAdmissionFunc returns the rules that decide on a claim before an address is chosen for it, and that record each
// decision in m. They read from caches, once per Cluster and namespace.
func (ap *admissionPolicy) newAdmissionFunc(ctx context.Context, m *grants.PoolState, now time.Time) grants.AdmissionFunc {
	return m.Conditions.RecordingAdmission(ap.admissionRules(ctx, m, now))
}

// newReleaseAdmissionFunc returns the rules that decide on the release of a deleted claimant, and that record each
// decision in m. They read each Cluster once, however many claimants it has.
func (ap *admissionPolicy) newReleaseAdmissionFunc(ctx context.Context, m *grants.PoolState) grants.AdmissionFunc {
	clusters := ap.lookups.newClusterLookup(ctx)
	return m.Conditions.RecordingAdmission(func(c *grants.Claimant) grants.AdmissionResult { return ap.admitRelease(m, c, clusters) })
}

// admissionRules returns the rules of newAdmissionFunc without the recording: they change nothing. Results that are the
// same for all claimants are computed once, for the first claimant.
func (ap *admissionPolicy) admissionRules(ctx context.Context, m *grants.PoolState, now time.Time) grants.AdmissionFunc {
	clusters := ap.lookups.newClusterLookup(ctx)
	namespaces := map[string]*grants.Refusal{}
	direct, indirect := m.Base.DirectClaimRefusal(), m.Base.MirroredClaimRefusal()
	closed := sync.OnceValue(func() *grants.Refusal { return closedPoolRefusal(m, now) })
	return func(c *grants.Claimant) grants.AdmissionResult {
		if ap.scope.shouldIgnoreClaimant(c) {
			return grants.AdmissionResult{Wait: true, Quiet: ap.scope.isForOtherManager(c)}
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
			if out.Refusal = ap.refusalForBlock(m, c); out.Refusal != nil {
				return out
			}
		}
		if indirect != nil && c.UsesMirroredPool && !c.HasRecord() {
			out.Refusal = indirect
			return out
		}
		if c.ChildPool != nil && c.ChildPool.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace == ap.BlockNamespace {
			return out // a user who may create a global pool is no tenant
		}
		if global, ok := m.Base.Pool.(*v1alpha1.GlobalNetworkPool); ok {
			refusal, known := namespaces[c.Owner.Namespace]
			if !known {
				refusal = ap.lookups.refusalForNamespace(ctx, global, c.Owner.Namespace)
				namespaces[c.Owner.Namespace] = refusal
			}
			out.Refusal = refusal
		}
		if out.Refusal == nil {
			return ap.machines.admitByMachine(m, c, out)
		}
		return out
	}
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

// deletingPoolMessage returns the message for claims of a pool that is being deleted.
func deletingPoolMessage(pool v1alpha1.Pool) string {
	if source := grants.MirroredPoolName(pool); source != "" {
		return fmt.Sprintf("the pool is being deleted, and is made again for %s when all of its addresses are released; use another pool until then", source)
	}
	return "the pool is being deleted; use another pool"
}

// refusalForBlock returns why a block for a pool is refused; nil means that it may be granted. The kind applies the
// rules that depend on the parent alone.
func (ap *admissionPolicy) refusalForBlock(m *grants.PoolState, c *grants.Claimant) *grants.Refusal {
	child := *c.ChildPool
	declaration := ap.overlaps.declarationFor(child)
	switch {
	case c.StatusHasAddress, c.HasRecord() && c.NextOwnerSeen(c.ObservedOwnerSeen) == grants.OwnerSeenPaused:
		return nil // it has its block, also where its pool may have been moved
	case child.Kind == v1alpha1.GlobalNetworkPoolKind && c.Owner.Namespace != ap.BlockNamespace:
		return grants.AllocationFailed("the blocks of %s are in namespace %s, where the manager runs; the spec is immutable, so create the allocation there", child, ap.BlockNamespace)
	case declaration.uid == "":
		return grants.PoolNotReady("%s, which this block is for, does not exist", child)
	case declaration.parent != m.Base.Key:
		return grants.AllocationFailed("%s, which this block is for, is not carved from %s; create the allocation again with the right pools", child, m.Base.Key)
	}
	if _, problem := ap.overlaps.ancestors(child); problem != "" {
		return grants.PoolNotReady("%s, which this block is for, cannot be served: %s", child, problem)
	}
	return nil
}

// admitRelease decides whether a deleted claimant may be released now: neither the claimant nor its pool nor its
// Cluster is paused, and no consumer still uses the address. A Cluster that is gone does not block the release.
func (ap *admissionPolicy) admitRelease(m *grants.PoolState, c *grants.Claimant, clusters clusterLookup) grants.AdmissionResult {
	if c.InUse && !m.Inventory.HasUnpublishedGrant(c) {
		return grants.AdmissionResult{Wait: true, Quiet: true} // a consumer's finalizer shows that; its end is an event
	}
	if m.Addresses.IsFinalizerHeld(c) {
		return grants.AdmissionResult{Wait: true, Quiet: ap.scope.shouldIgnoreClaimant(c), FinalizerHeld: true} // its end is an event
	}
	if ap.scope.shouldIgnoreClaimant(c) || (m.Base.Pool != nil && annotations.HasPaused(m.Base.Pool)) {
		return grants.AdmissionResult{Wait: true, Quiet: ap.scope.isForOtherManager(c)}
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
