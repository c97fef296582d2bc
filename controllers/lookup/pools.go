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

// ListPools reads the pools of a ProviderConfig, in the order in which they are tried.
func ListPools(ctx context.Context, from client.Reader, config *v1alpha1.ProviderConfig) ([]tenancy.Pool, error) {
	ns, err := getNamespace(ctx, from, config.Namespace)
	if err != nil {
		return nil, err
	}
	var out []tenancy.Pool
	for _, ref := range tenancy.OrderPoolRefs(config.Network().PoolRefs) {
		pool, err := pools.KeyFromPoolReference(config.Namespace, ref).GetPool(ctx, from)
		switch {
		case apierrors.IsNotFound(err):
			pool = nil
		case err != nil:
			return nil, fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)
		}
		out = append(out, tenancy.NewPool(ref, pool, ns))
	}
	return out, nil
}

// ConfigsNamingPool returns requests for the ProviderConfigs in mode ipam that name a pool.
func ConfigsNamingPool(ctx context.Context, from client.Reader, obj client.Object) []reconcile.Request {
	pool, ok := obj.(v1alpha1.Pool)
	if !ok {
		return nil
	}
	configs, err := listConfigsNaming(ctx, from, pool)
	if err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the ProviderConfigs of a pool: they are reconciled later", "pool", pool.GetName())
	}
	var out []reconcile.Request
	for i := range configs {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&configs[i])})
	}
	return out
}

// MoreRoomPredicate passes pools that may have more room than before: Clusters wait for that.
var MoreRoomPredicate = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(v1alpha1.Pool)
		current, also := e.ObjectNew.(v1alpha1.Pool)
		return ok && also && (current.PoolStatus().LargestFreeBlock > old.PoolStatus().LargestFreeBlock ||
			!equality.Semantic.DeepEqual(readyStatus(old), readyStatus(current)))
	},
}

// readyStatus returns whether a pool grants anything, and why not: the status and the reason of its condition Ready.
func readyStatus(p v1alpha1.Pool) [2]string {
	c := meta.FindStatusCondition(p.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil {
		return [2]string{}
	}
	return [2]string{string(c.Status), c.Reason}
}

// FindMovedBlock returns which block of a Cluster, in a namespace, clusterctl has moved to another management cluster;
// empty if none. It reads from a cache.
func FindMovedBlock(ctx context.Context, from client.Reader, cluster v1alpha1.ClusterReference, namespace string, there func(name string) bool) (string, error) {
	all, err := pools.List(ctx, from, namespace, client.UnsafeDisableDeepCopy)
	if err != nil {
		return "", fmt.Errorf("reading whether blocks of Cluster %s/%s were moved: %w", cluster.Namespace, cluster.Name, err)
	}
	return tenancy.DescribeMovedBlock(cluster, namespace, all, there), nil
}
