// Package allocator grants the addresses of pools to claims.
//
// The pool is the unit of work. Watch events feed the in-memory state of each pool. One reconcile of a pool plans
// grants for the waiting claims, commits them in one write of the pool's status, and dispatches jobs that write the
// claims and their IPAddresses. The rules that keep an address from being granted twice (R1 to R17) are in
// docs/design.md; the code names the rule that it obeys.
package allocator

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// Allocator serves all pools of a manager, in parts. A part uses those before it, in the order of the fields, and reads
// the options. What a reconcile decides on is the state of its pool, grants.PoolState, which is locked for each use.
// The methods of Allocator itself are its interface, and the reconcile of a pool, which many parts take part in.
type Allocator struct {
	Options

	scope      *servedScope
	queue      *workQueue
	pools      *poolSet
	relations  *poolRelations
	lookups    *cacheLookups
	exclusions *rangeExcluder
	feed       *objectFeed
	writer     *objectWriter
	status     *statusWriter
	metadata   *poolMetadata
	arrivals   *arrivalChecker
	machines   *machineLookups
	admission  *admissionPolicy
	jobs       *claimantJobs
	addresses  *addressJobs
	requests   *blockRequests
	owners     *ownerSweeper
	unserved   *unservedPools
	reports    *poolReporter
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
	a := &Allocator{Options: o}
	options := &a.Options
	a.scope = &servedScope{Options: options}
	a.queue = &workQueue{Options: options, workers: workers.New[pools.Key](o.Writers)}
	a.pools = &poolSet{Options: options, byKey: map[pools.Key]*grants.Pool{}}
	a.pools.quota = grants.NewQuota(a.queue.enqueuePool)
	lister := &sharedPoolLister{source: o.Lister, blockFromObject: a.scope.blockFromObject}
	overlaps := &overlapIndex{}
	a.relations = &poolRelations{Options: options, queue: a.queue, pools: a.pools, overlaps: overlaps}
	a.lookups = &cacheLookups{Options: options, relations: a.relations}
	a.exclusions = &rangeExcluder{Options: options, scope: a.scope, queue: a.queue, pools: a.pools, lister: lister, overlaps: overlaps}
	a.feed = &objectFeed{scope: a.scope, queue: a.queue, pools: a.pools}
	a.writer = &objectWriter{Options: options, queue: a.queue, pools: a.pools, feed: a.feed}
	a.status = &statusWriter{Options: options, lister: lister}
	a.metadata = &poolMetadata{Options: options, lister: lister}
	a.arrivals = &arrivalChecker{Options: options, status: a.status, metadata: a.metadata}
	a.machines = &machineLookups{Options: options, queue: a.queue}
	a.admission = &admissionPolicy{Options: options, scope: a.scope, overlaps: overlaps, lookups: a.lookups, machines: a.machines}
	a.jobs = &claimantJobs{Options: options, scope: a.scope, queue: a.queue, lookups: a.lookups, writer: a.writer}
	a.addresses = &addressJobs{Options: options, queue: a.queue, lookups: a.lookups, writer: a.writer}
	a.requests = &blockRequests{Options: options, scope: a.scope, queue: a.queue, lister: lister, writer: a.writer}
	a.owners = &ownerSweeper{Options: options, scope: a.scope, overlaps: overlaps, lookups: a.lookups, writer: a.writer, jobs: a.jobs}
	a.unserved = &unservedPools{Options: options, scope: a.scope, pools: a.pools, relations: a.relations, lookups: a.lookups, exclusions: a.exclusions, status: a.status, metadata: a.metadata, jobs: a.jobs}
	a.reports = &poolReporter{Options: options}
	return a
}

// Start sets the function that enqueues a pool, and the context of the dispatched writes.
func (a *Allocator) Start(ctx context.Context, wake func(pools.Key)) {
	a.queue.controller.Store(&controllerHandle{ctx, wake})
}

