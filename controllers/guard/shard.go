package guard

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// ClusterKind is the kind by which Clusters are of a shard, whichever controller looks at them.
const ClusterKind = "Cluster"

// OfShard leaves to other managers what is not of a shard.
func OfShard(s shard.Shard, kind string, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if !s.Has(kind, req.Namespace, req.Name) {
			return reconcile.Result{}, nil
		}
		return r.Reconcile(ctx, req)
	})
}
