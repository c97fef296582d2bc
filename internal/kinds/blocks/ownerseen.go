package blocks

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// ownerSeenConditionType returns the type of the condition that shows whether the owner of an IPAllocation was seen.
func ownerSeenConditionType(c *grants.Claimant) string {
	if c.ChildPool != nil {
		return v1alpha1.PoolSeenCondition
	}
	return v1alpha1.ClusterSeenCondition
}

// ownerDescription names the owner of an IPAllocation for messages.
func ownerDescription(c *grants.Claimant) string {
	if c.ChildPool != nil {
		return c.ChildPool.String()
	}
	return "Cluster " + c.Cluster.String()
}

// ownerSeenFromConditions returns the state of the owner that the conditions of an IPAllocation show. The conditions
// are the record of it: they outlive the manager, and neither a move nor a restore copies them, so an IPAllocation
// that arrives before its Cluster or its carved pool waits for it.
func ownerSeenFromConditions(condition string, conditions []metav1.Condition) grants.OwnerSeen {
	switch c := meta.FindStatusCondition(conditions, condition); {
	case c == nil:
		return grants.OwnerUnknown
	case c.Status == metav1.ConditionTrue:
		return grants.OwnerSeenAlive
	case c.Status == metav1.ConditionUnknown:
		return grants.OwnerSeenPaused
	}
	return grants.OwnerNeverSeen
}

// OwnerSeenCondition returns the condition that shows whether the owner of an IPAllocation was seen, or nil if there
// is nothing to show.
func (allocationKind) OwnerSeenCondition(c *grants.Claimant, seen grants.OwnerSeen) *metav1.Condition {
	return ownerSeenCondition(c, seen)
}

// ownerSeenCondition implements OwnerSeenCondition.
func ownerSeenCondition(a *grants.Claimant, seen grants.OwnerSeen) *metav1.Condition {
	c := &metav1.Condition{Type: ownerSeenConditionType(a), Status: metav1.ConditionTrue, Reason: v1alpha1.SeenReason}
	switch seen {
	case grants.OwnerUnknown:
		return nil
	case grants.OwnerNeverSeen:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.NotSeenReason
		c.Message = ownerNotFoundMessage(a) + "; the addresses are kept for it"
	case grants.OwnerSeenAlive:
		that := "Cluster"
		if a.ChildPool != nil {
			that = "pool"
		}
		c.Message = fmt.Sprintf("%s was seen; this allocation is deleted when that %s is gone", ownerDescription(a), that)
	case grants.OwnerSeenPaused, grants.OwnerLeftPaused:
		paused, when := ownerDescription(a), "it"
		if a.ChildPool != nil {
			paused, when = "a Cluster of namespace "+a.ChildPool.Namespace, ownerDescription(a)
		}
		c.Status, c.Reason = metav1.ConditionUnknown, clusterv1.PausedReason
		c.Message = fmt.Sprintf("%s was paused when %s was last seen, as clusterctl pauses what it moves: this allocation stays, also when that is gone; "+
			"delete it then, if no other management cluster uses its addresses", paused, when)
	}
	return c
}

// ownerNotFoundMessage returns the message that the owner of an IPAllocation does not exist yet.
func ownerNotFoundMessage(c *grants.Claimant) string {
	return ownerDescription(c) + " does not exist yet"
}
