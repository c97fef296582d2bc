package grants

import (
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// copiedMessage is what a pool says that was copied from another management cluster.
const copiedMessage = "the pool was copied here from another management cluster, by clusterctl move or from a backup, and may still give its addresses there; " +
	"when it does so no more, remove the annotation " + v1alpha1.ManagementClusterAnnotation + " from it to use it here"

// isCopied reports whether another management cluster may serve the pool still. clusterctl copies a pool that is in no
// namespace along with whatever namespace it moves, and leaves the original: then both would give the same addresses.
func (m *Memory) isCopied() bool { return m.Base.GetNamespace() == "" && m.CameFromElsewhere() }

// CameFromElsewhere reports whether the pool says that another management cluster serves it.
func (m *Memory) CameFromElsewhere() bool {
	home := m.Base.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]
	return home != "" && m.ManagementCluster != "" && home != m.ManagementCluster
}

// IsUnmarked reports whether Mark has something to note on a pool.
func (m *Memory) IsUnmarked(pool v1alpha1.Pool) bool {
	return m.ManagementCluster != "" && pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] == ""
}

// Mark notes on a pool which management cluster serves it, where it says nothing of that. It reports whether there was
// something to note.
func (m *Memory) Mark(pool v1alpha1.Pool) bool {
	return m.IsUnmarked(pool) && annotations.AddAnnotations(pool, map[string]string{v1alpha1.ManagementClusterAnnotation: m.ManagementCluster})
}
