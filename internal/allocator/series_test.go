package allocator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// poollessAPI is an API server without a pool.
type poollessAPI struct{ *instantAPI }

func (poollessAPI) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// TestMissingPoolsLeaveNothing checks that neither memory nor series of a metric are left of a pool that does
// not exist when its last claim is gone. Claims can name any pool: otherwise the manager would grow with each name that
// a user invents.
func TestMissingPoolsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		api := poollessAPI{&instantAPI{}}
		a := New(Options{Client: api, Live: api, Recorder: noopRecorder{}, ManagerID: "us"})
		a.Start(ctx, func(pools.Key) {})
		before := testutil.CollectAndCount(metrics.ClaimRefusals)
		turn := func(key pools.Key) {
			t.Helper()
			if _, err := a.Reconcile(ctx, key, nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		counted := 0
		for i := range 50 {
			c := grantstest.NewClaim(fmt.Sprint("c-", i), 0)
			c.Spec.PoolRef.Name, c.ResourceVersion = fmt.Sprint("no-such-", i), api.next()
			api.claims.Store(client.ObjectKeyFromObject(c), c)
			key, _ := a.ObserveObject(c)
			turn(key)
			counted += testutil.CollectAndCount(metrics.ClaimRefusals) - before
			a.ForgetObject(c)
			turn(key)
		}
		if left := testutil.CollectAndCount(metrics.ClaimRefusals) - before; counted != 50 || left != 0 || len(a.pools.byKey) > 0 {
			t.Errorf("%d claims got a refusal; %d series are left of claims that are gone, and %d pools", counted, left, len(a.pools.byKey))
		}
	})
}
