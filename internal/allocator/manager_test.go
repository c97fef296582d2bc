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

// manager is a process: an allocator, the watches that feed it and the queue that runs it, as
// controllers/pool wires them.
type manager struct {
	name   string
	client *faults.Client
	alloc  *allocator.Allocator
	ctx    context.Context //nolint:containedctx // the life of the process
	kill   context.CancelFunc
	// dead: it was killed. asleep: it does not run, but its calls may be under way.
	dead, asleep bool
	// seen is how much of the log of each kind its watches have shown; mute, which watches show nothing.
	seen map[faults.Kind]int
	mute map[faults.Kind]bool
	// cached are the pools as the cache has them.
	cached map[pools.Key]v1alpha1.Pool
	// feeds are those of what there are many of.
	feeds map[faults.Kind]faults.Feed
	// broken is told of a panic.
	broken func(string)

	mu sync.Mutex
	// queues are those of the controller, one for each pool: its workers reconcile different pools at once. sorted are their
	// keys, in a fixed order.
	queues map[pools.Key]*schedule.Queue
	sorted []pools.Key
	// fenced: the lists of the watches can begin; listed: they have arrived.
	fenced atomic.Bool
	listed bool
}

// wake queues a pool. What names no pool that the world has is queued too.
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

// keys are the pools that have a queue, in a fixed order.
func (m *manager) keys() []pools.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sorted
}

// reconcile runs one reconcile of a pool, as a worker of the controller does.
func (m *manager) reconcile(key pools.Key) {
	pool := m.cached[key]
	m.queue(key).Run(func() (reconcile.Result, error) {
		result, err := m.alloc.Reconcile(m.ctx, key, pool)
		if result.RequeueAfter == 0 || result.RequeueAfter > backstop {
			result.RequeueAfter = backstop
		}
		return result, err
	}, m.broken)
}

// show feeds what a watch shows: pools as poolHandler of controllers/pool does, what there are many of through the
// feeds.
func (m *manager) show(c faults.Change) {
	if f := m.feeds[faults.RefOf(c.Object).Kind]; f != nil {
		f.Show(c)
		return
	}
	switch o := c.Object.DeepCopyObject().(type) {
	case v1alpha1.Pool:
		key := pools.KeyOf(o)
		if c.Deleted {
			delete(m.cached, key)
			m.wake(key)
			return
		}
		m.cached[key] = o
		if _, news := m.alloc.ObservePool(o); news {
			m.wake(key)
		}
	case *clusterv1.Cluster:
		for _, key := range m.alloc.ObserveCluster(o, c.Deleted) {
			m.wake(key)
		}
		for _, key := range m.alloc.PoolsWaitingFor(client.ObjectKeyFromObject(o)) {
			m.wake(key)
		}
	}
}

// replace feeds a list.
func (m *manager) replace(kind faults.Kind, listed []client.Object) {
	if f := m.feeds[kind]; f != nil {
		f.Replace(listed)
		return
	}
	uids := map[types.UID]struct{}{}
	for _, o := range listed {
		uids[o.GetUID()] = struct{}{}
		m.show(faults.Change{Object: o})
	}
	for _, o := range m.cached {
		if _, exists := uids[o.GetUID()]; !exists && faults.RefOf(o).Kind == kind {
			m.show(faults.Change{Object: o, Deleted: true})
		}
	}
}

// feed has the feeds of a manager begin.
func (m *manager) feed() {
	a, live := m.alloc, m.client.Live()
	m.feeds = map[faults.Kind]faults.Feed{}
	for _, of := range allocator.Resources() {
		m.feeds[faults.RefOf(of).Kind] = faults.NewFeed(m.ctx, of, live, a, m.wake)
	}
}

// listedAfterTakeover are the kinds that a manager lists once it has taken the pools over; it is shown nothing of them before.
var listedAfterTakeover = []faults.Kind{faults.Addresses, faults.Claims, faults.Allocations, faults.Leases}

// start starts another manager.
func (w *world) start() *manager {
	name := string(rune('a' + len(w.managers)))
	m := &manager{
		name: name, client: w.api.Client(name),
		cached: map[pools.Key]v1alpha1.Pool{}, queues: map[pools.Key]*schedule.Queue{},
		seen: map[faults.Kind]int{}, mute: map[faults.Kind]bool{}, broken: func(text string) { w.Wrongf("%s", text) },
	}
	w.pace.since = time.Now()
	m.ctx, m.kill = context.WithCancel(w.logged(w.t.Context(), name))
	m.alloc = allocator.New(allocator.Options{
		Client: m.client, Live: m.client.Live(), Lists: m.client.Lister(), Recorder: w, ID: name, Elected: w.elected,
		ManagementCluster: home, InClusterPools: true, ShrinkGrace: 20 * time.Second, MachineOf: w.machineOf,
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
	w.Notef("manager %s starts", name)
	go m.boot()
	return m
}

// boot takes the pools over before the watches begin, as controllers/pool does. A reconcile waits for them.
func (m *manager) boot() {
	if all, err := pools.List(m.ctx, m.client.Live(), ""); err == nil {
		m.alloc.Fence(m.ctx, all)
	}
	m.fenced.Store(true)
}

// relist breaks a watch: it shows nothing, until a list that is taken now arrives.
func (w *world) relist(m *manager, kind faults.Kind, delay time.Duration) {
	listed, seen := w.api.List(kind), len(w.api.Changes(kind, 0))
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
	w.After(3, delay, arrive)
}
