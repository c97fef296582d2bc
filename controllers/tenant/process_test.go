package tenant

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/cluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// process is a manager: the controllers of Clusters and of tenants, the watches that feed them and the queues that run
// them, as SetupWithManager connects them.
type process struct {
	*sim.Process

	clusters *cluster.Reconciler
	tenants  *Reconciler
	// queues are the queues of the two controllers.
	queues []*sim.Queue
	// blocks feeds both.
	blocks faults.Feed
	// cache holds the objects of both clusters.
	cache *faults.Cache
	// synced reports whether what exists was read once; connected reports whether live is a client of the workload
	// cluster; connectFailures is how many attempts to connect have failed.
	synced, connected bool
	// unreachable reports whether the process never reaches the workload cluster.
	unreachable     bool
	live            client.Client
	connectFailures int
	// relist reads all objects of a kind.
	relist func(faults.Kind)
}

// controllerQueue is the queue of a controller, with at most one Cluster in it.
type controllerQueue struct {
	index.Queue

	queue *sim.Queue
}

func (l controllerQueue) Add(reconcile.Request) { l.queue.Wake() }

// noopRecorder drops events.
type noopRecorder struct{}

func (noopRecorder) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// unwatched is the controller that watches begin with: here the world shows everything.
type unwatched struct{ controller.Controller }

func (unwatched) Watch(source.TypedSource[reconcile.Request]) error { return nil }

// objectsCache reads the objects of load balancers from what watches have shown.
type objectsCache struct {
	cache.Cache
	from *faults.Cache
}

func (c objectsCache) Start(context.Context) error { return nil }

func (c objectsCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, o, opts...)
}

func (c objectsCache) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return c.from.List(ctx, l, opts...)
}

// connections are the connections of a process to the workload cluster.
type connections struct {
	clustercache.ClusterCache
	p *process
}

func (c connections) GetClient(context.Context, client.ObjectKey) (client.Client, error) {
	if !c.p.connected {
		return nil, clustercache.ErrClusterNotConnected
	}
	return faults.NewCachedClient(c.p.live, c.p.cache), nil
}

func (c connections) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	if !c.p.connected {
		return nil, clustercache.ErrClusterNotConnected
	}
	return c.p.live, nil
}

func (c connections) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	if !c.p.connected {
		return nil, clustercache.ErrClusterNotConnected
	}
	return &rest.Config{}, nil
}

func (c connections) Watch(context.Context, client.ObjectKey, clustercache.Watcher) error { return nil }

func (c connections) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{ConsecutiveFailures: c.p.connectFailures}
}

// newProcess returns a manager of two API servers; ctx outlives it.
func newProcess(ctx context.Context, of *sim.Process, mgmt, work *faults.Server) *process {
	p := &process{Process: of, cache: faults.NewCache()}
	p.Synced = true
	p.AddWatches(mgmt, mgmtKinds...)
	p.AddWatches(mgmt, faults.Allocations)
	p.AddWatches(work, workKinds...)
	writes, live := &pace.WritePacer{Clock: clock.RealClock{}}, mgmt.NewClient(p.Name).LiveReader()
	c := faults.NewCachedClient(writes.WrapClient(mgmt.NewClient(p.Name)), p.cache)
	index := &index.BlockIndex{}
	p.clusters = &cluster.Reconciler{
		Client: c, Live: live, Recorder: noopRecorder{}, LoadBalancers: true, Blocks: index,
		NeedsPodCIDRs: func(context.Context, *clusterv1.Cluster) bool { return false },
	}
	p.tenants = &Reconciler{
		Client: c, Live: live, Recorder: noopRecorder{}, Blocks: index, Synced: func() bool { return p.synced },
		Clusters: connections{p: p}, Writes: writes, Clock: clock.RealClock{}, GracePeriod: grace, controller: unwatched{},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) {
			for _, kind := range objectKinds {
				p.relist(kind)
			}
			return objectsCache{from: p.cache}, nil
		},
	}
	p.blocks = faults.NewFeed(p.Context, &v1alpha1.IPAllocation{}, live, index.WithIndexing(emptyMemory{index}), nil)
	for i, r := range []reconcile.Reconciler{p.clusters, p.tenants} {
		q := &sim.Queue{Name: []string{"cluster", "tenant"}[i], MaxBackoff: guard.MaxBackoff, Reconcile: func() (reconcile.Result, error) {
			return r.Reconcile(p.Context, reconcile.Request{NamespacedName: clusterKey})
		}}
		q.Wake()
		p.queues = append(p.queues, q)
		_ = index.NewSource().Start(ctx, controllerQueue{queue: q}) // nothing can fail
	}
	return p
}

// Queues implements sim.Manager.
func (p *process) Queues() []*sim.Queue { return p.queues }

// emptyMemory is the memory of pools, which is no part of this world: it has what the index has.
type emptyMemory struct{ index *index.BlockIndex }

func (emptyMemory) ObserveObject(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (emptyMemory) ForgetObject(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (e emptyMemory) ObjectsNotListed(_ client.Object, listed map[types.UID]struct{}) (out []client.Object) {
	for _, a := range e.index.LoadBalancerBlocks(clusterKey) {
		if _, ok := listed[a.UID]; !ok {
			out = append(out, a)
		}
	}
	return out
}

func (p *process) wake() {
	for _, q := range p.queues {
		q.Wake()
	}
}

// ShowChange implements sim.Manager.
func (p *process) ShowChange(c faults.Change) {
	switch o := c.Object.DeepCopyObject().(type) {
	case *v1alpha1.IPAllocation:
		p.blocks.ShowChange(c)
	case *v1alpha1.NetworkPool:
		was := &v1alpha1.NetworkPool{}
		known := p.cache.Get(p.Context, client.ObjectKeyFromObject(o), was) == nil
		p.cache.ShowChange(c)
		if !known || c.Deleted || lookup.MoreRoomPredicate.Update(event.UpdateEvent{ObjectOld: was, ObjectNew: o}) {
			for i, waiting := range []func(context.Context, client.Object) []reconcile.Request{p.clusters.ClustersWaitingForPool, p.tenants.clustersWaitingForPool} {
				if len(waiting(p.Context, o)) > 0 {
					p.queues[i].Wake()
				}
			}
		}
	default:
		p.cache.ShowChange(c)
		if slices.Contains(workKinds, faults.RefForObject(c.Object).Kind) {
			p.queues[1].Wake()
		} else {
			p.wake()
		}
	}
}

// ReplaceKind implements sim.Manager: of IPAllocations, what is missing in the list is read live.
func (p *process) ReplaceKind(kind faults.Kind, listed []client.Object) {
	if kind == faults.Allocations {
		p.blocks.ReplaceAll(listed)
		return
	}
	p.cache.ReplaceKind(kind, listed)
	p.wake()
}
