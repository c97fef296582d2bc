package guard

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// ClusterKind is the kind by which Clusters belong to a shard, whichever controller reconciles them.
const ClusterKind = "Cluster"

// NewShardReconciler leaves to other managers what does not belong to a shard. A reconcile whose only errors are
// delayed writes (pace.WritePacer) has not failed: it is repeated when the first of those may be sent.
func NewShardReconciler(s shard.Shard, kind string, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if !s.Has(kind, req.Namespace, req.Name) {
			return reconcile.Result{}, nil
		}
		result, err := r.Reconcile(ctx, req)
		after, err := pace.SplitDelayed(err)
		if err == nil && after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
			result.RequeueAfter = after
		}
		return result, err
	})
}
