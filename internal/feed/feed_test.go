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

// remembered is a memory of objects that do not exist any more, and counts those that it is told of.
type remembered struct {
	objects []client.Object
	gone    atomic.Int32
}

func (*remembered) Observe(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (m *remembered) Forget(client.Object) (pools.Key, bool) {
	m.gone.Add(1)
	return pools.Key{}, false
}

func (m *remembered) Beyond(client.Object, map[types.UID]struct{}) []client.Object { return m.objects }

// What a list does not have any more is looked up a few at a time, and all of it is.
func TestConfirmIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		live := &gated{open: make(chan struct{})}
		memory := &remembered{}
		for i := range n {
			c := &ipamv1.IPAddressClaim{}
			c.Name, c.UID = fmt.Sprint("c", i), types.UID(fmt.Sprint(i))
			memory.objects = append(memory.objects, c)
		}
		f := New[pools.Key](&ipamv1.IPAddressClaim{}, "", nil, live, memory)
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
		if gone := memory.gone.Load(); gone != n || live.most.Load() > confirmers {
			t.Errorf("%d of %d are forgotten, %d reads ran at once", gone, n, live.most.Load())
		}
	})
}

// What the API server refuses is said as long as it does, and once for each reason; that it does not answer is no refusal.
func TestRefused(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
	calls := 0
	f := New[pools.Key](&ipamv1.IPAddressClaim{}, "", nil, nil, &remembered{})
	f.OnRefusal = func() { calls++ }
	f.Begin(t.Context(), nil)
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
		f.noteRefusal(step.err, step.watched)
		if got := f.Refused() != nil; got != step.refused || calls != step.calls {
			t.Errorf("step %d: refused: %v, said %d times", i, got, calls)
		}
		if i == 3 {
			if err := f.Replace(nil, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}
