package fleetcidr

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// roleFile has the rights that the user of a kubeconfig needs in a workload cluster.
const roleFile = "config/tenant/node_cidrs_role.yaml"

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// connectedCluster is a Cluster with a connection. A new connection makes a new one, which takes over from it as from
// any other manager.
type connectedCluster struct {
	*nodeipam.ClusterAllocator

	// uncachedClient is the client of the connection that it was made from; directClient is its own client.
	uncachedClient client.Client
	directClient   client.WithWatch
	nodeFeed       *feed.Feed[nodeipam.ClusterKey]
	// serviceCIDRs are the ServiceCIDRs of the cluster, serviceCIDRFeed is their feed; a nil feed means that the
	// cluster has no ServiceCIDR objects.
	serviceCIDRs    *nodeipam.ServiceCIDRStore
	serviceCIDRFeed *feed.Feed[nodeipam.ClusterKey]
	// startFeed runs a feed for as long as the allocator.
	startFeed func(*feed.Feed[nodeipam.ClusterKey])
	stop      context.CancelFunc
	// reportedAt is when the last report was built, conditionWrittenAt is when the condition was last written.
	reportedAt, conditionWrittenAt time.Time
}

// connectedClusters are the Clusters with a connection. The zero value has none.
type connectedClusters struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]*connectedCluster
}

func (cs *connectedClusters) get(key nodeipam.ClusterKey) *connectedCluster {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.byKey[key]
}

func (cs *connectedClusters) put(key nodeipam.ClusterKey, connected *connectedCluster) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byKey == nil {
		cs.byKey = map[types.NamespacedName]*connectedCluster{}
	}
	cs.byKey[key] = connected
}

// allocators returns the allocators of the Clusters that are connected at the moment.
func (cs *connectedClusters) allocators() []*nodeipam.ClusterAllocator {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var out []*nodeipam.ClusterAllocator
	for _, connected := range cs.byKey {
		out = append(out, connected.ClusterAllocator)
	}
	return out
}

// ClusterAllocators returns the allocators of the Clusters that are connected at the moment.
func (r *Reconciler) ClusterAllocators() []*nodeipam.ClusterAllocator {
	return r.connectedClusters.allocators()
}

// disconnect closes and forgets the allocator of a Cluster.
func (cs *connectedClusters) disconnect(key nodeipam.ClusterKey) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if connected := cs.byKey[key]; connected != nil {
		connected.stop()
		connected.Close()
		delete(cs.byKey, key)
	}
}

// disconnectClient closes and forgets the allocator of a Cluster, if it was made from the given connection.
func (cs *connectedClusters) disconnectClient(key nodeipam.ClusterKey, connection client.Client) {
	if connected := cs.get(key); connected != nil && connected.uncachedClient == connection {
		cs.disconnect(key)
	}
}

// connectCluster returns the connected Cluster for the current connection.
func (r *Reconciler) connectCluster(ctx context.Context, key nodeipam.ClusterKey) (*connectedCluster, error) {
	connection, err := r.Clusters.GetUncachedClient(ctx, key)
	if err != nil {
		return nil, err
	}
	if s := r.connectedClusters.get(key); s != nil && s.uncachedClient == connection {
		return s, nil
	}
	r.connectedClusters.disconnect(key)
	cfg, err := r.Clusters.GetRESTConfig(ctx, key)
	if err != nil {
		return nil, err
	}
	s, err := r.newConnectedCluster(key, connection, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to Cluster %s: %w", key, err)
	}
	r.connectedClusters.put(key, s)
	return s, nil
}

