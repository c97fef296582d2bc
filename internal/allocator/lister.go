package allocator

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Lister lists with consistent reads: what it shows existed at some moment after the call.
type Lister interface {
	// List visits the objects of the kind of an empty one in a namespace; the empty one means all. An object is the
	// visitor's during the visit alone.
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
}

// lister lists what there is of a pool. Pools of one namespace that ask while
// a list is under way share the next one: a list serves whoever asked before it began.
type lister struct {
	lists Lister
	// blockOf is what a list shows of a block of a carved pool, and that pool.
	blockOf func(client.Object) (*grants.Block, pools.Key)

	mu      sync.Mutex
	running map[string]chan struct{}
	next    map[string]*shared
}

// shared is a list for the pools that are its keys: what is there of others is not kept.
type shared struct {
	done  chan struct{}
	found byPool
	err   error
}

// byPool sorts objects by the pools that are its keys, and passes over those of others.
type byPool map[pools.Key]*grants.Listed

// add adds an object of a kind to what is found of its pool.
func (f byPool) add(r grants.Resource, o client.Object) {
	key, is := r.PoolOf(o)
	if of := f[key]; is && of != nil {
		of.Add(r, o)
	}
}

// list returns what exists of a pool at some moment after the call.
func (l *lister) list(ctx context.Context, key pools.Key) (*grants.Listed, error) {
	namespace := key.Namespace
	l.mu.Lock()
	if l.running == nil {
		l.running, l.next = map[string]chan struct{}{}, map[string]*shared{}
	}
	batch := l.next[namespace]
	if batch == nil {
		batch = &shared{done: make(chan struct{}), found: byPool{}}
		l.next[namespace] = batch
		go l.run(ctx, namespace, batch, l.running[namespace])
	}
	if batch.found[key] == nil {
		batch.found[key] = &grants.Listed{}
	}
	l.mu.Unlock()
	select {
	case <-batch.done:
		return batch.found[key], batch.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *lister) run(ctx context.Context, namespace string, batch *shared, before chan struct{}) {
	if before != nil {
		<-before
	}
	l.mu.Lock()
	delete(l.next, namespace)
	l.running[namespace] = batch.done
	l.mu.Unlock()
	batch.err = l.read(context.WithoutCancel(ctx), namespace, batch.found)
	l.mu.Lock()
	if l.running[namespace] == batch.done {
		delete(l.running, namespace)
	}
	l.mu.Unlock()
	close(batch.done)
}

func (l *lister) read(ctx context.Context, namespace string, found byPool) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range resources {
		g.Go(func() error {
			_, err := l.lists.List(ctx, r.Object(), namespace, func(o client.Object) {
				found.add(r, o)
				if b, child := l.blockOf(o); b != nil && found[child] != nil {
					found[child].AddBlock(b)
				}
			})
			return err
		})
	}
	return g.Wait()
}
