package incluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// MirrorAnnotation of a pool has the UID of its mirror. It outlives a mirror that clusterctl takes away.
	MirrorAnnotation = "butler.butlerlabs.dev/in-cluster-mirror"
	// MovedFromAnnotation of a mirror names the management cluster in which the one before it was taken away by force, as
	// clusterctl does on the source of a move: what that knew of addresses that are in use elsewhere is lost there.
	MovedFromAnnotation = "butler.butlerlabs.dev/in-cluster-moved-from"
)

// Begin has a mirror that is about to be made say where its pool comes from. home is the management cluster, empty: no
// manager knows. clusterctl moves pools and mirrors one by one, and either may be there without the other for long.
func Begin(mirror, pool metav1.Object, home string) {
	from := pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation]
	if home == "" || from == "" {
		return
	}
	for _, key := range []string{v1alpha1.ManagementClusterAnnotation, v1alpha1.ClustersAnnotation} {
		value, has := pool.GetAnnotations()[key]
		Annotate(mirror, key, value, has)
	}
	Annotate(mirror, MovedFromAnnotation, home, from == home && pool.GetAnnotations()[MirrorAnnotation] != "")
}

// Note has a pool say what its mirror says, where that is served here, and which one that is: none, once it is deleted
// other than by clusterctl.
func Note(pool, mirror metav1.Object, home string) {
	says := mirror.GetAnnotations()
	if home == "" || says[v1alpha1.ManagementClusterAnnotation] != home {
		return
	}
	Annotate(pool, v1alpha1.ManagementClusterAnnotation, home, true)
	if names, has := says[v1alpha1.ClustersAnnotation]; has {
		Annotate(pool, v1alpha1.ClustersAnnotation, names, true)
	}
	_, moves := says[v1alpha1.DeleteForMoveAnnotation]
	Annotate(pool, MirrorAnnotation, string(mirror.GetUID()), mirror.GetDeletionTimestamp() == nil || moves)
}

// Forget takes off a pool what Note has it say.
func Forget(pool metav1.Object) {
	for _, key := range []string{v1alpha1.ManagementClusterAnnotation, v1alpha1.ClustersAnnotation, MirrorAnnotation} {
		Annotate(pool, key, "", false)
	}
}

// Noted reports whether Forget has something to take off a pool.
func Noted(pool metav1.Object) bool {
	return pool.GetAnnotations()[v1alpha1.ManagementClusterAnnotation] != "" || pool.GetAnnotations()[MirrorAnnotation] != ""
}
