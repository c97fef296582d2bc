package workloads

import (
	"context"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// TestSourceIsDrainedAfterController checks that a sender to the source is not blocked when the controller has ended.
func TestSourceIsDrainedAfterController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := make(chan event.GenericEvent)
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		ctx, end := context.WithCancel(t.Context())
		if err := (detachedSource{source.Channel(events, &handler.EnqueueRequestForObject{})}).Start(ctx, queue); err != nil {
			t.Fatal(err)
		}
		end()
		queue.ShutDown()
		synctest.Wait()
		sent := false
		go func() {
			events <- event.GenericEvent{}
			sent = true
		}()
		synctest.Wait()
		if !sent {
			t.Error("a worker of clustercache would wait for ever")
			<-events
		}
		close(events)
	})
}
