package pool

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// TestPoolOptions checks that a panic ends the process, and that after an outage no pool waits for longer than the
// backstop.
func TestPoolOptions(t *testing.T) {
	o := withPoolOptions(controller.TypedOptions[pools.Key]{MaxConcurrentReconciles: 3})
	if o.MaxConcurrentReconciles != 3 || o.RecoverPanic == nil || *o.RecoverPanic {
		t.Errorf("%+v", o)
	}
	key := pools.Key{Kind: "NetworkPool", Namespace: "ns", Name: "pool"}
	for range 40 {
		if d := o.RateLimiter.When(key); d > resyncPeriod {
			t.Fatalf("after an error it sleeps for %v", d)
		}
	}
}
