package grants

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Conditions has the conditions that statuses do not show yet, and the Clusters whose change wakes the pool. Each
// reconcile determines them again.
type Conditions struct {
	// BlockingClusters are the Clusters that claimants wait for.
	BlockingClusters map[types.NamespacedName]struct{}
	// Unpublished are the claimants whose status does not show yet what blocks them, with the condition to write.
	Unpublished map[*Claimant]metav1.Condition

	base      *BasePool
	term      *TermState
	addresses *Addresses
}

// AdmissionResult is the decision on a claimant that is made before an address is chosen.
type AdmissionResult struct {
	// Wait reports whether nothing is done for the claimant now; its status then shows only what blocks it. Quiet
	// reports whether even that is not written here. FinalizerHeld reports whether a finalizer of another controller
	// on its IPAddress blocks it, not a pause.
	Wait, Quiet, FinalizerHeld bool
	// OwnedByCluster reports whether the address belongs to the Cluster of the claimant, which exists.
	OwnedByCluster bool
	// Refusal is why the claimant gets nothing, nil if an address may be chosen for it.
	Refusal *Refusal
	// ClusterState is the observed state of the Cluster, ClusterReady if it was not checked. In any other state the
	// claimant is checked again when the Cluster changes.
	ClusterState ClusterState
}

// AdmissionFunc decides on a claimant.
type AdmissionFunc func(c *Claimant) AdmissionResult

// RecordAdmission records what a decision requires: the condition to write to the claimant, and the Cluster that it
// waits for.
func (cs *Conditions) RecordAdmission(c *Claimant, r AdmissionResult) {
	if r.ClusterState != ClusterReady || r.OwnedByCluster {
		cs.BlockingClusters[c.Cluster] = struct{}{}
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

// ClusterState is the state of the Cluster of a claimant, as far as it decides whether the claimant may be served.
type ClusterState int

// The states of a Cluster: its claimants may be served, it is paused, it does not exist, or it could not be read.
const (
	ClusterReady ClusterState = iota
	ClusterPaused
	ClusterNotFound
	ClusterUnknown
)

// PausedPoolText is the part of the messages of a paused pool that all of them share.
const PausedPoolText = "is paused by its annotation " + clusterv1.PausedAnnotation + ": it neither grants nor releases addresses"

// pausedPoolMessage returns the message of the conditions of a paused pool.
func pausedPoolMessage(pool v1alpha1.Pool) string {
	if source := pausingPoolName(pool); source != "" {
		return fmt.Sprintf("the pool %s; remove the annotation from %s to resume, which this pool mirrors", PausedPoolText, source)
	}
	return "the pool " + PausedPoolText + "; remove the annotation to resume"
}

// ResumeAdvice returns the advice how to resume a paused pool.
func ResumeAdvice(pool v1alpha1.Pool) string {
	return fmt.Sprintf("remove the annotation %s from %s", clusterv1.PausedAnnotation, cmp.Or(pausingPoolName(pool), "the pool"))
}

// PauseMessageFor returns a message about what pauses a claimant, or "" if nothing does. g is the state of its
// Cluster.
func (cs *Conditions) PauseMessageFor(c *Claimant, g ClusterState) string {
	switch {
	case c.Paused:
		return fmt.Sprintf("%s has the annotation %s; remove it to resume", c.Owner.Kind, clusterv1.PausedAnnotation)
	case g == ClusterPaused:
		return fmt.Sprintf("Cluster %s is paused; resume it to go on", c.Cluster)
	case cs.base.Pool != nil && annotations.HasPaused(cs.base.Pool):
		if source := pausingPoolName(cs.base.Pool); source != "" {
			return fmt.Sprintf("%s is paused with %s; remove the annotation %s of the latter to resume", cs.base.Key, source, clusterv1.PausedAnnotation)
		}
		return fmt.Sprintf("%s is paused; remove its annotation %s to resume", cs.base.Key, clusterv1.PausedAnnotation)
	}
	return ""
}

// RecordPause records what pauses a claimant, and adds a pending condition if its status does not show that yet. The
// caller must hold the lock of the pool.
func (cs *Conditions) RecordPause(c *Claimant, g ClusterState) {
	if g == ClusterUnknown || (cs.base.Pool != nil && !cs.term.Holder) {
		return // the state is unknown, or the holder sets the condition
	}
	if c.PauseMessage = cs.PauseMessageFor(c, g); c.PauseMessage == "" || c.PauseMessage == c.PublishedPauseMessage {
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
	if cs.base.Pool != nil && !cs.term.Holder {
		return
	}
	if refusal := (Refusal{v1alpha1.DeletingReason, why}); c.PublishedRefusal() != refusal {
		cs.setPendingCondition(c, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message})
	}
}

func (cs *Conditions) setPendingCondition(c *Claimant, condition metav1.Condition) {
	if cs.Unpublished == nil {
		cs.Unpublished = map[*Claimant]metav1.Condition{}
	}
	cs.Unpublished[c] = condition
}

// PauseMessageFromConditions returns the message of the condition Paused of a claim, or "" if it is not True.
func PauseMessageFromConditions(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, clusterv1.PausedCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// RemovePausedCondition returns a copy of the conditions without Paused: a pause is over when another condition is
// written.
func RemovePausedCondition(all []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(slices.Clone(all), func(c metav1.Condition) bool { return c.Type == clusterv1.PausedCondition })
}

// HasPublished reports whether the status of a claimant has a refusal and no pause.
func (c *Claimant) HasPublished(refusal Refusal) bool {
	return c.PublishedRefusal() == refusal && c.PublishedPauseMessage == ""
}

// setPausedCondition updates the condition Paused of a pool. A pool that was never paused does not have it.
func setPausedCondition(s *v1alpha1.NetworkPoolStatus, obj v1alpha1.Pool, now time.Time) {
	condition := metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: pausedPoolMessage(obj),
		ObservedGeneration: obj.GetGeneration(), LastTransitionTime: metav1.NewTime(now),
	}
	if !annotations.HasPaused(obj) {
		if meta.FindStatusCondition(s.Conditions, clusterv1.PausedCondition) == nil {
			return
		}
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, clusterv1.NotPausedReason, "the pool is no longer paused"
	}
	meta.SetStatusCondition(&s.Conditions, condition)
}

// TakeUnpublished returns the conditions to write, and records that nothing is left to write.
func (cs *Conditions) TakeUnpublished() map[*Claimant]metav1.Condition {
	out := cs.Unpublished
	cs.Unpublished = nil
	return out
}

// ResetBlockingClusters forgets the Clusters that claimants wait for.
func (cs *Conditions) ResetBlockingClusters() { clear(cs.BlockingClusters) }
