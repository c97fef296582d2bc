package grants

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
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

// The condition Paused is the one of Cluster API. A claim has it while a pause keeps it from getting or releasing an
// address, and while it is paused itself: without it, the manager would seem not to run. A claim that is served, and
// needs nothing from its paused Cluster or pool, does not get the condition, so that a pause causes writes only for
// the claims that it blocks.

// PauseMessageFor returns a message about what pauses a claimant, or "" if nothing does. g is the state of its
// Cluster.
func (m *PoolState) PauseMessageFor(c *Claimant, g ClusterState) string {
	switch {
	case c.Paused:
		return fmt.Sprintf("%s has the annotation %s; remove it to resume", c.Owner.Kind, clusterv1.PausedAnnotation)
	case g == ClusterPaused:
		return fmt.Sprintf("Cluster %s is paused; resume it to go on", c.Cluster)
	case m.BasePool != nil && annotations.HasPaused(m.BasePool):
		if source := pausingPoolName(m.BasePool); source != "" {
			return fmt.Sprintf("%s is paused with %s; remove the annotation %s of the latter to resume", m.Key, source, clusterv1.PausedAnnotation)
		}
		return fmt.Sprintf("%s is paused; remove its annotation %s to resume", m.Key, clusterv1.PausedAnnotation)
	}
	return ""
}

// RecordPause records what pauses a claimant, and adds a pending condition if its status does not show that yet. The
// caller must hold the lock of the pool.
func (m *PoolState) RecordPause(c *Claimant, g ClusterState) {
	if g == ClusterUnknown || (m.BasePool != nil && !m.Holder) {
		return // the state is unknown, or the holder sets the condition
	}
	if c.PauseMessage = m.PauseMessageFor(c, g); c.PauseMessage == "" || c.PauseMessage == c.PublishedPauseMessage {
		return
	}
	m.setPendingCondition(c, metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason, Message: c.PauseMessage,
	})
}

// recordFinalizerHeld adds a pending condition to a deleted claim whose IPAddress is kept by finalizers of other
// controllers. The caller must hold the lock of the pool.
func (m *PoolState) recordFinalizerHeld(c *Claimant) {
	if addr := m.AddressFor(c); addr != nil {
		m.recordDeletionBlocked(c, fmt.Sprintf("its IPAddress is kept by the finalizer %s; ask its owner to remove it", strings.Join(addr.OtherFinalizers, ", ")))
	}
}

// recordOwnedByCluster adds a pending condition to a deleted claim that stays as long as its Cluster. The caller must
// hold the lock of the pool.
func (m *PoolState) recordOwnedByCluster(c *Claimant) {
	m.recordDeletionBlocked(c, fmt.Sprintf("its address is of Cluster %s, which owns the claim: it is released when the Cluster is gone; "+
		"to release it now, take the owner reference off the claim", c.Cluster))
}

// recordDeletionBlocked adds a pending condition with the reason why a deleted claim stays, if its status does not
// show that yet.
func (m *PoolState) recordDeletionBlocked(c *Claimant, why string) {
	if m.BasePool != nil && !m.Holder {
		return
	}
	if refusal := (Refusal{v1alpha1.DeletingReason, why}); c.PublishedRefusal() != refusal {
		m.setPendingCondition(c, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: refusal.Reason, Message: refusal.Message})
	}
}

func (m *PoolState) setPendingCondition(c *Claimant, condition metav1.Condition) {
	if m.PendingConditions == nil {
		m.PendingConditions = map[*Claimant]metav1.Condition{}
	}
	m.PendingConditions[c] = condition
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
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, clusterv1.NotPausedReason, "the pool is not paused any more"
	}
	meta.SetStatusCondition(&s.Conditions, condition)
}
