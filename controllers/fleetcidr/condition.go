package fleetcidr

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

const (
	// reportInterval bounds how often a report on a Cluster is built, conditionInterval how often the message of its
	// condition is written when only numbers have changed.
	reportInterval    = time.Second
	conditionInterval = 10 * time.Second
	// maxNamedRanges is how many ClusterCIDRs the condition of a Cluster names; the others are counted.
	maxNamedRanges = 5
)

// conditionFromReport returns the condition with whether the Nodes of a Cluster have their pod CIDRs. selected reports
// whether a ClusterCIDR is for the Cluster.
func conditionFromReport(found nodeipam.Report, selected bool) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionFalse}
	switch {
	case found.StoppedCondition != nil:
		out.Status, out.Reason, out.Message = found.StoppedCondition.Status, found.StoppedCondition.Reason, found.StoppedCondition.Message
	case !selected:
		out.Reason, out.Message = v1alpha1.NoMatchReason, "no ClusterCIDR selects this Cluster: add one, or change the labels of the Cluster"
	case len(found.ConflictingBlocks) > 0:
		out.Reason = v1alpha1.ConflictReason
		out.Message = "Nodes use addresses of blocks that the pool does not grant again; find out who has them: " + strings.Join(found.ConflictingBlocks, "; ")
	case found.ConflictingNodes > 0:
		out.Reason = v1alpha1.ConflictReason
		out.Message = fmt.Sprintf("the pod CIDRs of %s overlap those of others: their events say which", text.FormatCount(found.ConflictingNodes, "Node", "Nodes"))
	case found.RefusedCount > 0 && len(found.FullRanges) > 0:
		out.Reason = v1alpha1.ExhaustedReason
		out.Message = fmt.Sprintf("%s: all ClusterCIDRs that match are full: %s", formatWaitingNodes(found), text.JoinNames(found.FullRanges, maxNamedRanges))
	case found.RefusedCount > 0:
		out.Reason = v1alpha1.NoMatchReason
		out.Message = formatWaitingNodes(found) + ": no ClusterCIDR selects them"
	default:
		out.Status, out.Reason = metav1.ConditionTrue, v1alpha1.ReadyReason
	}
	return out
}

// formatWaitingNodes returns how many Nodes wait, with the names of some.
func formatWaitingNodes(found nodeipam.Report) string {
	more := ""
	if found.RefusedCount > len(found.RefusedNames) {
		more = ", …"
	}
	return fmt.Sprintf("%d of %d Nodes wait for a pod CIDR: %s%s", found.RefusedCount, found.NodeCount, strings.Join(found.RefusedNames, ", "), more)
}

// newRefusedCondition returns the condition that the API server of a Cluster answers, and refuses requests.
func newRefusedCondition(why error) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NodesRefusedReason, Message: why.Error()}
}

func newUnreachableCondition(why string) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason, Message: why}
	if why == "" {
		out.Message = "the API server of the Cluster does not answer: what its Nodes have stays theirs, and new ones wait"
	}
	return out
}

// setCondition writes the condition of a Cluster if it has changed. If it is too early, setCondition returns how long
// until the write is due.
func (r *Reconciler) setCondition(ctx context.Context, cluster *clusterv1.Cluster, s *connectedCluster, condition metav1.Condition) (time.Duration, error) {
	condition.Message = text.SanitizeMessage(condition.Message)
	old := conditions.Get(cluster, condition.Type)
	same := old != nil && old.Status == condition.Status && old.Reason == condition.Reason
	if same && old.Message == condition.Message {
		return 0, nil
	}
	if s != nil {
		if since := r.Now().Sub(s.conditionWrittenAt); same && since < conditionInterval {
			return conditionInterval - since, nil
		}
		s.conditionWrittenAt = r.Now()
	}
	return 0, r.patchConditions(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Set(c, condition) })
}

// removeCondition removes the condition from a Cluster that is no longer served.
func (r *Reconciler) removeCondition(ctx context.Context, cluster *clusterv1.Cluster) error {
	if conditions.Get(cluster, v1alpha1.PodCIDRsReadyCondition) == nil {
		return nil
	}
	return r.patchConditions(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Delete(c, v1alpha1.PodCIDRsReadyCondition) })
}

// patchConditions reads a Cluster live, as the cache does not have all of its conditions, and changes them.
func (r *Reconciler) patchConditions(ctx context.Context, cluster *clusterv1.Cluster, how func(*clusterv1.Cluster)) error {
	live := &clusterv1.Cluster{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(cluster), live)
	if err == nil {
		before := live.DeepCopy()
		how(live)
		err = r.Client.Status().Patch(ctx, live, guard.NewOptimisticPatch(before))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the condition %s of Cluster %s: %w", v1alpha1.PodCIDRsReadyCondition, client.ObjectKeyFromObject(cluster), err)
	}
	return nil
}
