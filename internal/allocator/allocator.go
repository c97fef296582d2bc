// Package allocator grants the addresses of pools to claims.
//
// The pool is the unit of work. Watch events feed a memory per pool; one reconcile of a pool plans
// grants for the claims that wait, commits them in one write of the pool's status, and hands them to
// jobs that write the claims and their IPAddresses. The rules that keep an address from being given
// twice (R1 to R12) are in docs/design.md; the code names the rule it obeys.
package allocator

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// Options are what an Allocator needs and its timing. Safety depends on none of the times.
type Options struct {
	// Client writes. Its reads may come from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Lists lists from the API server.
	Lists Lister
	// Recorder records events on pools.
	Recorder events.EventRecorder
	// Clock is the source of time.
	Clock clock.Clock
	// APITime is a moment of it by the clock of the API server: what the next manager counts from is by that. Nil: both
	// have one clock.
	APITime func(time.Time) time.Time
	// ID names this process among all managers that ever were.
	ID string
	// ManagementCluster is the UID of the namespace kube-system; empty: it could not be read.
	ManagementCluster string
	// WatchFilter, where set, is the value that the label cluster.x-k8s.io/watch-filter of a claim
	// must have.
	WatchFilter string
	// Namespace, where set, is the only namespace that is watched.
	Namespace string
	// Elected: only one manager is active, so a pool is taken over without waiting.
	Elected bool
	// Writers bounds the objects that are written at once.
	Writers int
	// Quarantine is how long nothing new is granted from a pool that has addresses but no record
	// of an allocator (R10).
	Quarantine time.Duration
	// OrphanGrace is how long an IPAddress whose claim does not exist is kept.
	OrphanGrace time.Duration
	// ShrinkGrace is how long a block of a carved pool is kept that nothing uses.
	ShrinkGrace time.Duration
	// BlockNamespace is where the blocks of carved GlobalNetworkPools are.
	BlockNamespace string
	// Shard says which pools are served; what others do is seen all the same.
	Shard shard.Shard
	// WithoutLeases: IPLeases are read, since they have addresses of the pools, and left alone.
	WithoutLeases bool
	// InClusterPools: the pools of the in-cluster provider are served, by the pools that mirror them.
	InClusterPools bool
	// Unmirrored, where set, says why there is no mirror of a name; empty: it is no name of a mirror.
	Unmirrored func(ctx context.Context, key pools.Key) string
	// MachineOf finds the Machine of a claim by its owners, for subnets that serve failure domains; nil: none are served.
	MachineOf func(ctx context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error)
	// NodeQuota, where set, says how many claims of a Cluster may have an address; false: any number.
	NodeQuota func(ctx context.Context, cluster types.NamespacedName) (limit int64, limited bool)
}

const (
	// maxBatch bounds the grants of one commit.
	maxBatch = 128
	// lowWater is the number of grants being written below which more are planned, so that the writers
	// never run dry and a commit carries many grants when there is much to do.
	lowWater = 96
	// confirmDelay is how long an idle pool may show grants that are done.
	confirmDelay = time.Second
)

// Allocator serves all pools of a manager.
type Allocator struct {
	Options

	mu    sync.Mutex
	pools map[pools.Key]*grants.Pool
	// life is nil before Start.
	life         atomic.Pointer[life]
	workers      *workers.Workers[pools.Key]
	lists        lister
	quota        *grants.Quota
	overlaps     overlaps
	saidUnserved onceTold
	complaints   complaints
}

// life is what the controller gives at its start. The sources that feed events start beside it.
type life struct {
	// jobs is the life of the writes that a reconcile hands out: longer than the reconcile.
	jobs context.Context //nolint:containedctx // the controller's own context
	wake func(pools.Key)
}

// New returns an allocator. What is fed before Start is remembered, and wakes nobody: the watch of pools has each
// reconciled at the start.
func New(o Options) *Allocator {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.APITime == nil {
		o.APITime = func(at time.Time) time.Time { return at }
	}
	if o.Writers == 0 {
		o.Writers = 16
	}
	if o.Quarantine == 0 {
		o.Quarantine = 75 * time.Second
	}
	if o.ShrinkGrace == 0 {
		o.ShrinkGrace = 10 * time.Minute
	}
	if o.OrphanGrace == 0 {
		o.OrphanGrace = 75 * time.Second
	}
	a := &Allocator{
		Options: o,
		pools:   map[pools.Key]*grants.Pool{},
		workers: workers.New[pools.Key](o.Writers),
		lists:   lister{lists: o.Lists},
	}
	a.lists.blockOf = a.blockOf
	a.quota = grants.NewQuota(a.wake)
	return a
}

