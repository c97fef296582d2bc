package feed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// gated is an API server that answers when the test says so, and has nothing.
type gated struct {
	client.Reader
	open          chan struct{}
	running, most atomic.Int32
}

func (g *gated) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	if n := g.running.Add(1); n > g.most.Load() {
		g.most.Store(n)
	}
	<-g.open
	g.running.Add(-1)
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// What a list does not have any more is looked up a few at a time, and all of it is.
func TestConfirmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		live := &gated{open: make(chan struct{})}
		var mu sync.Mutex
		gone := 0
		var stubs []*ipamv1.IPAddressClaim
		for i := range n {
			c := &ipamv1.IPAddressClaim{}
			c.Name, c.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint(i))
			stubs = append(stubs, c)
		}
		f := New(&ipamv1.IPAddressClaim{}, &ipamv1.IPAddressClaimList{}, "", nil, nil, live, Memory[*ipamv1.IPAddressClaim]{
			Beyond: func(map[types.UID]struct{}) []*ipamv1.IPAddressClaim { return stubs },
			Forget: func(*ipamv1.IPAddressClaim) (pools.Key, bool) {
				mu.Lock()
				defer mu.Unlock()
				gone++
				return pools.Key{}, false
			},
		})
		f.Begin(t.Context(), nil)
		if err := f.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := live.running.Load(); got != confirmers {
			t.Errorf("%d reads run at once", got)
		}
		close(live.open)
		synctest.Wait()
		if gone != n || live.most.Load() > confirmers {
			t.Errorf("%d of %d are forgotten, %d reads ran at once", gone, n, live.most.Load())
		}
	})
}
