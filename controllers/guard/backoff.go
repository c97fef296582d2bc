package guard

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// LeastBackoff and MostBackoff bound how long an object waits whose reconcile failed, or met a cache that is behind. The pause
// doubles. What is refused for an hour is not to wait for a quarter of one when it is refused no more, as it would by the
// default of controller-runtime.
const (
	LeastBackoff = 5 * time.Millisecond
	MostBackoff  = time.Minute
)

// Backoff returns the pauses of a controller, whose requests are of a type. Each has its own: they are kept by the requests.
func Backoff[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](LeastBackoff, MostBackoff)
}

// Behind is the result of a reconcile that met what the cache does not show yet. It is no error. The watch wakes the object;
// while it shows nothing, the object is tried again with the growing pauses of Backoff.
func Behind() reconcile.Result {
	return reconcile.Result{Requeue: true} //nolint:staticcheck // a RequeueAfter is as long the hundredth time as the first, and ends the pauses
}
