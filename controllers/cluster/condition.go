package cluster

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// networkReadyCondition returns the condition for a decision. spec.availabilityGates of a Cluster may name it.
func networkReadyCondition(d tenancy.Decision) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.NetworkReadyCondition, Status: metav1.ConditionFalse, Reason: d.Reason, Message: text.SanitizeMessage(d.Message)}
	if d.Action == tenancy.ActionDone {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// currentCondition returns the condition NetworkReady of a Cluster.
func currentCondition(cluster *clusterv1.Cluster) *metav1.Condition {
	return conditions.Get(cluster, v1alpha1.NetworkReadyCondition)
}

// patchConditions reads a Cluster live, changes its conditions with change, and patches them; conditions of others are
// left alone.
func (r *Reconciler) patchConditions(ctx context.Context, cluster *clusterv1.Cluster, change func(*clusterv1.Cluster)) error {
	live := &clusterv1.Cluster{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(cluster), live); err != nil {
		return err
	}
	before := live.DeepCopy()
	change(live)
	return r.Client.Status().Patch(ctx, live, guard.NewOptimisticPatch(before))
}

// reportDecision sets the condition NetworkReady of a Cluster, and records an event if its reason is new.
func (r *Reconciler) reportDecision(ctx context.Context, cluster *clusterv1.Cluster, d tenancy.Decision) (reconcile.Result, error) {
	after := guard.WaitingResyncPeriod
	if d.Action == tenancy.ActionDone {
		after = guard.ServedResyncPeriod
	}
	next := networkReadyCondition(d)
	old := currentCondition(cluster)
	if old != nil && old.Status == next.Status && old.Reason == next.Reason && old.Message == next.Message {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	if err := r.patchConditions(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Set(c, next) }); err != nil {
		return guard.RequeueOnConflict(client.IgnoreNotFound(err), "writing the condition NetworkReady")
	}
	if next.Reason != v1alpha1.ReconcilingReason && (old == nil || old.Reason != next.Reason) {
		kind := corev1.EventTypeNormal
		if next.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(cluster, nil, kind, "Network"+strings.TrimPrefix(next.Reason, "Network"), "Allocate", "%s", next.Message)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}
