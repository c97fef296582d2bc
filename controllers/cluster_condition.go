package controllers

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// networkReady is the condition that tells of a decision. spec.availabilityGates of a Cluster may name it.
func networkReady(d tenancy.Decision) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.NetworkReadyCondition, Status: metav1.ConditionFalse, Reason: d.Reason, Message: d.Message}
	if d.Action == tenancy.Done {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// conditionOf is what a Cluster says of its network now.
func conditionOf(cluster *clusterv1.Cluster) *metav1.Condition {
	return conditions.Get(cluster, v1alpha1.NetworkReadyCondition)
}

// setCondition writes one condition of a Cluster that was just read, and leaves those of others alone.
func setCondition(ctx context.Context, c client.Client, cluster *clusterv1.Cluster, condition metav1.Condition) error {
	before := cluster.DeepCopy()
	conditions.Set(cluster, condition)
	return c.Status().Patch(ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// dropCondition takes our condition off a Cluster that was just read.
func dropCondition(ctx context.Context, c client.Client, cluster *clusterv1.Cluster) error {
	before := cluster.DeepCopy()
	conditions.Delete(cluster, v1alpha1.NetworkReadyCondition)
	return c.Status().Patch(ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}
