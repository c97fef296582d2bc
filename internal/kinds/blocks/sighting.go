package blocks

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// sightingIn reads what the conditions of an IPAllocation say of its Cluster. They are the record: they outlive
// the manager, and neither a move nor a restore takes them along, so what arrives before its Cluster waits for it.
func sightingIn(conditions []metav1.Condition) grants.Sighting {
	switch c := meta.FindStatusCondition(conditions, v1alpha1.ClusterSeenCondition); {
	case c == nil:
		return grants.Unlooked
	case c.Status == metav1.ConditionTrue:
		return grants.Seen
	}
	return grants.Unseen
}

// clusterSeen is the condition that says whether the Cluster was seen; nil where there is nothing to say.
func clusterSeen(cluster types.NamespacedName, says grants.Sighting) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ClusterSeenCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.SeenReason}
	switch says {
	case grants.Unlooked:
		return nil
	case grants.Unseen:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.NotSeenReason
		c.Message = fmt.Sprintf("%s; the addresses are kept for it", doesNotExistYet(cluster))
	case grants.Seen:
		c.Message = fmt.Sprintf("Cluster %s was seen; this allocation is deleted when that Cluster is gone", cluster)
	}
	return c
}

// doesNotExistYet says that a Cluster was not made yet.
func doesNotExistYet(cluster types.NamespacedName) string {
	return fmt.Sprintf("Cluster %s does not exist yet", cluster)
}
