// Package ending reads from the metadata of an object how far its deletion is: whether clusterctl is moving it, and
// which finalizers still keep it. The rules are the same for all kinds.
package ending

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// FinalizerPrefix is the prefix of the finalizers of this provider only.
	FinalizerPrefix = "butler.butlerlabs.dev/"
	// MoveGracePeriod is how long an object that clusterctl is deleting is kept: clusterctl removes all finalizers in
	// its next request, which fails if the object is gone by then.
	MoveGracePeriod = 10 * time.Second
)

// IsMoved reports whether clusterctl is deleting an object that it has moved to another cluster. The annotation alone
// proves nothing: clusterctl writes it before the delete and may stop between the two, and a user with write access
// to the object may set it.
func IsMoved(o metav1.Object) bool {
	_, marked := o.GetAnnotations()[v1alpha1.DeleteForMoveAnnotation]
	return marked && o.GetDeletionTimestamp() != nil
}

// IsGarbageCollectorFinalizer reports whether a finalizer is the garbage collector's. It does not mean that the
// object is in use: it waits until the dependents of the object are deleted, or orphaned.
func IsGarbageCollectorFinalizer(finalizer string) bool {
	return finalizer == metav1.FinalizerDeleteDependents || finalizer == metav1.FinalizerOrphanDependents
}

// HasOnlyFinalizers reports whether an object is being deleted and has no finalizers but the given ones and those of
// the garbage collector: all other controllers are done with it. A finalizer that waits for that must not itself be
// what the garbage collector waits for.
func HasOnlyFinalizers(o metav1.Object, finalizers ...string) bool {
	return o.GetDeletionTimestamp() != nil && !slices.ContainsFunc(o.GetFinalizers(), func(f string) bool {
		return !IsGarbageCollectorFinalizer(f) && !slices.Contains(finalizers, f)
	})
}
