package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// clusterHandler wakes the pools in which a claim waits for a Cluster to appear or to be unpaused.
func clusterHandler(a *allocator.Allocator) handler.TypedEventHandler[*clusterv1.Cluster, pools.Key] {
	wake := func(c *clusterv1.Cluster, q queue) {
		for _, key := range a.PoolsWaitingFor(client.ObjectKeyFromObject(c)) {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[*clusterv1.Cluster, pools.Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Cluster], q queue) { wake(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Cluster], q queue) { wake(e.ObjectNew, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Cluster], q queue) { wake(e.Object, q) },
	}
}

// namespaceHandler wakes the global pools when labels of a namespace may have changed.
func namespaceHandler(a *allocator.Allocator) handler.TypedEventHandler[*metav1.PartialObjectMetadata, pools.Key] {
	wake := func(q queue) {
		for _, key := range a.GlobalPools() {
			q.Add(key)
		}
	}
	return handler.TypedFuncs[*metav1.PartialObjectMetadata, pools.Key]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*metav1.PartialObjectMetadata], q queue) { wake(q) },
		UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q queue) { wake(q) },
	}
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}
