package allocator_test

import (
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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// manager is an allocator, the watches that feed it and the queues that run it, as controllers/pool wires them.
type manager struct {
	*sim.Process

	client *faults.Client
	alloc  *allocator.Allocator
	// cached are the pools as the cache has them.
	cached map[pools.Key]v1alpha1.Pool
	// feeds are the feeds of the numerous kinds.
	feeds map[faults.Kind]faults.Feed

	mu sync.Mutex
	// queues are those of the controller, one for each pool: its workers reconcile different pools at once. sorted are
	// the same, in a fixed order.
	queues map[pools.Key]*sim.Queue
	sorted []*sim.Queue
	// fenced reports whether the lists of the watches can begin.
	fenced atomic.Bool
}

// wake queues a pool, also one that the world does not have.
func (m *manager) wake(key pools.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues[key] == nil {
		m.queues[key] = &sim.Queue{Name: key.Name, MaxBackoff: backstop, Reconcile: func() (reconcile.Result, error) { return m.reconcile(key) }}
		m.sorted = nil
		for _, key := range slices.SortedFunc(maps.Keys(m.queues), func(a, b pools.Key) int { return strings.Compare(a.String(), b.String()) }) {
			m.sorted = append(m.sorted, m.queues[key])
		}
	}
	m.queues[key].Wake()
}

// Queues implements sim.Manager.
func (m *manager) Queues() []*sim.Queue {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sorted
}

// reconcile runs one reconcile of a pool, as a worker of the controller does.
func (m *manager) reconcile(key pools.Key) (reconcile.Result, error) {
	result, err := m.alloc.Reconcile(m.Context, key, m.cached[key])
	if result.RequeueAfter == 0 || result.RequeueAfter > backstop {
		result.RequeueAfter = backstop
	}
	return result, err
}

// ShowChange implements sim.Manager: it shows pools as newPoolHandler of controllers/pool does, and numerous kinds
// through the feeds.
func (m *manager) ShowChange(c faults.Change) {
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

// ReplaceKind implements sim.Manager.
func (m *manager) ReplaceKind(kind faults.Kind, listed []client.Object) {
	if f := m.feeds[kind]; f != nil {
		f.ReplaceAll(listed)
		return
	}
	uids := map[types.UID]struct{}{}
	for _, o := range listed {
		uids[o.GetUID()] = struct{}{}
		m.ShowChange(faults.Change{Object: o})
	}
	for _, o := range m.cached {
		if _, exists := uids[o.GetUID()]; !exists && faults.RefForObject(o).Kind == kind {
			m.ShowChange(faults.Change{Object: o, Deleted: true})
		}
	}
}

// feed starts the feeds of a manager.
func (m *manager) feed() {
	a, live := m.alloc, m.client.LiveReader()
	m.feeds = map[faults.Kind]faults.Feed{}
	for _, of := range allocator.WatchedObjects() {
		m.feeds[faults.RefForObject(of).Kind] = faults.NewFeed(m.Context, of, live, a, m.wake)
	}
}

// listedAfterTakeover are the kinds that a manager lists once it has taken the pools over; it sees nothing of them
// before.
var listedAfterTakeover = []faults.Kind{faults.Addresses, faults.Claims, faults.Allocations, faults.Leases}

// start starts another manager.
func (w *world) start() *manager {
	m := &manager{Process: w.NewProcess(), cached: map[pools.Key]v1alpha1.Pool{}, queues: map[pools.Key]*sim.Queue{}}
	m.AddWatches(w.api, faults.AllocatorKinds...)
	m.client = w.api.NewClient(m.Name)
	w.pace.since = time.Now()
	m.Context = w.withErrorCounter(m.Context, m.Name)
	m.alloc = allocator.New(allocator.Options{
		Client: m.client, Live: m.client.LiveReader(), Lister: m.client.Lister(), Recorder: w, ManagerID: m.Name, Elected: w.elected,
		ManagementCluster: home, InClusterPools: true, ShrinkGrace: 20 * time.Second, FindMachine: w.machineOf,
	})
	m.alloc.Start(m.Context, m.wake)
	m.feed()
	m.wake(poolKey)
	w.relist(m, faults.Pools, 0)
	w.relist(m, faults.GlobalPools, 0)
	m.MuteWatches(listedAfterTakeover...)
	w.AddManager(m)
	go m.takeOverPools()
	return m
}

// firstLists returns the step in which a manager that has taken the pools over lists the other kinds: a reconcile waits
// for that.
func (w *world) firstLists(m *manager) []sim.Step {
	if !m.fenced.Load() || m.Synced {
		return nil
	}
	return []sim.Step{{Class: sim.WatchEvent, Text: m.Name + ": the first lists", Run: func() {
		m.Synced = true
		for _, kind := range listedAfterTakeover {
			w.relist(m, kind, 0)
		}
	}}}
}

// takeOverPools takes the pools over before the watches begin, as controllers/pool does.
func (m *manager) takeOverPools() {
	if all, err := pools.List(m.Context, m.client.LiveReader(), ""); err == nil {
		m.alloc.FencePools(m.Context, all)
	}
	m.fenced.Store(true)
}

// relist breaks a watch: it shows nothing until a list that is taken now arrives.
func (w *world) relist(m *manager, kind faults.Kind, delay time.Duration) {
	w.Relist(m, kind, 3, delay)
}
