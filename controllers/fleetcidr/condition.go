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
	// reportEvery bounds how often what is known of a Cluster is gathered, showEvery how often a message of its condition is
	// written of which only the numbers have changed.
	reportEvery = time.Second
	showEvery   = 10 * time.Second
)

// conditionOf says whether the Nodes of a Cluster have their pod CIDRs. selected: a ClusterCIDR is for the Cluster.
func conditionOf(found nodeipam.Report, selected bool) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionFalse}
	switch {
	case found.Stopped != nil:
		out.Status, out.Reason, out.Message = found.Stopped.Status, found.Stopped.Reason, found.Stopped.Message
	case !selected:
		out.Reason, out.Message = v1alpha1.NoMatchReason, "no ClusterCIDR selects this Cluster: add one, or change the labels of the Cluster"
	case len(found.Contested) > 0:
		out.Reason = v1alpha1.ConflictReason
		out.Message = "Nodes use addresses of blocks that the pool does not give back; find out who has them: " + strings.Join(found.Contested, "; ")
	case found.Conflicts > 0:
		out.Reason = v1alpha1.ConflictReason
		out.Message = fmt.Sprintf("the pod CIDRs of %s overlap those of others: their events say which", text.Count(found.Conflicts, "Node", "Nodes"))
	case found.RefusedNodes > 0 && len(found.Full) > 0:
		out.Reason = v1alpha1.ExhaustedReason
		out.Message = fmt.Sprintf("%s: all ClusterCIDRs that match are full: %s", waiting(found), strings.Join(found.Full, ", "))
	case found.RefusedNodes > 0:
		out.Reason = v1alpha1.NoMatchReason
		out.Message = waiting(found) + ": no ClusterCIDR selects them"
	default:
		out.Status, out.Reason = metav1.ConditionTrue, v1alpha1.ReadyReason
	}
	return out
}

// waiting says how many Nodes wait, and names some.
func waiting(found nodeipam.Report) string {
	more := ""
	if found.RefusedNodes > len(found.Refused) {
		more = ", …"
	}
	return fmt.Sprintf("%d of %d Nodes wait for a pod CIDR: %s%s", found.RefusedNodes, found.Nodes, strings.Join(found.Refused, ", "), more)
}

// refusedCondition says that the API server of a Cluster answers, and refuses.
func refusedCondition(why error) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.NodesRefusedReason, Message: why.Error()}
}

func unreachableCondition(why string) metav1.Condition {
	out := metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason, Message: why}
	if why == "" {
		out.Message = "the API server of the Cluster does not answer: what its Nodes have stays theirs, and new ones wait"
	}
	return out
}

// show writes the condition of a Cluster where it is another one. It returns when that is due.
func (r *Reconciler) show(ctx context.Context, cluster *clusterv1.Cluster, s *site, is metav1.Condition) (time.Duration, error) {
	is.Message = text.Message(is.Message)
	was := conditions.Get(cluster, is.Type)
	same := was != nil && was.Status == is.Status && was.Reason == is.Reason
	if same && was.Message == is.Message {
		return 0, nil
	}
	if s != nil {
		if since := r.Now().Sub(s.shown); same && since < showEvery {
			return showEvery - since, nil
		}
		s.shown = r.Now()
	}
	return 0, r.change(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Set(c, is) })
}

// withdraw takes the condition off a Cluster that wants nothing of us any more.
func (r *Reconciler) withdraw(ctx context.Context, cluster *clusterv1.Cluster) error {
	if conditions.Get(cluster, v1alpha1.PodCIDRsReadyCondition) == nil {
		return nil
	}
	return r.change(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Delete(c, v1alpha1.PodCIDRsReadyCondition) })
}

// change reads a Cluster live, as the cache has not all of its conditions, and changes them.
func (r *Reconciler) change(ctx context.Context, cluster *clusterv1.Cluster, how func(*clusterv1.Cluster)) error {
	live := &clusterv1.Cluster{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(cluster), live)
	if err == nil {
		before := live.DeepCopy()
		how(live)
		err = r.Client.Status().Patch(ctx, live, guard.SinceRead(before))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the condition %s of Cluster %s: %w", v1alpha1.PodCIDRsReadyCondition, client.ObjectKeyFromObject(cluster), err)
	}
	return nil
}
