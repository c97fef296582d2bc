package allocator

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Lists reads what exists with consistent reads, object by object.
type Lists interface {
	Claims(ctx context.Context, namespace string, visit func(*ipamv1.IPAddressClaim)) (version string, err error)
	Addresses(ctx context.Context, namespace string, visit func(*ipamv1.IPAddress)) (version string, err error)
	Allocations(ctx context.Context, namespace string, visit func(*v1alpha1.IPAllocation)) (version string, err error)
}

// listed is what a consistent list found of one pool.
type listed struct {
	claims, blocks []*claim
	addrs          []*address
}

// lister lists claims and IPAddresses with consistent reads. Pools of one namespace that ask while
// a list is under way share the next one: a list serves whoever asked before it began.
type lister struct {
	lists Lists

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
type byPool map[PoolKey]*listed

func (f byPool) address(a *ipamv1.IPAddress) {
	key, ours := keyOfRef(a.Namespace, a.Spec.PoolRef)
	if of := f[key]; ours && of != nil {
		of.addrs = append(of.addrs, addressOf(a))
	}
}

func (f byPool) claim(c *ipamv1.IPAddressClaim) {
	key, ours := keyOfRef(c.Namespace, c.Spec.PoolRef)
	if of := f[key]; ours && of != nil {
		of.claims = append(of.claims, claimOf(c))
	}
}

func (f byPool) allocation(o *v1alpha1.IPAllocation) {
	if of := f[KeyOfAllocation(o)]; of != nil {
		of.blocks = append(of.blocks, claimOfAllocation(o))
	}
}

// list returns what exists of a pool at some moment after the call.
func (l *lister) list(ctx context.Context, key PoolKey) (*listed, error) {
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
		batch.found[key] = &listed{}
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
	g.Go(func() error {
		_, err := l.lists.Addresses(ctx, namespace, found.address)
		return err
	})
	g.Go(func() error {
		_, err := l.lists.Claims(ctx, namespace, found.claim)
		return err
	})
	g.Go(func() error {
		_, err := l.lists.Allocations(ctx, namespace, found.allocation)
		return err
	})
	return g.Wait()
}
