package grants

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Conditions has the conditions that statuses do not show yet, and the Clusters whose change wakes the pool. Each
// reconcile determines them again.
type Conditions struct {
	// WaitingClusters are the Clusters that claimants wait for.
	WaitingClusters map[types.NamespacedName]struct{}
	// Pending are the claimants whose status does not show yet what blocks them, with the condition to
	// write.
	Pending map[*Claimant]metav1.Condition
	// AwaitedClusters are the Clusters of IPAllocations that were never seen.
	AwaitedClusters map[types.NamespacedName]struct{}

	claimants *Claimants
	base      *Base
	record    *Record
	queues    *Queues
	addresses *Addresses
}

// RecordAdmission records what a decision requires: the condition to write to the claimant, and the Cluster that it
// waits for.
func (cs *Conditions) RecordAdmission(c *Claimant, r AdmissionResult) {
	if r.ClusterState != ClusterReady || r.OwnedByCluster {
		cs.WaitingClusters[c.Cluster] = struct{}{}
	}
	switch {
	case !r.Wait || r.Quiet:
	case r.FinalizerHeld:
		cs.recordFinalizerHeld(c)
	case r.OwnedByCluster:
		cs.recordOwnedByCluster(c)
	default:
		cs.RecordPause(c, r.ClusterState)
	}
}

// RecordingAdmission returns an AdmissionFunc that calls admit and records its decisions.
func (cs *Conditions) RecordingAdmission(admit AdmissionFunc) AdmissionFunc {
	return func(c *Claimant) AdmissionResult {
		r := admit(c)
		cs.RecordAdmission(c, r)
		return r
	}
}

// RecordOwnerSeen records an observation of the owner of an IPAllocation. An owner that was seen does not become
// OwnerNeverSeen because it was gone before the status showed it. If the status shows a pause and the owner is gone,
// the pause stays: what this manager saw may be older.
func (cs *Conditions) RecordOwnerSeen(c *Claimant, found OwnerSeen) {
	known := cs.claimants.ByUID[c.Owner.UID]
	if known == nil {
		return
	}
	switch {
	case found == OwnerNeverSeen && known.ObservedOwnerSeen == OwnerSeenPaused:
		known.ObservedOwnerSeen = OwnerLeftPaused
	case found == OwnerNeverSeen && known.ObservedOwnerSeen == OwnerSeenAlive && known.PublishedOwnerSeen == OwnerSeenPaused:
		known.ObservedOwnerSeen = OwnerNeverSeen
		cs.queues.QueueClaimant(known)
	default:
		known.ObservedOwnerSeen = known.ObservedOwnerSeen.mergeObserved(found)
	}
	cs.AwaitCluster(known)
}

// RecordClusterSeen records an observation of a Cluster for its IPAllocations and, if it is paused, for those of the
// carved pools in its namespace. It reports whether the next sweep has to write a status because of that, and makes
// the sweep due then. serves reports whether a claimant is served by this manager.
func (cs *Conditions) RecordClusterSeen(cluster types.NamespacedName, found OwnerSeen, serves func(*Claimant) bool) (changed bool) {
	note := func(c *Claimant) {
		// The sweep checks a Cluster that was resumed: the state on record may be newer than this observation.
		resumed := found == OwnerSeenAlive && max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= OwnerSeenPaused
		// If the watch is behind, a running Cluster may be an older version than the IPAllocation.
		if found == OwnerSeenPaused {
			cs.RecordOwnerSeen(c, found)
		}
		needsUpdate := resumed || c.NeedsOwnerPausedUpdate() || c.NeedsOwnerSeenUpdate()
		changed = changed || (needsUpdate && cs.record.Holder && !c.Deleting && !c.Moved && c.HasRecord() && serves(c))
	}
	for _, c := range cs.claimants.byOwner[cluster] {
		note(c)
	}
	if found == OwnerSeenPaused {
		for _, c := range cs.claimants.byOwner[types.NamespacedName{Namespace: cluster.Namespace}] {
			if max(c.PublishedOwnerSeen, c.ObservedOwnerSeen) >= OwnerSeenAlive {
				note(c)
			}
		}
	}
	if changed {
		cs.addresses.NextOrphanSweep = time.Time{}
	}
	return changed
}

// AwaitCluster registers the Cluster of a claimant if it was never seen, so that the next sweep checks it once it
// exists.
func (cs *Conditions) AwaitCluster(c *Claimant) {
	if c.NextOwnerSeen(c.ObservedOwnerSeen) >= OwnerSeenAlive || c.ChildPool != nil {
		return
	}
	if cs.AwaitedClusters == nil {
		cs.AwaitedClusters = map[types.NamespacedName]struct{}{}
	}
	cs.AwaitedClusters[c.Cluster] = struct{}{}
}

// TakeAwaitedCluster reports whether a Cluster was awaited. In that case it removes the Cluster from the awaited ones
// and makes the next sweep due.
func (cs *Conditions) TakeAwaitedCluster(cluster types.NamespacedName) bool {
	_, awaited := cs.AwaitedClusters[cluster]
	if awaited {
		delete(cs.AwaitedClusters, cluster)
		cs.addresses.NextOrphanSweep = time.Time{}
	}
	return awaited
}

// RecordPause records what pauses a claimant, and adds a pending condition if its status does not show that yet. The
// caller must hold the lock of the pool.
func (cs *Conditions) RecordPause(c *Claimant, g ClusterState) {
	if g == ClusterUnknown || (cs.base.Pool != nil && !cs.record.Holder) {
		return // the state is unknown, or the holder sets the condition
	}
	if c.PauseMessage = cs.base.PauseMessageFor(c, g); c.PauseMessage == "" || c.PauseMessage == c.PublishedPauseMessage {
		return
	}
	cs.setPendingCondition(c, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: c.PauseMessage,
	})
}

// recordFinalizerHeld adds a pending condition to a deleted claim whose IPAddress is kept by finalizers of other
// controllers. The caller must hold the lock of the pool.
func (cs *Conditions) recordFinalizerHeld(c *Claimant) {
	if addr := cs.addresses.AddressFor(c); addr != nil {
		cs.recordDeletionBlocked(c, fmt.Sprintf("its IPAddress is kept by the finalizer %s; ask its owner to remove it", strings.Join(addr.OtherFinalizers, ", ")))
	}
}

// recordOwnedByCluster adds a pending condition to a deleted claim that stays as long as its Cluster. The caller must
// hold the lock of the pool.
func (cs *Conditions) recordOwnedByCluster(c *Claimant) {
	cs.recordDeletionBlocked(c, fmt.Sprintf("its address is of Cluster %s, which owns the claim: it is released when the Cluster is gone; "+
		"to release it now, take the owner reference off the claim", c.Cluster))
}

// recordDeletionBlocked adds a pending condition with the reason why a deleted claim stays, if its status does not
// show that yet.
func (cs *Conditions) recordDeletionBlocked(c *Claimant, why string) {
	if cs.base.Pool != nil && !cs.record.Holder {
		return
	}
	if refusal := (Refusal{v1alpha1.DeletingReason, why}); c.PublishedRefusal() != refusal {
		cs.setPendingCondition(c, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message})
	}
}

func (cs *Conditions) setPendingCondition(c *Claimant, condition metav1.Condition) {
	if cs.Pending == nil {
		cs.Pending = map[*Claimant]metav1.Condition{}
	}
	cs.Pending[c] = condition
}
