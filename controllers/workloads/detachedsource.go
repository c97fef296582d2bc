package workloads

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// detachedSource is a source of clustercache that continues to read when the controller ends. A worker of clustercache
// sends what it saw on a channel without a buffer: without a reader, the worker would never end, and the manager would
// be killed at the end of its grace period.
type detachedSource struct{ source.Source }

// Start starts the source for the rest of the process. What it adds to a queue that was shut down is dropped.
func (ds detachedSource) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return ds.Source.Start(context.WithoutCancel(ctx), queue)
}
