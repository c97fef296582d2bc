package incluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// MirrorAnnotation of a pool has the UID of its mirror. It outlives a mirror that clusterctl deletes.
	MirrorAnnotation = "butler.butlerlabs.dev/in-cluster-mirror"
	// MovedFromAnnotation of a mirror names the management cluster in which the previous mirror was deleted by force,
	// as clusterctl does on the source of a move: the knowledge of addresses in use elsewhere, which that mirror had,
	// is lost there.
	MovedFromAnnotation = "butler.butlerlabs.dev/in-cluster-moved-from"
)

// InitMirrorOrigin copies the record of the origin of a pool to a mirror that is about to be created. home is the UID
// of the management cluster, empty where the manager does not know it. clusterctl moves pools and mirrors one by one,
// and either may exist without the other for a long time.
func InitMirrorOrigin(mirror, pool metav1.Object, home string) {
	from := pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]
	if home == "" || from == "" {
		return
	}
	for _, key := range []string{v1alpha1.ManagementClusterAnnotation, v1alpha1.ClustersAnnotation} {
		value, ok := pool.GetAnnotations()[key]
		SetOrRemoveAnnotation(mirror, key, value, ok)
	}
	SetOrRemoveAnnotation(mirror, MovedFromAnnotation, home, from == home && pool.GetAnnotations()[MirrorAnnotation] != "")
}

// RecordMirror copies the annotations of a mirror that is served here to its source pool, and records the UID of the
// mirror there. It removes that UID once the mirror is being deleted other than by clusterctl.
func RecordMirror(pool, mirror metav1.Object, home string) {
	annotations := mirror.GetAnnotations()
	if home == "" || annotations[v1alpha1.ManagementClusterAnnotation] != home {
		return
	}
	SetOrRemoveAnnotation(pool, v1alpha1.ManagementClusterAnnotation, home, true)
	if names, ok := annotations[v1alpha1.ClustersAnnotation]; ok {
		SetOrRemoveAnnotation(pool, v1alpha1.ClustersAnnotation, names, true)
	}
	_, moves := annotations[v1alpha1.DeleteForMoveAnnotation]
	SetOrRemoveAnnotation(pool, MirrorAnnotation, string(mirror.GetUID()), mirror.GetDeletionTimestamp() == nil || moves)
}

// RemoveMirrorRecord removes the annotations that RecordMirror sets.
func RemoveMirrorRecord(pool metav1.Object) {
	for _, key := range []string{v1alpha1.ManagementClusterAnnotation, v1alpha1.ClustersAnnotation, MirrorAnnotation} {
		SetOrRemoveAnnotation(pool, key, "", false)
	}
}

// HasMirrorRecord reports whether RemoveMirrorRecord would remove an annotation.
func HasMirrorRecord(pool metav1.Object) bool {
	return pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] != "" || pool.GetAnnotations()[MirrorAnnotation] != ""
}
