package allocator_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// manager is a process: an allocator, the watches that feed it and the queue that runs it, as controllers/pool wires
// them.
type manager struct {
	name   string
	client *faults.Client
	alloc  *allocator.Allocator
	ctx    context.Context //nolint:containedctx // the life of the process
	kill   context.CancelFunc
	// dead reports whether it was killed; asleep reports whether it does not run, though its calls may be in progress.
	dead, asleep bool
	// seen is how much of the log of each kind its watches have shown; mute reports which watches show nothing.
	seen map[faults.Kind]int
	mute map[faults.Kind]bool
	// cached are the pools as the cache has them.
	cached map[pools.Key]v1alpha1.Pool
	// feeds are the feeds of the numerous kinds.
	feeds map[faults.Kind]faults.Feed
	// onPanic receives the text of a panic.
	onPanic func(string)

	mu sync.Mutex
	// queues are those of the controller, one for each pool: its workers reconcile different pools at once. sorted are
	// their keys, in a fixed order.
	queues map[pools.Key]*schedule.Queue
	sorted []pools.Key
	// fenced reports whether the lists of the watches can begin; listed reports whether they have arrived.
	fenced atomic.Bool
	listed bool
}

// wake queues a pool, also one that the world does not have.
func (m *manager) wake(key pools.Key) { m.queue(key).Wake() }

func (m *manager) queue(key pools.Key) *schedule.Queue {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues[key] == nil {
		m.queues[key] = &schedule.Queue{MaxBackoff: backstop}
		m.sorted = slices.SortedFunc(maps.Keys(m.queues), func(a, b pools.Key) int { return strings.Compare(a.String(), b.String()) })
	}
	return m.queues[key]
}

// keys returns the pools that have a queue, in a fixed order.
func (m *manager) keys() []pools.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sorted
}

// reconcile runs one reconcile of a pool, as a worker of the controller does.
func (m *manager) reconcile(key pools.Key) {
	pool := m.cached[key]
	m.queue(key).RunReconcile(func() (reconcile.Result, error) {
		result, err := m.alloc.Reconcile(m.ctx, key, pool)
		if result.RequeueAfter == 0 || result.RequeueAfter > backstop {
			result.RequeueAfter = backstop
		}
		return result, err
	}, m.onPanic)
}

// show feeds what a watch shows: pools as newPoolHandler of controllers/pool does, and numerous kinds through the
// feeds.
func (m *manager) show(c faults.Change) {
	if f := m.feeds[faults.RefForObject(c.Object).Kind]; f != nil {
		f.ShowChange(c)
		return
	}
	switch o := c.Object.DeepCopyObject().(type) {
	case v1alpha1.Pool:
		key := pools.KeyForPool(o)
		if c.Deleted {
			delete(m.cached, key)
			m.wake(key)
			return
		}
		m.cached[key] = o
		if _, changed := m.alloc.ObservePool(o); changed {
			m.wake(key)
		}
	case *clusterv1.Cluster:
		for _, key := range m.alloc.ObserveCluster(o, c.Deleted) {
			m.wake(key)
		}
		for _, key := range m.alloc.PoolsWaitingForCluster(client.ObjectKeyFromObject(o)) {
			m.wake(key)
		}
	}
}

// replace feeds a list.
func (m *manager) replace(kind faults.Kind, listed []client.Object) {
	if f := m.feeds[kind]; f != nil {
		f.ReplaceAll(listed)
		return
	}
	uids := map[types.UID]struct{}{}
	for _, o := range listed {
		uids[o.GetUID()] = struct{}{}
		m.show(faults.Change{Object: o})
	}
	for _, o := range m.cached {
		if _, exists := uids[o.GetUID()]; !exists && faults.RefForObject(o).Kind == kind {
			m.show(faults.Change{Object: o, Deleted: true})
		}
	}
}

// feed starts the feeds of a manager.
func (m *manager) feed() {
	a, live := m.alloc, m.client.LiveReader()
	m.feeds = map[faults.Kind]faults.Feed{}
	for _, of := range allocator.WatchedObjects() {
		m.feeds[faults.RefForObject(of).Kind] = faults.NewFeed(m.ctx, of, live, a, m.wake)
	}
}

// listedAfterTakeover are the kinds that a manager lists once it has taken the pools over; it sees nothing of them
// before.
var listedAfterTakeover = []faults.Kind{faults.Addresses, faults.Claims, faults.Allocations, faults.Leases}

// start starts another manager.
func (w *world) start() *manager {
	name := string(rune('a' + len(w.managers)))
	m := &manager{
		name: name, client: w.api.NewClient(name),
		cached: map[pools.Key]v1alpha1.Pool{}, queues: map[pools.Key]*schedule.Queue{},
		seen: map[faults.Kind]int{}, mute: map[faults.Kind]bool{}, onPanic: func(text string) { w.Failf("%s", text) },
	}
	w.pace.since = time.Now()
	m.ctx, m.kill = context.WithCancel(w.withErrorCounter(w.t.Context(), name))
	m.alloc = allocator.New(allocator.Options{
		Client: m.client, Live: m.client.LiveReader(), Lister: m.client.Lister(), Recorder: w, ManagerID: name, Elected: w.elected,
		ManagementCluster: home, InClusterPools: true, ShrinkGrace: 20 * time.Second, FindMachine: w.machineOf,
	})
	m.alloc.Start(m.ctx, m.wake)
	m.feed()
	m.wake(poolKey)
	w.relist(m, faults.Pools, 0)
	w.relist(m, faults.GlobalPools, 0)
	for _, kind := range listedAfterTakeover {
		m.mute[kind] = true
	}
	w.managers = append(w.managers, m)
	w.Tracef("manager %s starts", name)
	go m.takeOverPools()
	return m
}

// takeOverPools takes the pools over before the watches begin, as controllers/pool does. A reconcile waits for them.
func (m *manager) takeOverPools() {
	if all, err := pools.List(m.ctx, m.client.LiveReader(), ""); err == nil {
		m.alloc.FencePools(m.ctx, all)
	}
	m.fenced.Store(true)
}

// relist breaks a watch: it shows nothing until a list that is taken now arrives.
func (w *world) relist(m *manager, kind faults.Kind, delay time.Duration) {
	listed, seen := w.api.List(kind), len(w.api.ChangesSince(kind, 0))
	arrive := func() {
		m.seen[kind], m.mute[kind] = seen, false
		if !m.dead {
			m.replace(kind, listed)
		}
	}
	if delay == 0 {
		arrive()
		return
	}
	m.mute[kind] = true
	w.DelayStep(3, delay, arrive)
}
