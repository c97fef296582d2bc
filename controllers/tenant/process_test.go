package tenant

import (
	"context"

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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// process is a manager: the controllers of Clusters and of tenants, the watches that feed them and the queues that run
// them, as SetupWithManager connects them.
type process struct {
	name       string
	mgmt, work *faults.Client
	ctx        context.Context //nolint:containedctx // the life of the process
	kill       context.CancelFunc
	// dead reports whether the process was killed; asleep reports whether it does not run, while its calls may be in
	// flight.
	dead, asleep bool

	clusters *cluster.Reconciler
	tenants  *Reconciler
	// queues are the queues of the two controllers.
	queues [2]*controllerQueue
	// blocks feeds both.
	blocks faults.Feed
	cached map[*faults.Server]*faults.Cache
	// seen is how much of the log of each kind its watches have shown; mute are the watches that show nothing.
	seen map[watched]int
	mute map[watched]bool
	// synced reports whether what exists was read once; connected reports whether live is a client of the workload
	// cluster; connectFailures is how many attempts to connect have failed.
	synced, connected bool
	// unreachable reports whether the process never reaches the workload cluster.
	unreachable     bool
	live            client.Client
	connectFailures int
	// relist reads all objects of a kind.
	relist func(watched)
}

// watched is a kind on a server.
type watched struct {
	at   *faults.Server
	kind faults.Kind
}

// controllerQueue is the queue of a controller, with at most one Cluster in it, and its one worker.
type controllerQueue struct {
	index.Queue

	reconciler reconcile.Reconciler
	// onPanic receives the text of a panic.
	onPanic func(string)

	queue schedule.Queue
	// runs counts the reconciles.
	runs int
}

func (l *controllerQueue) Add(reconcile.Request) { l.queue.Wake() }

// run runs one reconcile.
func (l *controllerQueue) run(ctx context.Context) {
	l.runs++
	l.queue.RunReconcile(func() (reconcile.Result, error) {
		return l.reconciler.Reconcile(ctx, reconcile.Request{NamespacedName: clusterKey})
	}, l.onPanic)
}

// noopRecorder drops events.
type noopRecorder struct{}

func (noopRecorder) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// unwatched is the controller that watches begin with: here the world shows everything.
type unwatched struct{ controller.Controller }

func (unwatched) Watch(source.TypedSource[reconcile.Request]) error { return nil }

// cachedClient writes to a server, and reads from a cache.
type cachedClient struct {
	client.Client
	from client.Reader
}

func (r cachedClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return r.from.Get(ctx, key, o, opts...)
}

func (r cachedClient) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return r.from.List(ctx, l, opts...)
}

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
	return cachedClient{Client: c.p.live, from: c.p.cached[c.p.workload()]}, nil
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

func newProcess(ctx context.Context, name string, mgmt, work *faults.Server) *process {
	p := &process{
		name: name, mgmt: mgmt.NewClient(name), work: work.NewClient(name),
		cached: map[*faults.Server]*faults.Cache{mgmt: faults.NewCache(), work: faults.NewCache()},
		seen:   map[watched]int{}, mute: map[watched]bool{},
	}
	p.ctx, p.kill = context.WithCancel(ctx)
	writes := &pace.WritePacer{Clock: clock.RealClock{}}
	c := cachedClient{Client: writes.WrapClient(p.mgmt), from: p.cached[mgmt]}
	index := &index.BlockIndex{}
	p.clusters = &cluster.Reconciler{
		Client: c, Live: p.mgmt.LiveReader(), Recorder: noopRecorder{}, LoadBalancers: true, Blocks: index,
		NeedsPodCIDRs: func(context.Context, *clusterv1.Cluster) bool { return false },
	}
	p.tenants = &Reconciler{
		Client: c, Live: p.mgmt.LiveReader(), Recorder: noopRecorder{}, Blocks: index, Synced: func() bool { return p.synced },
		Clusters: connections{p: p}, Writes: writes, Clock: clock.RealClock{}, GracePeriod: grace, controller: unwatched{},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) {
			for _, kind := range objectKinds {
				p.relist(watched{work, kind})
			}
			return objectsCache{from: p.cached[work]}, nil
		},
	}
	p.blocks = faults.NewFeed(p.ctx, &v1alpha1.IPAllocation{}, p.mgmt.LiveReader(), index.WithIndexing(emptyMemory{index}), nil)
	for i, r := range []reconcile.Reconciler{p.clusters, p.tenants} {
		p.queues[i] = &controllerQueue{reconciler: r, queue: schedule.Queue{MaxBackoff: guard.MaxBackoff}}
		p.queues[i].queue.Wake()
		_ = index.NewSource().Start(ctx, p.queues[i]) // nothing can fail
	}
	return p
}

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

// workload returns the server of the workload cluster.
func (p *process) workload() *faults.Server { return p.work.Server() }

func (p *process) wake() {
	for _, l := range p.queues {
		l.Add(reconcile.Request{})
	}
}

// show feeds what a watch shows.
func (p *process) show(w watched, c faults.Change) {
	switch o := c.Object.DeepCopyObject().(type) {
	case *v1alpha1.IPAllocation:
		p.blocks.ShowChange(c)
	case *v1alpha1.NetworkPool:
		was := &v1alpha1.NetworkPool{}
		known := p.cached[w.at].Get(p.ctx, client.ObjectKeyFromObject(o), was) == nil
		p.cached[w.at].ShowChange(c)
		if !known || c.Deleted || lookup.MoreRoomPredicate.Update(event.UpdateEvent{ObjectOld: was, ObjectNew: o}) {
			for i, waiting := range []func(context.Context, client.Object) []reconcile.Request{p.clusters.ClustersWaitingForPool, p.tenants.clustersWaitingForPool} {
				if len(waiting(p.ctx, o)) > 0 {
					p.queues[i].Add(reconcile.Request{})
				}
			}
		}
	default:
		p.cached[w.at].ShowChange(c)
		if w.at == p.workload() {
			p.queues[1].Add(reconcile.Request{})
		} else {
			p.wake()
		}
	}
}

// replace feeds a list: for IPAllocations, what is missing in it is read live.
func (p *process) replace(w watched, listed []client.Object) {
	if w.kind != faults.Allocations {
		p.cached[w.at].ReplaceKind(w.kind, listed)
		p.wake()
		return
	}
	p.blocks.ReplaceAll(listed)
}
