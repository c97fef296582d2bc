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

// rightsFile has the rights that the user of a kubeconfig needs in a workload cluster.
const rightsFile = "config/tenant/node_cidrs_role.yaml"

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// site is a Cluster that is connected. Another connection makes another one, which takes over from it as from a stranger.
type site struct {
	*nodeipam.Site

	// connection is what it was made of, direct its own client.
	connection client.Client
	direct     client.WithWatch
	feed       *feed.Feed[nodeipam.Key]
	// services are its ServiceCIDRs, serviceFeed their feed; nil: it has none.
	services    *nodeipam.Services
	serviceFeed *feed.Feed[nodeipam.Key]
	// begin has a feed run as long as the site.
	begin func(*feed.Feed[nodeipam.Key])
	end   context.CancelFunc
	// reported is when it was last looked at what is known of it, shown when its condition was written.
	reported, shown time.Time
}

// sites are those of the Clusters that are connected. Its zero value has none.
type sites struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]*site
}

func (s *sites) of(key nodeipam.Key) *site {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[key]
}

func (s *sites) put(key nodeipam.Key, is *site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[types.NamespacedName]*site{}
	}
	s.byKey[key] = is
}

// all are those of the Clusters that are connected at the moment.
func (s *sites) all() []*nodeipam.Site {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*nodeipam.Site
	for _, is := range s.byKey {
		out = append(out, is.Site)
	}
	return out
}

// Sites are those of the Clusters that are connected at the moment.
func (r *Reconciler) Sites() []*nodeipam.Site { return r.sites.all() }

// end forgets the site of a Cluster.
func (s *sites) end(key nodeipam.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is := s.byKey[key]; is != nil {
		is.end()
		is.Close()
		delete(s.byKey, key)
	}
}

// endOf forgets the site of a Cluster, if it is of a connection.
func (s *sites) endOf(key nodeipam.Key, connection client.Client) {
	if is := s.of(key); is != nil && is.connection == connection {
		s.end(key)
	}
}

// connect returns the site of a Cluster, of the connection that there is now.
func (r *Reconciler) connect(ctx context.Context, key nodeipam.Key) (*site, error) {
	connection, err := r.Clusters.GetUncachedClient(ctx, key)
	if err != nil {
		return nil, err
	}
	if s := r.sites.of(key); s != nil && s.connection == connection {
		return s, nil
	}
	r.sites.end(key)
	cfg, err := r.Clusters.GetRESTConfig(ctx, key)
	if err != nil {
		return nil, err
	}
	s, err := r.newSite(key, connection, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to Cluster %s: %w", key, err)
	}
	r.sites.put(key, s)
	return s, nil
}

// newSite makes a site, and begins to watch its Nodes. Its clients are its own: those of the connection are limited to
// some requests a second, and to some seconds for each, which no watch lasts.
func (r *Reconciler) newSite(key nodeipam.Key, connection client.Client, of *rest.Config) (*site, error) {
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
	nodes.WentBack = func(err *stream.WentBackError) {
		log.FromContext(r.ctx).Info("The etcd of a Cluster was put back: all that is known of its Nodes is read anew", "cluster", key.String(), "reason", err.Error())
		go func() { // which may read under a lock
			r.sites.endOf(key, connection)
			r.wake(key)
		}()
	}
	ctx, end := context.WithCancel(r.ctx)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: typed.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		end()
		return nil, err
	}
	s := &site{connection: connection, direct: direct, services: nodeipam.NewServices(key), end: func() { end(); broadcaster.Shutdown() }}
	s.Site = nodeipam.NewSite(nodeipam.Options{
		Key: key, Client: nodes.Patching(direct), Live: direct, Lister: nodes,
		Objects: nodeipam.Entries{ClusterCIDRs: nodeipam.ClusterCIDRs{Client: r.Holder, Live: r.Live}, Cluster: key},
		Blocks:  r.allocations(key), BlockGrace: r.BlockGrace,
		ID: string(uuid.NewUUID()), Elected: r.Elected, Workers: r.Writers, Wake: r.wake,
		Recorder: text.Recorder{EventRecorder: broadcaster.NewRecorder(r.Client.Scheme(), "butler-ipam")}, Now: r.Now,
	})
	s.feed = feed.New(&corev1.Node{}, "", nodes, direct, s.Site)
	s.begin = func(f *feed.Feed[nodeipam.Key]) {
		f.OnRefusal = func() { r.wake(key) }
		f.Run(ctx, r.wake)
		go func() {
			if f.WaitForSync(ctx) == nil {
				r.wake(key)
			}
		}()
	}
	s.begin(s.feed)
	return s, nil
}

// feeds are those of the site that run.
func (s *site) feeds() []*feed.Feed[nodeipam.Key] {
	if s.serviceFeed == nil {
		return []*feed.Feed[nodeipam.Key]{s.feed}
	}
	return []*feed.Feed[nodeipam.Key]{s.feed, s.serviceFeed}
}

// isRead reports whether all that is to be known before a Node is given anything was read once.
func (s *site) isRead() bool {
	return !slices.ContainsFunc(s.feeds(), func(f *feed.Feed[nodeipam.Key]) bool { return !f.HasSynced() })
}

// refused says what the user of the kubeconfig may not read; nil: nothing is refused.
func (s *site) refused() error {
	for _, f := range s.feeds() {
		if err := f.Refused(); err != nil {
			return refusal(s.Key, err)
		}
	}
	return nil
}

// refusal says what to do about what the API server of a workload cluster refuses.
func refusal(cluster client.ObjectKey, err error) error {
	return workloads.Refusal(cluster, err, "new Nodes wait", rightsFile)
}
