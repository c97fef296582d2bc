package tenant

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
)

// The bounds of a look at a Cluster. A usual one takes some milliseconds.
const (
	// promptTimeout is for a Cluster that is not known to be slow.
	promptTimeout = 10 * time.Second
	// lookTimeout is for one that is.
	lookTimeout = time.Minute
	// slowPlaces is how many workers look at slow Clusters together: the others are for those that answer.
	slowPlaces = workloads.Workers / 2
	// slowPause is how long a slow Cluster waits while there is no place for it.
	slowPause = 10 * time.Second
)

// errSlow ends a look that took too long.
var errSlow = errors.New("the workload cluster does not answer in time")

// slowClusters keep Clusters whose API server hangs from holding all workers. A look that does not end in time makes its
// Cluster slow: it has more time then, and one of a few places, until a look at it ends in time.
type slowClusters struct {
	mu    sync.Mutex
	known map[client.ObjectKey]bool
	taken int
}

// look runs a look at a Cluster. Without a place for it, nothing is done, and the wait is how long until the next try.
func (p *slowClusters) look(ctx context.Context, key client.ObjectKey, do func(context.Context) (wait, error)) (wait, error) {
	slow, admitted := p.enter(key)
	if !admitted {
		return wait(slowPause), nil
	}
	timeout := promptTimeout
	if slow {
		timeout = lookTimeout
	}
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, errSlow)
	defer cancel()
	begin := time.Now()
	defer func() { p.leave(key, slow, time.Since(begin) >= promptTimeout) }()
	next, err := do(bounded)
	if err != nil && errors.Is(context.Cause(bounded), errSlow) {
		err = errors.Join(errSlow, err)
	}
	return next, err
}

// enter reports whether a Cluster is slow, and takes a place for it if so. It is not admitted where none is free.
func (p *slowClusters) enter(key client.ObjectKey) (slow, admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known[key] {
		return false, true
	}
	if p.taken >= slowPlaces {
		return true, false
	}
	p.taken++
	return true, true
}

// leave ends a look, and notes whether the Cluster is slow.
func (p *slowClusters) leave(key client.ObjectKey, had, slow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had {
		p.taken--
	}
	if !slow {
		delete(p.known, key)
		return
	}
	if p.known == nil {
		p.known = map[client.ObjectKey]bool{}
	}
	p.known[key] = true
}

// forget forgets a Cluster that is gone.
func (p *slowClusters) forget(key client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, key)
}
