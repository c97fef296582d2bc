// Package allocator grants the addresses of pools to claims.
//
// The pool is the unit of work. Watch events feed the in-memory state of each pool. One reconcile of a pool plans
// grants for the waiting claims, commits them in one write of the pool's status, and dispatches jobs that write the
// claims and their IPAddresses. The rules that keep an address from being granted twice (R1 to R17) are in
// docs/design.md; the code names the rule that it obeys.
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

// Options configures an Allocator: its clients, what it serves, and its timing. Safety depends on none of the times.
type Options struct {
	// Client writes objects. Its reads may come from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Lister lists from the API server with consistent reads.
	Lister Lister
	// Recorder records events on pools and claimants.
	Recorder events.EventRecorder
	// Clock is the source of time.
	Clock clock.Clock
	// APITime converts a time of Clock to the clock of the API server, by which this manager records the times that the
	// next manager counts from. Nil means that both clocks are one.
	APITime func(time.Time) time.Time
	// ManagerID identifies this process among all managers that ever ran.
	ManagerID string
	// ManagementCluster is the UID of the namespace kube-system; empty if it could not be read.
	ManagementCluster string
	// WatchFilter, where set, is the value that the label cluster.x-k8s.io/watch-filter of a claim must have.
	WatchFilter string
	// Namespace, where set, is the only namespace that the manager watches.
	Namespace string
	// Elected reports whether only one manager is active, so that pools are taken over without waiting.
	Elected bool
	// Writers bounds the number of objects that are written at once.
	Writers int
	// Quarantine is how long a pool that has addresses but no record of an allocator grants nothing new (R10).
	Quarantine time.Duration
	// OrphanGrace is how long an IPAddress whose claim does not exist is kept.
	OrphanGrace time.Duration
	// ShrinkGrace is how long an unused block of a carved pool is kept.
	ShrinkGrace time.Duration
	// BlockNamespace is the namespace of the blocks of carved GlobalNetworkPools.
	BlockNamespace string
	// Shard selects the pools that this manager serves; it still observes the pools of others.
	Shard shard.Shard
	// WithoutLeases reports whether IPLeases are read, since they have addresses of the pools, but not served.
	WithoutLeases bool
	// InClusterPools reports whether the pools of the in-cluster provider are served, by the pools that mirror them.
	InClusterPools bool
	// MissingMirrorReason, where set, returns why the mirror of a name does not exist; empty means that it is no name
	// of a mirror.
	MissingMirrorReason func(ctx context.Context, key pools.Key) string
	// FindMachine finds the Machine of a claim by its owner references, for subnets that serve failure domains. Nil
	// means that none are served.
	FindMachine func(ctx context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error)
	// NodeQuota, where set, returns how many claims of a Cluster may have an address; false means any number.
	NodeQuota func(ctx context.Context, cluster types.NamespacedName) (limit int64, limited bool)
}

const (
	// maxGrantsPerCommit bounds the grants of one commit.
	maxGrantsPerCommit = 128
	// planningLowWaterMark is the number of grants being written below which more are planned, so that the writers
	// never run dry and a commit carries many grants when there is much to do.
	planningLowWaterMark = 96
	// confirmCommitDelay is how long the status of an idle pool may still list confirmed grants as in flight.
	confirmCommitDelay = time.Second
)

// Allocator serves all pools of a manager.
type Allocator struct {
	Options

	mu    sync.Mutex
	pools map[pools.Key]*grants.Pool
	// controller is nil before Start.
	controller       atomic.Pointer[controllerHandle]
	workers          *workers.Workers[pools.Key]
	poolLister       sharedPoolLister
	quota            *grants.Quota
	overlaps         overlapIndex
	unservedReported reportedSet
	failureLogs      failureLogLimiter
}

// controllerHandle holds what the controller passes to Start. The sources that feed events start beside the controller.
type controllerHandle struct {
	// jobContext bounds the writes that a reconcile dispatches: it lives longer than the reconcile.
	jobContext context.Context //nolint:containedctx // the controller's own context
	enqueue    func(pools.Key)
}

// New returns an allocator. Objects that are fed before Start are remembered but enqueue no pool: the watch of pools
// has each pool reconciled at the start.
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
		Options:    o,
		pools:      map[pools.Key]*grants.Pool{},
		workers:    workers.New[pools.Key](o.Writers),
		poolLister: sharedPoolLister{source: o.Lister},
	}
	a.poolLister.blockFromObject = a.blockFromObject
	a.quota = grants.NewQuota(a.enqueuePool)
	return a
}

// Start sets the function that enqueues a pool, and the context of the dispatched writes.
func (a *Allocator) Start(ctx context.Context, wake func(pools.Key)) {
	a.setController(ctx, wake)
}