// newConnectedCluster makes an allocator, and begins to watch its Nodes. It has its own clients: those of the
// connection are limited in requests per second, and have a timeout of some seconds, which is too short for a watch.
func (r *Reconciler) newConnectedCluster(key nodeipam.ClusterKey, connection client.Client, of *rest.Config) (*connectedCluster, error) {
	cfg := rest.CopyConfig(of)
	cfg.QPS, cfg.Burst, cfg.Timeout, cfg.DisableCompression = -1, -1, 0, true
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	direct, err := client.NewWithWatch(cfg, client.Options{HTTPClient: httpClient, Scheme: r.Client.Scheme(), Mapper: connection.RESTMapper()})
	if err != nil {
		return nil, err
	}
	nodes, err := stream.New(cfg, httpClient, r.Client.Scheme())
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfigAndClient(cfg, httpClient)
	if err != nil {
		return nil, err
	}
	nodes.OnRollback = func(err *stream.VersionRollbackError) {
		log.FromContext(r.ctx).Info("The etcd of a Cluster was put back; reading all state of its Nodes again", "cluster", key.String(), "reason", err.Error())
		go func() { // this may be called with a lock held
			r.connectedClusters.disconnectClient(key, connection)
			r.enqueueCluster(key)
		}()
	}
	ctx, end := context.WithCancel(r.ctx)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: typed.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		end()
		return nil, err
	}
	s := &connectedCluster{uncachedClient: connection, directClient: direct, serviceCIDRs: nodeipam.NewServiceCIDRStore(key), stop: func() { end(); broadcaster.Shutdown() }}
	s.ClusterAllocator = nodeipam.NewClusterAllocator(nodeipam.Options{
		ClusterKey: key, Client: nodes.NewPatchingClient(direct), Live: direct, Lister: nodes,
		ObjectProtector: nodeipam.EntryProtector{ClusterCIDRProtector: nodeipam.ClusterCIDRProtector{Client: r.EntryClient, Live: r.Live}, ClusterKey: key},
		BlockClient:     r.newAllocationClient(key), BlockGracePeriod: r.BlockGracePeriod,
		ManagerID: string(uuid.NewUUID()), Elected: r.Elected, Workers: r.WriteWorkers, Enqueue: r.enqueueCluster,
		Recorder: text.Recorder{EventRecorder: broadcaster.NewRecorder(r.Client.Scheme(), "butler-ipam")}, Now: r.Now,
	})
	s.nodeFeed = feed.New(&corev1.Node{}, "", nodes, direct, s.ClusterAllocator)
	s.startFeed = func(f *feed.Feed[nodeipam.ClusterKey]) {
		f.OnRefusal = func() { r.enqueueCluster(key) }
		f.Run(ctx, r.enqueueCluster)
		go func() {
			if f.WaitForSync(ctx) == nil {
				r.enqueueCluster(key)
			}
		}()
	}
	s.startFeed(s.nodeFeed)
	return s, nil
}

// activeFeeds returns the feeds that run.
func (cc *connectedCluster) activeFeeds() []*feed.Feed[nodeipam.ClusterKey] {
	if cc.serviceCIDRFeed == nil {
		return []*feed.Feed[nodeipam.ClusterKey]{cc.nodeFeed}
	}
	return []*feed.Feed[nodeipam.ClusterKey]{cc.nodeFeed, cc.serviceCIDRFeed}
}

// hasSynced reports whether everything was read once that has to be known before a Node is granted anything.
func (cc *connectedCluster) hasSynced() bool {
	return !slices.ContainsFunc(cc.activeFeeds(), func(f *feed.Feed[nodeipam.ClusterKey]) bool { return !f.HasSynced() })
}

// feedError returns what the user of the kubeconfig may not read; nil means that nothing is refused.
func (cc *connectedCluster) feedError() error {
	for _, f := range cc.activeFeeds() {
		if err := f.RefusalError(); err != nil {
			return newRefusalError(cc.ClusterKey, err)
		}
	}
	return nil
}

// newRefusalError returns an error with advice on a request that the API server of a workload cluster refuses.
func newRefusalError(cluster client.ObjectKey, err error) error {
	return workloads.NewAccessError(cluster, err, "new Nodes wait", roleFile)
}
