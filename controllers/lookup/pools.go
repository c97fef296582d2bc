package lookup

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// PoolsOf reads the pools of a ProviderConfig, in the order in which they are asked.
func PoolsOf(ctx context.Context, from client.Reader, config *v1alpha1.ProviderConfig) ([]tenancy.Pool, error) {
	ns, err := namespaceOf(ctx, from, config.Namespace)
	if err != nil {
		return nil, err
	}
	var out []tenancy.Pool
	for _, ref := range tenancy.Order(config.Network().PoolRefs) {
		pool, err := pools.KeyOfPool(config.Namespace, ref).Get(ctx, from)
		switch {
		case apierrors.IsNotFound(err):
			pool = nil
		case err != nil:
			return nil, fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)
		}
		out = append(out, tenancy.PoolOf(ref, pool, ns))
	}
	return out, nil
}

// ConfigsNaming returns the ProviderConfigs in mode ipam that name a pool.
func ConfigsNaming(ctx context.Context, from client.Reader, obj client.Object) []reconcile.Request {
	pool, ok := obj.(v1alpha1.Pool)
	if !ok {
		return nil
	}
	configs, err := naming(ctx, from, pool)
	if err != nil {
		log.FromContext(ctx).Error(err, "The ProviderConfigs of a pool are looked at later", "pool", pool.GetName())
	}
	var out []reconcile.Request
	for i := range configs {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&configs[i])})
	}
	return out
}

// MoreRoom passes pools that may have room that was not there before: Clusters wait for that.
var MoreRoom = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		was, ok := e.ObjectOld.(v1alpha1.Pool)
		is, also := e.ObjectNew.(v1alpha1.Pool)
		return ok && also && (is.PoolStatus().LargestFreeBlock > was.PoolStatus().LargestFreeBlock ||
			!equality.Semantic.DeepEqual(readyOf(was), readyOf(is)))
	},
}

// readyOf is whether a pool grants anything, and why not.
func readyOf(p v1alpha1.Pool) [2]string {
	c := meta.FindStatusCondition(p.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil {
		return [2]string{}
	}
	return [2]string{string(c.Status), c.Reason}
}

// MovedAway says which block of a Cluster, in a namespace, clusterctl has moved to another management cluster; empty: none. It reads
// from a cache.
func MovedAway(ctx context.Context, from client.Reader, cluster v1alpha1.ClusterReference, namespace string, there func(name string) bool) (string, error) {
	all, err := pools.List(ctx, from, namespace, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("reading whether blocks of Cluster %s/%s were moved: %w", cluster.Namespace, cluster.Name, err)
	}
	return tenancy.MovedAway(cluster, namespace, all, there), nil
}
