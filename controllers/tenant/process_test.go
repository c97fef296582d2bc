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

// process is a manager: the controllers of Clusters and of tenants, the watches that feed them and the queues that
// run them, as SetupWithManager wires them.
type process struct {
	name       string
	mgmt, work *faults.Client
	ctx        context.Context //nolint:containedctx // the life of the process
	kill       context.CancelFunc
	// dead: it was killed. asleep: it does not run, but its calls may be under way.
	dead, asleep bool

	clusters *cluster.Reconciler
	tenants  *Reconciler
	// lines are the queues of the two.
	lines [2]*line
	// blocks are fed to both.
	blocks faults.Feed
	cached map[*faults.Server]*faults.Cache
	// seen is how much of the log of each kind its watches have shown; mute, which watches show nothing.
	seen map[watched]int
	mute map[watched]bool
	// synced: what exists was read once. connected: live is a client of the workload cluster, and failed is how often
	// it was tried in vain.
	synced, connected bool
	// cut: it never reaches the workload cluster.
	cut    bool
	live   client.Client
	failed int
	// relist reads all of a kind.
	relist func(watched)
}

// watched is a kind on a server.
type watched struct {
	at   *faults.Server
	kind faults.Kind
}

// line is the queue of a controller, with one Cluster in it at most, and its one worker.
type line struct {
	index.Queue

	reconciler reconcile.Reconciler
	// broken is told of a panic.
	broken func(string)

	queue schedule.Queue
	// runs counts the reconciles.
	runs int
}

func (l *line) Add(reconcile.Request) { l.queue.Wake() }

// run runs one reconcile.
func (l *line) run(ctx context.Context) {
	l.runs++
	l.queue.Run(func() (reconcile.Result, error) {
		return l.reconciler.Reconcile(ctx, reconcile.Request{NamespacedName: clusterKey})
	}, l.broken)
}

// quietly drops events.
type quietly struct{}

func (quietly) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// unwatched is the controller that watches begin with: here the world shows everything.
type unwatched struct{ controller.Controller }

func (unwatched) Watch(source.TypedSource[reconcile.Request]) error { return nil }

// reads writes to a server, and reads from a cache.
type reads struct {
	client.Client
	from client.Reader
}

func (r reads) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return r.from.Get(ctx, key, o, opts...)
}

func (r reads) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return r.from.List(ctx, l, opts...)
}

// objectsCache reads load balancers from what watches have shown.
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

// connections are those of a process to the workload cluster.
type connections struct {
	clustercache.ClusterCache
	p *process
}

func (c connections) GetClient(context.Context, client.ObjectKey) (client.Client, error) {
	if !c.p.connected {
		return nil, clustercache.ErrClusterNotConnected
	}
	return reads{Client: c.p.live, from: c.p.cached[c.p.workload()]}, nil
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
	return clustercache.HealthCheckingState{ConsecutiveFailures: c.p.failed}
}

func newProcess(ctx context.Context, name string, mgmt, work *faults.Server) *process {
	p := &process{
		name: name, mgmt: mgmt.Client(name), work: work.Client(name),
		cached: map[*faults.Server]*faults.Cache{mgmt: faults.NewCache(), work: faults.NewCache()},
		seen:   map[watched]int{}, mute: map[watched]bool{},
	}
	p.ctx, p.kill = context.WithCancel(ctx)
	writes := &pace.Writes{Clock: clock.RealClock{}}
	c := reads{Client: writes.Client(p.mgmt), from: p.cached[mgmt]}
	index := &index.Blocks{}
	p.clusters = &cluster.Reconciler{
		Client: c, Live: p.mgmt.Live(), Recorder: quietly{}, LoadBalancers: true, Blocks: index,
		NodesWant: func(context.Context, *clusterv1.Cluster) bool { return false },
	}
	p.tenants = &Reconciler{
		Client: c, Live: p.mgmt.Live(), Recorder: quietly{}, Blocks: index, Synced: func() bool { return p.synced },
		Clusters: connections{p: p}, Writes: writes, Clock: clock.RealClock{}, Grace: grace, controller: unwatched{},
		NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) {
			for _, kind := range objectKinds {
				p.relist(watched{work, kind})
			}
			return objectsCache{from: p.cached[work]}, nil
		},
	}
	p.blocks = faults.NewFeed(p.ctx, &v1alpha1.IPAllocation{}, p.mgmt.Live(), index.Beside(elsewhere{index}), nil)
	for i, r := range []reconcile.Reconciler{p.clusters, p.tenants} {
		p.lines[i] = &line{reconciler: r, queue: schedule.Queue{MaxBackoff: guard.MostBackoff}}
		p.lines[i].queue.Wake()
		_ = index.Source().Start(ctx, p.lines[i]) // there is nothing that fails
	}
	return p
}

// elsewhere is the memory of pools, which is no part of this world: it has what the index has.
type elsewhere struct{ index *index.Blocks }

func (elsewhere) Observe(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (elsewhere) Forget(client.Object) (pools.Key, bool) { return pools.Key{}, false }

func (e elsewhere) Beyond(_ client.Object, listed map[types.UID]struct{}) (out []client.Object) {
	for _, a := range e.index.Of(clusterKey) {
		if _, is := listed[a.UID]; !is {
			out = append(out, a)
		}
	}
	return out
}

// workload is the server of the workload cluster.
func (p *process) workload() *faults.Server { return p.work.Server() }

func (p *process) wake() {
	for _, l := range p.lines {
		l.Add(reconcile.Request{})
	}
}

// show feeds what a watch shows.
func (p *process) show(w watched, c faults.Change) {
	switch o := c.Object.DeepCopyObject().(type) {
	case *v1alpha1.IPAllocation:
		p.blocks.Show(c)
	case *v1alpha1.NetworkPool:
		was := &v1alpha1.NetworkPool{}
		known := p.cached[w.at].Get(p.ctx, client.ObjectKeyFromObject(o), was) == nil
		p.cached[w.at].Show(c)
		if !known || c.Deleted || lookup.MoreRoom.Update(event.UpdateEvent{ObjectOld: was, ObjectNew: o}) {
			for i, waiting := range []func(context.Context, client.Object) []reconcile.Request{p.clusters.WaitingFor, p.tenants.waitingFor} {
				if len(waiting(p.ctx, o)) > 0 {
					p.lines[i].Add(reconcile.Request{})
				}
			}
		}
	default:
		p.cached[w.at].Show(c)
		if w.at == p.workload() {
			p.lines[1].Add(reconcile.Request{})
		} else {
			p.wake()
		}
	}
}

// replace feeds a list: of IPAllocations, what is missing in it is looked up live.
func (p *process) replace(w watched, listed []client.Object) {
	if w.kind != faults.Allocations {
		p.cached[w.at].Replace(w.kind, listed)
		p.wake()
		return
	}
	p.blocks.Replace(listed)
}