// Start sets the function that has a pool reconciled, and the life of the writes that are handed out.
func (a *Allocator) Start(ctx context.Context, wake func(pools.Key)) { a.life.Store(&life{ctx, wake}) }

// wake has a pool reconciled.
func (a *Allocator) wake(key pools.Key) {
	if l := a.life.Load(); l != nil {
		l.wake(key)
	}
}

// do has a job of a pool run as soon as a writer is free, for as long as the controller lives.
func (a *Allocator) do(pool pools.Key, job func(context.Context)) {
	ctx := a.jobContext()
	a.workers.Do(pool, func() { job(ctx) })
}

// jobContext lives as long as the controller.
func (a *Allocator) jobContext() context.Context {
	if l := a.life.Load(); l != nil {
		return l.jobs
	}
	return context.Background()
}

func (a *Allocator) pool(key pools.Key) *grants.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[key]
	if p == nil {
		m := grants.New(key, kinds, a.quota)
		m.APITime = a.APITime
		p = grants.PoolOf(m)
		a.pools[key] = p
	}
	return p
}

// locked returns the memory of a pool that is not dropped, locked.
func (a *Allocator) locked(key pools.Key) *grants.Memory {
	for {
		m := a.pool(key).Lock()
		if !m.Dropped {
			return m
		}
		m.Unlock()
	}
}

// drop forgets a pool that does not exist and of which nobody has anything: claims can name any pool.
func (a *Allocator) drop(p *grants.Pool) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base != nil || len(m.Claimants)+len(m.Attached)+len(m.Grants)+m.Carved.Count()+m.Jobs > 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m.Dropped = true
	delete(a.pools, p.Key)
	metrics.DropPool(p.Key.Kind, p.Key.Namespace, p.Key.Name)
}

func (a *Allocator) all() []*grants.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*grants.Pool, 0, len(a.pools))
	for _, p := range a.pools {
		out = append(out, p)
	}
	return out
}

// ObservePool reports whether a pool that was seen is to be reconciled: it has not been yet, or it is
// not what our own last write returned.
func (a *Allocator) ObservePool(obj v1alpha1.Pool) (pools.Key, bool) {
	key := pools.KeyOf(obj)
	a.publish(obj) // all pools are known before the first of them is reconciled, in whatever order that is
	m := a.locked(key)
	defer m.Unlock()
	return key, !m.TriedOnce || m.Base == nil || term.Newer(obj.GetResourceVersion(), m.Base.GetResourceVersion())
}

// PoolsWaitingFor returns the pools in which a claim waits for a Cluster, and those that wait for Clusters of its namespace
// to show that all has arrived.
func (a *Allocator) PoolsWaitingFor(cluster types.NamespacedName) []pools.Key {
	var keys []pools.Key
	for _, p := range a.all() {
		m := p.Lock()
		_, waits := m.WaitingClusters[cluster]
		arrives := m.Arriving.Lacks != "" && p.Key.Namespace == cluster.Namespace
		if m.Awaits(cluster) || waits || arrives {
			keys = append(keys, p.Key)
		}
		m.Unlock()
	}
	return keys
}

// GlobalPools returns the global pools: a namespace's labels decide whether they serve it.
func (a *Allocator) GlobalPools() []pools.Key {
	var keys []pools.Key
	for _, p := range a.all() {
		if p.Key.Kind == v1alpha1.GlobalNetworkPoolKind {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// Ready reports whether a pool was taken over, or is another manager's.
func (a *Allocator) Ready(is v1alpha1.Pool) bool {
	key := pools.KeyOf(is)
	if a.unserved(key, is) != nil || !a.serves(key) {
		return true
	}
	m := a.locked(key)
	defer m.Unlock()
	return m.TriedOnce
}

func (a *Allocator) now() time.Time { return a.Clock.Now() }

func timed(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, term.RequestTimeout)
}

// QuotaChanged has the claims of a Cluster that wait for room in its quota looked at again.
func (a *Allocator) QuotaChanged(cluster types.NamespacedName) { a.quota.Changed(cluster) }
