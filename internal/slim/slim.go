// Package slim keeps the manager's caches small: what nobody reads is dropped before it is stored.
package slim

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ByObject are cache settings for the kinds of which there are many.
func ByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&clusterv1.Cluster{}: {Transform: Cluster},
	}
}

// Cluster keeps what pauses a Cluster (W18).
func Cluster(obj any) (any, error) {
	c, ok := obj.(*clusterv1.Cluster)
	if !ok {
		return obj, nil
	}
	out := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: c.Spec.Paused}}
	out.TypeMeta = c.TypeMeta
	out.Name, out.Namespace, out.UID, out.ResourceVersion = c.Name, c.Namespace, c.UID, c.ResourceVersion
	if v, ok := c.Annotations[clusterv1.PausedAnnotation]; ok {
		out.Annotations = map[string]string{clusterv1.PausedAnnotation: v}
	}
	return out, nil
}
