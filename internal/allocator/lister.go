package allocator

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Lister lists with consistent reads: every listed object existed at some moment after the call.
type Lister interface {
	// List visits the objects of the kind of an empty object in a namespace; an empty namespace means all. An object is
	// valid during its visit only.
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
}

// sharedPoolLister lists the objects of a pool. Pools of one namespace that request a list while one is running share
// the next one: a list serves every request made before it began.
type sharedPoolLister struct {
	source Lister
	// blockFromObject returns what a listed object shows of a block of a carved pool, and that pool.
	blockFromObject func(client.Object) (*grants.Block, pools.Key)

	mu      sync.Mutex
	running map[string]chan struct{}
	pending map[string]*sharedList
}

// sharedList is a list for the pools that are keys of its results: it keeps no objects of other pools.
type sharedList struct {
	done    chan struct{}
	results listedByPool
	err     error
}

// listedByPool collects objects by the pools that are its keys, and skips objects of other pools.
type listedByPool map[pools.Key]*grants.ListedObjects

// addObject adds an object of a kind to those of its pool.
func (lp listedByPool) addObject(r grants.ResourceKind, o client.Object) {
	key, ok := r.PoolKeyFor(o)
	if of := lp[key]; ok && of != nil {
		of.AddObject(r, o)
	}
}

// listPool returns the objects of a pool as they were at some moment after the call.
func (l *sharedPoolLister) listPool(ctx context.Context, key pools.Key) (*grants.ListedObjects, error) {
	namespace := key.Namespace
	l.mu.Lock()
	if l.running == nil {
		l.running, l.pending = map[string]chan struct{}{}, map[string]*sharedList{}
	}
	batch := l.pending[namespace]
	if batch == nil {
		batch = &sharedList{done: make(chan struct{}), results: listedByPool{}}
		l.pending[namespace] = batch
		go l.runSharedList(ctx, namespace, batch, l.running[namespace])
	}
	if batch.results[key] == nil {
		batch.results[key] = &grants.ListedObjects{}
	}
	l.mu.Unlock()
	select {
	case <-batch.done:
		return batch.results[key], batch.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// listTimeout bounds a list of everything that uses addresses in a namespace, as the next list waits for it. An API
// server ends a request after a minute by default; a proxy may keep one open for ever.
const listTimeout = 5 * time.Minute

func (l *sharedPoolLister) runSharedList(ctx context.Context, namespace string, batch *sharedList, before chan struct{}) {
	if before != nil {
		<-before
	}
	l.mu.Lock()
	delete(l.pending, namespace)
	l.running[namespace] = batch.done
	l.mu.Unlock()
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), listTimeout)
	batch.err = l.listNamespace(timed, namespace, batch.results)
	cancel()
	l.mu.Lock()
	if l.running[namespace] == batch.done {
		delete(l.running, namespace)
	}
	l.mu.Unlock()
	close(batch.done)
}

func (l *sharedPoolLister) listNamespace(ctx context.Context, namespace string, found listedByPool) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range resourceKinds {
		g.Go(func() error {
			_, err := l.source.List(ctx, r.NewObject(), namespace, func(o client.Object) {
				found.addObject(r, o)
				if b, child := l.blockFromObject(o); b != nil && found[child] != nil {
					found[child].AddBlock(b)
				}
			})
			return err
		})
	}
	return g.Wait()
}