// FencePools makes this manager the holder of pools. It must be called before the lists with which the watches of
// claims and IPAddresses begin: whatever earlier holders have granted is then in those lists or in flight, and a
// takeover needs no list of its own. Pools for which the write fails are left to their takeover.
func (a *Allocator) FencePools(ctx context.Context, all []v1alpha1.Pool) {
	var g errgroup.Group
	g.SetLimit(a.Writers)
	for _, obj := range all {
		key := pools.KeyForPool(obj)
		a.relations.publishDeclaration(obj)
		if a.scope.refusalIfUnserved(key, obj) != nil || obj.GetDeletionTimestamp() != nil {
			continue
		}
		if !a.scope.isInShard(key) {
			a.unserved.observePoolOnly(a.pools.getOrCreatePool(key), obj, a.now())
			continue
		}
		g.Go(func() error {
			p := a.pools.getOrCreatePool(key)
			m := p.Lock()
			m.SetBasePool(obj)
			m.Unlock()
			term, err := a.status.fencePool(ctx, p)
			if err != nil {
				log.FromContext(ctx).V(1).Info("Deferred the takeover of a pool", "pool", key.String(), "reason", err.Error())
				return nil
			}
			m = p.Lock()
			defer m.Unlock()
			m.Term.SetFenced(term)
			return nil
		})
	}
	_ = g.Wait()
}

// ObservePool takes a pool as the watch shows it. It reports whether the pool needs a reconcile: it has had none yet,
// or it is not what our own last write returned.
func (a *Allocator) ObservePool(obj v1alpha1.Pool) (pools.Key, bool) {
	key := pools.KeyForPool(obj)
	a.relations.publishDeclaration(obj) // all pools are known before the first one is reconciled, in any order
	m := a.pools.lockPool(key)
	defer m.Unlock()
	return key, !m.Term.TakeoverChecked || m.Base.Pool == nil || term.IsNewerVersion(obj.GetResourceVersion(), m.Base.Pool.GetResourceVersion())
}

// IsPoolReady reports whether a pool was checked for a takeover, or is another manager's.
func (a *Allocator) IsPoolReady(pool v1alpha1.Pool) bool {
	key := pools.KeyForPool(pool)
	if a.scope.refusalIfUnserved(key, pool) != nil || !a.scope.isInShard(key) {
		return true
	}
	m := a.pools.lockPool(key)
	defer m.Unlock()
	return m.Term.TakeoverChecked
}

// ObserveObject feeds an object that was seen, and returns its pool. The bool reports whether that pool needs a
// reconcile.
func (a *Allocator) ObserveObject(o client.Object) (pools.Key, bool) {
	return a.feed.observeObject(o)
}

// ForgetObject feeds the proof that an object is gone, and returns its pool. The bool reports whether that pool needs a
// reconcile.
func (a *Allocator) ForgetObject(o client.Object) (pools.Key, bool) {
	return a.feed.forgetObject(o)
}

// ObjectsNotListed returns the remembered objects of the kind of an empty object that are not among those listed. The
// returned objects have a name, a UID and their pool.
func (a *Allocator) ObjectsNotListed(of client.Object, listed map[types.UID]struct{}) []client.Object {
	return a.feed.unlistedObjects(of, listed)
}

// ObserveCluster takes a Cluster as a watch shows it, or its end. A Cluster that clusterctl moves is paused before it
// is gone, and a running one may be gone before the next sweep. It returns the pools that have something to write
// because of that.
func (a *Allocator) ObserveCluster(cluster *clusterv1.Cluster, ended bool) (keys []pools.Key) {
	found := ownerSeenFromCluster(cluster, ended)
	serves := func(c *grants.Claimant) bool { return !a.scope.shouldIgnoreClaimant(c) }
	for _, p := range a.pools.allPools() {
		m := p.Lock()
		if m.Owners.RecordClusterSeen(client.ObjectKeyFromObject(cluster), found, serves) {
			keys = append(keys, p.Key)
		}
		m.Unlock()
	}
	return keys
}

// HandleQuotaChange enqueues the pools in which claims of a Cluster wait for room in its quota.
func (a *Allocator) HandleQuotaChange(cluster types.NamespacedName) {
	a.pools.quota.EnqueueWaitingPools(cluster)
}

// PoolsWaitingForCluster returns the pools in which a claim waits for a Cluster, and the pools that wait for Clusters
// of its namespace to show that everything has arrived (R10).
func (a *Allocator) PoolsWaitingForCluster(cluster types.NamespacedName) []pools.Key {
	var keys []pools.Key
	for _, p := range a.pools.allPools() {
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
	for _, p := range a.pools.allPools() {
		if p.Key.Kind == v1alpha1.GlobalNetworkPoolKind {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// MirroredPoolReferrer returns a claim or IPAddress that is known to name the pool that a mirror mirrors; empty if
// there is none.
func (a *Allocator) MirroredPoolReferrer(mirror pools.Key) string {
	m := a.pools.lockPool(mirror)
	defer m.Unlock()
	return m.Addresses.FirstMirroredPoolUser()
}
