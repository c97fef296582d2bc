package allocator

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

// Lists reads what exists with consistent reads, object by object.
type Lists interface {
	Claims(ctx context.Context, namespace string, visit func(*ipamv1.IPAddressClaim)) (version string, err error)
	Addresses(ctx context.Context, namespace string, visit func(*ipamv1.IPAddress)) (version string, err error)
}

// listed is what a consistent list found, by pool.
type listed struct {
	claims map[PoolKey][]*claim
	addrs  map[PoolKey][]*address
}

// lister lists claims and IPAddresses with consistent reads. Pools of one namespace that ask while
// a list is under way share the next one: a list serves whoever asked before it began.
type lister struct {
	lists Lists

	mu      sync.Mutex
	running map[string]chan struct{}
	next    map[string]*shared
}

type shared struct {
	done  chan struct{}
	found listed
	err   error
}

// list returns what exists in a namespace ("": everywhere) at some moment after the call.
func (l *lister) list(ctx context.Context, namespace string) (listed, error) {
	l.mu.Lock()
	if l.running == nil {
		l.running, l.next = map[string]chan struct{}{}, map[string]*shared{}
	}
	turn := l.next[namespace]
	if turn == nil {
		turn = &shared{done: make(chan struct{})}
		l.next[namespace] = turn
		go l.run(ctx, namespace, turn, l.running[namespace])
	}
	l.mu.Unlock()
	select {
	case <-turn.done:
		return turn.found, turn.err
	case <-ctx.Done():
		return listed{}, ctx.Err()
	}
}

func (l *lister) run(ctx context.Context, namespace string, turn *shared, before chan struct{}) {
	if before != nil {
		<-before
	}
	l.mu.Lock()
	delete(l.next, namespace)
	l.running[namespace] = turn.done
	l.mu.Unlock()
	turn.found, turn.err = l.read(context.WithoutCancel(ctx), namespace)
	l.mu.Lock()
	if l.running[namespace] == turn.done {
		delete(l.running, namespace)
	}
	l.mu.Unlock()
	close(turn.done)
}

func (l *lister) read(ctx context.Context, namespace string) (listed, error) {
	found := listed{claims: map[PoolKey][]*claim{}, addrs: map[PoolKey][]*address{}}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		_, err := l.lists.Addresses(ctx, namespace, func(a *ipamv1.IPAddress) {
			if key, ours := keyOfRef(a.Namespace, a.Spec.PoolRef); ours {
				found.addrs[key] = append(found.addrs[key], addressOf(a))
			}
		})
		return err
	})
	g.Go(func() error {
		_, err := l.lists.Claims(ctx, namespace, func(c *ipamv1.IPAddressClaim) {
			if key, ours := keyOfRef(c.Namespace, c.Spec.PoolRef); ours {
				found.claims[key] = append(found.claims[key], claimOf(c))
			}
		})
		return err
	})
	if err := g.Wait(); err != nil {
		return listed{}, err
	}
	return found, nil
}
