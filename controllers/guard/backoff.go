package guard

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// MinBackoff and MaxBackoff bound how long an object waits whose reconcile failed, or met a cache that is behind. The
// delay doubles. What was refused for an hour must not wait for a quarter of an hour once it is refused no more, as it
// would by the default of controller-runtime.
const (
	MinBackoff = 5 * time.Millisecond
	MaxBackoff = time.Minute
)

// NewRateLimiter returns the rate limiter of a controller with requests of type T. Each controller has its own, as it
// keeps the delays by request.
func NewRateLimiter[T comparable]() workqueue.TypedRateLimiter[T] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[T](MinBackoff, MaxBackoff)
}

// RequeueWithBackoff returns the result of a reconcile that met what the cache does not show yet. It is no error. The
// watch enqueues the object; until then the object is tried again with the growing delays of NewRateLimiter.
func RequeueWithBackoff() reconcile.Result {
	return reconcile.Result{Requeue: true} //nolint:staticcheck // a RequeueAfter is as long the hundredth time as the first, and ends the pauses
}