// setController sets what the controller passes to Start.
func (a *Allocator) setController(ctx context.Context, enqueue func(pools.Key)) {
	a.controller.Store(&controllerHandle{ctx, enqueue})
}

// enqueuePool enqueues a pool for a reconcile.
func (a *Allocator) enqueuePool(key pools.Key) {
	if l := a.controller.Load(); l != nil {
		l.enqueue(key)
	}
}

// submitJob runs a job of a pool as soon as a writer is free, with a context that lives as long as the controller.
func (a *Allocator) submitJob(pool pools.Key, job func(context.Context)) {
	ctx := a.jobContext()
	a.workers.Submit(pool, func() { job(ctx) })
}

// jobContext returns a context that lives as long as the controller.
func (a *Allocator) jobContext() context.Context {
	if l := a.controller.Load(); l != nil {
		return l.jobContext
	}
	return context.Background()
}

func (a *Allocator) getOrCreatePool(key pools.Key) *grants.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[key]
	if p == nil {
		m := grants.NewPoolState(key, claimantKinds, a.quota)
		m.Clock.ToAPIServerTime = a.APITime
		p = grants.NewPool(m)
		a.pools[key] = p
	}
	return p
}

// lockPool returns the state of a pool that is not dropped, locked.
func (a *Allocator) lockPool(key pools.Key) *grants.PoolState {
	for {
		m := a.getOrCreatePool(key).Lock()
		if !m.Dropped {
			return m
		}
		m.Unlock()
	}
}

// dropUnusedPool forgets a pool that does not exist and that no object has anything of: claims can name any pool.
func (a *Allocator) dropUnusedPool(p *grants.Pool) {
	m := p.Lock()
	defer m.Unlock()
	if m.Base.Pool != nil || len(m.Claimants.ByUID)+len(m.Addresses.ByName)+len(m.Grants.ByClaimant)+m.Carved.BlockCount()+m.Queues.ActiveJobs > 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m.Dropped = true
	delete(a.pools, p.Key)
	metrics.DeletePoolMetrics(p.Key.Kind, p.Key.Namespace, p.Key.Name)
}

func (a *Allocator) allPools() []*grants.Pool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*grants.Pool, 0, len(a.pools))
	for _, p := range a.pools {
		out = append(out, p)
	}
	return out
}

// ObservePool takes a pool as the watch shows it. It reports whether the pool needs a reconcile: it has had none yet,
// or it is not what our own last write returned.
func (a *Allocator) ObservePool(obj v1alpha1.Pool) (pools.Key, bool) {
	key := pools.KeyForPool(obj)
	a.publishDeclaration(obj) // all pools are known before the first one is reconciled, in any order
	m := a.lockPool(key)
	defer m.Unlock()
	return key, !m.Record.TakeoverChecked || m.Base.Pool == nil || term.IsNewerVersion(obj.GetResourceVersion(), m.Base.Pool.GetResourceVersion())
}

// PoolsWaitingForCluster returns the pools in which a claim waits for a Cluster, and the pools that wait for Clusters
// of its namespace to show that everything has arrived (R10).
func (a *Allocator) PoolsWaitingForCluster(cluster types.NamespacedName) []pools.Key {
	var keys []pools.Key
	for _, p := range a.allPools() {
		m := p.Lock()
		_, waits := m.Conditions.BlockingClusters[cluster]
		arrives := m.Quarantine.Arrival.MissingProof != "" && p.Key.Namespace == cluster.Namespace
		if m.Owners.TakeAwaitedCluster(cluster) || waits || arrives {
			keys = append(keys, p.Key)
		}
		m.Unlock()
	}
	return keys
}

// GlobalPools returns the global pools: the labels of a namespace decide whether they serve it.
func (a *Allocator) GlobalPools() []pools.Key {
	var keys []pools.Key
	for _, p := range a.allPools() {
		if p.Key.Kind == v1alpha1.GlobalNetworkPoolKind {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// IsPoolReady reports whether a pool was checked for a takeover, or is another manager's.
func (a *Allocator) IsPoolReady(pool v1alpha1.Pool) bool {
	key := pools.KeyForPool(pool)
	if a.refusalIfUnserved(key, pool) != nil || !a.isInShard(key) {
		return true
	}
	m := a.lockPool(key)
	defer m.Unlock()
	return m.Record.TakeoverChecked
}

func (o *Options) now() time.Time { return o.Clock.Now() }

func withRequestTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, term.RequestTimeout)
}

// HandleQuotaChange enqueues the pools in which claims of a Cluster wait for room in its quota.
func (a *Allocator) HandleQuotaChange(cluster types.NamespacedName) {
	a.quota.EnqueueWaitingPools(cluster)
}
