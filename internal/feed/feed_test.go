package feed

import (
	"context"
	"fmt"
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

// blockingAPI is an API server without objects that answers when the test lets it.
type blockingAPI struct {
	client.Reader
	released            chan struct{}
	running, maxRunning atomic.Int32
}

func (g *blockingAPI) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	if n := g.running.Add(1); n > g.maxRunning.Load() {
		g.maxRunning.Store(n)
	}
	<-g.released
	g.running.Add(-1)
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// missingObjects is a store of objects that do not exist any more, and counts those that it is to forget.
type missingObjects struct {
	objects   []client.Object
	forgotten atomic.Int32
}

func (*missingObjects) ObserveObject(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (m *missingObjects) ForgetObject(client.Object) (pools.Key, bool) {
	m.forgotten.Add(1)
	return pools.Key{}, false
}

func (m *missingObjects) ObjectsNotListed(client.Object, map[types.UID]struct{}) []client.Object {
	return m.objects
}

// TestConfirmIsBounded checks that what a list does not contain any more is read a few objects at a time, and
// completely.
func TestConfirmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		live := &blockingAPI{released: make(chan struct{})}
		memory := &missingObjects{}
		for i := range n {
			c := &ipamv1.IPAddressClaim{}
			c.Name, c.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint(i))
			memory.objects = append(memory.objects, c)
		}
		f := New[pools.Key](&ipamv1.IPAddressClaim{}, "", nil, live, memory)
		f.Initialize(t.Context(), nil)
		if err := f.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := live.running.Load(); got != maxConcurrentConfirms {
			t.Errorf("%d reads run at once", got)
		}
		close(live.released)
		synctest.Wait()
		if gone := memory.forgotten.Load(); gone != n || live.maxRunning.Load() > maxConcurrentConfirms {
			t.Errorf("%d of %d are forgotten, %d reads ran at once", gone, n, live.maxRunning.Load())
		}
	})
}

// TestRefusalError checks that a refusal of the API server is reported as long as it lasts, and once for each reason,
// and that a missing answer is no refusal.
func TestRefusalError(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	calls := 0
	f := New[pools.Key](&ipamv1.IPAddressClaim{}, "", nil, nil, &missingObjects{})
	f.OnRefusal = func() { calls++ }
	f.Initialize(t.Context(), nil)
	for i, step := range []struct {
		err     error
		watched bool
		refused bool
		calls   int
	}{
		{err: forbidden, refused: true, calls: 1},
		{err: forbidden, refused: true, calls: 1},
		{err: fmt.Errorf("no answer"), refused: true, calls: 1},
		{calls: 2}, // it may list
		{err: fmt.Errorf("no answer"), calls: 2},
		{err: forbidden, watched: true, refused: true, calls: 3},
		{refused: true, calls: 3}, // it may list, as before
		{watched: true, calls: 4},
	} {
		f.recordRefusal(step.err, step.watched)
		if got := f.RefusalError() != nil; got != step.refused || calls != step.calls {
			t.Errorf("step %d: refused: %v, said %d times", i, got, calls)
		}
		if i == 3 {
			if err := f.Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}
