package workloads

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The bounds of a look at a Cluster. A usual one takes some milliseconds.
const (
	// PromptTimeout is for a Cluster that is not known to be slow.
	PromptTimeout = 10 * time.Second
	// LookTimeout is for one that is.
	LookTimeout = time.Minute
	// SlowPlaces is how many of the workers of a controller look at slow Clusters together: the others are for those that answer.
	SlowPlaces = Workers / 2
	// SlowPause is how long a slow Cluster waits while there is no place for it.
	SlowPause = 10 * time.Second
)

// ErrSlow ends a look that took too long.
var ErrSlow = errors.New("the workload cluster does not answer in time")

// Slow keeps Clusters whose API server hangs from holding all workers of a controller. A look that does not end in time makes
// its Cluster slow: it has more time then, and one of a few places, until a look at it ends in time. Its zero value knows none.
type Slow struct {
	mu    sync.Mutex
	known map[client.ObjectKey]bool
	taken int
}

// Look runs a look at a Cluster, which ends by its context. What it leaves at work is not to end with that. Without a place for
// the Cluster nothing is done, and the pause is how long until the next try.
func (p *Slow) Look(ctx context.Context, key client.ObjectKey, do func(context.Context) (time.Duration, error)) (time.Duration, error) {
	slow, admitted := p.enter(key)
	if !admitted {
		return SlowPause, nil
	}
	timeout := PromptTimeout
	if slow {
		timeout = LookTimeout
	}
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, ErrSlow)
	defer cancel()
	begin := time.Now()
	defer func() { p.leave(key, slow, time.Since(begin) >= PromptTimeout) }()
	next, err := do(bounded)
	if err != nil && errors.Is(context.Cause(bounded), ErrSlow) {
		err = errors.Join(ErrSlow, err)
	}
	return next, err
}

// enter reports whether a Cluster is slow, and takes a place for it if so. It is not admitted where none is free.
func (p *Slow) enter(key client.ObjectKey) (slow, admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known[key] {
		return false, true
	}
	if p.taken >= SlowPlaces {
		return true, false
	}
	p.taken++
	return true, true
}

// leave ends a look, and notes whether the Cluster is slow.
func (p *Slow) leave(key client.ObjectKey, had, slow bool) {
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

// Forget forgets a Cluster that is gone.
func (p *Slow) Forget(key client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, key)
}
