package allocator

import (
	"context"
	"fmt"
	"sync"

	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize bounds the memory a list takes at once.
const pageSize = 500

// listed is what a consistent list found, by pool.
type listed struct {
	claims map[PoolKey][]*claim
	addrs  map[PoolKey][]*address
}

// lister lists claims and IPAddresses with consistent reads. Pools of one namespace that ask while
// a list is under way share the next one: a list serves whoever asked before it began.
type lister struct {
	live client.Reader

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
	// Addresses before claims: a claim that lives when its address is read is in the second list,
	// or its deletion was begun in between, which the watch reports.
	err := pages(ctx, l.live, namespace, func() *ipamv1.IPAddressList { return &ipamv1.IPAddressList{} }, func(list *ipamv1.IPAddressList) {
		for i := range list.Items {
			if key, ours := keyOfRef(list.Items[i].Namespace, list.Items[i].Spec.PoolRef); ours {
				found.addrs[key] = append(found.addrs[key], addressOf(&list.Items[i]))
			}
		}
	})
	if err != nil {
		return listed{}, fmt.Errorf("listing IPAddresses: %w", err)
	}
	err = pages(ctx, l.live, namespace, func() *ipamv1.IPAddressClaimList { return &ipamv1.IPAddressClaimList{} }, func(list *ipamv1.IPAddressClaimList) {
		for i := range list.Items {
			if key, ours := keyOfRef(list.Items[i].Namespace, list.Items[i].Spec.PoolRef); ours {
				found.claims[key] = append(found.claims[key], claimOf(&list.Items[i]))
			}
		}
	})
	if err != nil {
		return listed{}, fmt.Errorf("listing IPAddressClaims: %w", err)
	}
	return found, nil
}

// pages visits a list page by page.
func pages[L client.ObjectList](ctx context.Context, r client.Reader, namespace string, empty func() L, visit func(L)) error {
	next := ""
	for {
		list := empty()
		if err := r.List(ctx, list, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(next)); err != nil {
			return err
		}
		visit(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}
