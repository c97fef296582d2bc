package lease

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
)

// api is how the parts of a reconcile reach the API server.
type api struct {
	// Client writes, and reads from a cache. The objects of the cache are not changed. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	schedule *schedule
}

// patchConditions patches the conditions of an object. Where another writer reverts the patch, it is not done yet, and
// that is no error: the other objects of the namespace do not wait for it.
func (a *api) patchConditions(ctx context.Context, next, before client.Object) (done bool, err error) {
	delayed, err := pace.SplitDelayed(a.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(before)))
	a.schedule.requeueWithin(delayed)
	return err == nil && delayed == 0, err
}
