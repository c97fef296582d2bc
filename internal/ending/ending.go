// Package ending reads what the metadata of an object says of its end: whether clusterctl moves it away, and who holds it
// still. There is one rule for each, whatever kind the object is of.
package ending

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

const (
	// Ours begins those finalizers that no other provider has.
	Ours = "butler.butlerlabs.dev/"
	// Patience is how long an object stays that clusterctl is deleting: it takes all finalizers off in its next request, which
	// fails where the object is gone by then.
	Patience = 10 * time.Second
)

// IsMoved reports whether clusterctl is deleting an object that it has moved to another cluster. The annotation alone
// says nothing: clusterctl writes it before the delete and may end between the two, and a user who writes the object
// may write it.
func IsMoved(o metav1.Object) bool {
	_, marked := o.GetAnnotations()[v1alpha1.DeleteForMoveAnnotation]
	return marked && o.GetDeletionTimestamp() != nil
}

// IsCollectors reports whether a finalizer is the garbage collector's. It says nothing of a use: it waits for what the
// object owns to end, or to be disowned.
func IsCollectors(finalizer string) bool {
	return finalizer == metav1.FinalizerDeleteDependents || finalizer == metav1.FinalizerOrphanDependents
}

// IsLeft reports whether an object is being deleted, and nothing holds it but some finalizers of ours and the garbage
// collector: each other that had a part in it is done. Who waits for that to be gone must not be what the collector
// waits for.
func IsLeft(o metav1.Object, ours ...string) bool {
	return o.GetDeletionTimestamp() != nil && !slices.ContainsFunc(o.GetFinalizers(), func(f string) bool {
		return !IsCollectors(f) && !slices.Contains(ours, f)
	})
}
