package blocks

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// seenCondition is the type of the condition that says whether that was seen which an IPAllocation is for.
func seenCondition(c *grants.Claimant) string {
	if c.Child != nil {
		return v1alpha1.PoolSeenCondition
	}
	return v1alpha1.ClusterSeenCondition
}

// isFor names what an IPAllocation is for.
func isFor(c *grants.Claimant) string {
	if c.Child != nil {
		return c.Child.String()
	}
	return "Cluster " + c.Cluster.String()
}

// sightingIn reads what the conditions of an IPAllocation say of what it is for. They are the record: they outlive the
// manager, and neither a move nor a restore takes them along, so what arrives before its Cluster, or its pool, waits for
// it.
func sightingIn(condition string, conditions []metav1.Condition) grants.Sighting {
	switch c := meta.FindStatusCondition(conditions, condition); {
	case c == nil:
		return grants.Unlooked
	case c.Status == metav1.ConditionTrue:
		return grants.Seen
	case c.Status == metav1.ConditionUnknown:
		return grants.Paused
	}
	return grants.Unseen
}

// Sighted is the condition that says whether that was seen which an IPAllocation is for; nil where there is nothing to say.
func (kind) Sighted(c *grants.Claimant, says grants.Sighting) *metav1.Condition { return seen(c, says) }

// seen is what Sighted returns.
func seen(a *grants.Claimant, says grants.Sighting) *metav1.Condition {
	c := &metav1.Condition{Type: seenCondition(a), Status: metav1.ConditionTrue, Reason: v1alpha1.SeenReason}
	switch says {
	case grants.Unlooked:
		return nil
	case grants.Unseen:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.NotSeenReason
		c.Message = doesNotExistYet(a) + "; the addresses are kept for it"
	case grants.Seen:
		that := "Cluster"
		if a.Child != nil {
			that = "pool"
		}
		c.Message = fmt.Sprintf("%s was seen; this allocation is deleted when that %s is gone", isFor(a), that)
	case grants.Paused, grants.Left:
		paused, when := isFor(a), "it"
		if a.Child != nil {
			paused, when = "a Cluster of namespace "+a.Child.Namespace, isFor(a)
		}
		c.Status, c.Reason = metav1.ConditionUnknown, clusterv1.PausedReason
		c.Message = fmt.Sprintf("%s was paused when %s was last seen, as clusterctl pauses what it moves: this allocation stays, also when that is gone; "+
			"delete it then, if no other management cluster uses its addresses", paused, when)
	}
	return c
}

// doesNotExistYet says that what an IPAllocation is for was not made yet.
func doesNotExistYet(c *grants.Claimant) string { return isFor(c) + " does not exist yet" }
