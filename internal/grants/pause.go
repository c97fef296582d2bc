package grants

import (
	"cmp"
	"fmt"
	"slices"
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
