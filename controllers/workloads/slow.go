package workloads

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// These are the bounds of a reconcile of a Cluster. A usual one takes some milliseconds.
const (
	// NormalTimeout is for a Cluster that is not known to be slow.
	NormalTimeout = 10 * time.Second
	// SlowTimeout is for a Cluster that is known to be slow.
	SlowTimeout = time.Minute
	// MaxSlowClusters is how many workers of a controller reconcile slow Clusters at once: the others are for those
	// that answer.
	MaxSlowClusters = MaxConcurrentClusters / 2
	// SlowRetryDelay is how long a slow Cluster waits while there is no slot for it.
	SlowRetryDelay = 10 * time.Second
)

// ErrSlowCluster ends a reconcile that took too long.
var ErrSlowCluster = errors.New("the workload cluster does not answer in time")

// SlowClusters prevents Clusters whose API server hangs from occupying all workers of a controller. A reconcile that
// does not end in time makes its Cluster slow: it then has more time, and one of a few slots, until a reconcile of it
// ends in time. The zero value knows no slow Cluster.
type SlowClusters struct {
	mu           sync.Mutex
	slowClusters map[client.ObjectKey]bool
	slotsInUse   int
}

// RunBounded runs do, a reconcile of a Cluster, which ends by its context. What do leaves running must not end with
// that context. Without a slot for the Cluster nothing is done, and the returned delay is how long until the next try.
func (sc *SlowClusters) RunBounded(ctx context.Context, key client.ObjectKey, do func(context.Context) (time.Duration, error)) (time.Duration, error) {
	slow, admitted := sc.acquireSlot(key)
	if !admitted {
		return SlowRetryDelay, nil
	}
	timeout := NormalTimeout
	if slow {
		timeout = SlowTimeout
	}
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, ErrSlowCluster)
	defer cancel()
	begin := time.Now()
	defer func() { sc.releaseSlot(key, slow, time.Since(begin) >= NormalTimeout) }()
	next, err := do(bounded)
	if err != nil && errors.Is(context.Cause(bounded), ErrSlowCluster) {
		err = errors.Join(ErrSlowCluster, err)
	}
	return next, err
}

// acquireSlot reports whether a Cluster is slow, and takes a slot for it if so. It is not admitted if none is free.
func (sc *SlowClusters) acquireSlot(key client.ObjectKey) (slow, admitted bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if !sc.slowClusters[key] {
		return false, true
	}
	if sc.slotsInUse >= MaxSlowClusters {
		return true, false
	}
	sc.slotsInUse++
	return true, true
}

// releaseSlot ends a reconcile, and records whether the Cluster is slow.
func (sc *SlowClusters) releaseSlot(key client.ObjectKey, had, slow bool) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if had {
		sc.slotsInUse--
	}
	if !slow {
		delete(sc.slowClusters, key)
		return
	}
	if sc.slowClusters == nil {
		sc.slowClusters = map[client.ObjectKey]bool{}
	}
	sc.slowClusters[key] = true
}

// ForgetCluster forgets a Cluster that is gone.
func (sc *SlowClusters) ForgetCluster(key client.ObjectKey) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	delete(sc.slowClusters, key)
}
