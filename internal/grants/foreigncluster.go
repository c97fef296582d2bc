package grants

import (
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// copiedPoolMessage is the message of a pool that was copied from another management cluster.
const copiedPoolMessage = "the pool was copied here from another management cluster, by clusterctl move or from a backup, and may still give its addresses there; " +
	"when it does so no more, remove the annotation " + v1alpha1.ManagementClusterAnnotation + " from it to use it here"

// isCopiedPool reports whether another management cluster may still serve the pool. clusterctl copies a
// cluster-scoped pool along with any namespace that it moves, and leaves the original, so that both clusters would
// grant the same addresses.
func (q *Quarantine) isCopiedPool() bool {
	return q.base.Pool.GetNamespace() == "" && q.HasOtherManagementCluster()
}

// HasOtherManagementCluster reports whether the annotation of the pool names another management cluster than this
// one.
func (q *Quarantine) HasOtherManagementCluster() bool {
	home := q.base.Pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]
	return home != "" && q.ManagementCluster != "" && home != q.ManagementCluster
}

// NeedsManagementClusterMark reports whether MarkManagementCluster would change a pool.
func (q *Quarantine) NeedsManagementClusterMark(pool v1alpha1.Pool) bool {
	return q.ManagementCluster != "" && pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] == ""
}

// MarkManagementCluster records this management cluster in the annotation of a pool that names none. It reports
// whether it changed the pool.
func (q *Quarantine) MarkManagementCluster(pool v1alpha1.Pool) bool {
	return q.NeedsManagementClusterMark(pool) && annotations.AddAnnotations(pool, map[string]string{v1alpha1.ManagementClusterAnnotation: q.ManagementCluster})
}
