package allocator

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Lists reads what exists with consistent reads, object by object.
type Lists interface {
	Claims(ctx context.Context, namespace string, visit func(*ipamv1.IPAddressClaim)) (version string, err error)
	Addresses(ctx context.Context, namespace string, visit func(*ipamv1.IPAddress)) (version string, err error)
	Allocations(ctx context.Context, namespace string, visit func(*v1alpha1.IPAllocation)) (version string, err error)
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
type byPool map[pools.Key]*grants.Listed

// claimant sorts an object that asks a pool for addresses.
func (f byPool) claimant(o client.Object) {
	k, key := kindOfObject(o)
	if of := f[key]; of != nil && k != nil {
		c := k.Of(o)
		of.Mu.Lock()
		defer of.Mu.Unlock()
		of.Claimants = append(of.Claimants, c)
	}
}

// attached sorts an object that shows what a claimant was granted.
func (f byPool) attached(o client.Object) {
	k, key := attacherOfObject(o)
	if of := f[key]; of != nil && k != nil {
		at := k.Of(o)
		of.Mu.Lock()
		defer of.Mu.Unlock()
		of.Attached = append(of.Attached, at)
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
	g.Go(func() error {
		_, err := l.lists.Addresses(ctx, namespace, func(o *ipamv1.IPAddress) { found.attached(o) })
		return err
	})
	g.Go(func() error {
		_, err := l.lists.Claims(ctx, namespace, func(o *ipamv1.IPAddressClaim) { found.claimant(o) })
		return err
	})
	g.Go(func() error {
		_, err := l.lists.Allocations(ctx, namespace, func(o *v1alpha1.IPAllocation) { found.claimant(o) })
		return err
	})
	return g.Wait()
}
