package fleetcidr

import (
	"context"
	"fmt"
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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/feed"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// site is a Cluster that is connected. Another connection makes another one, which takes over from it as from a stranger.
type site struct {
	*nodeipam.Site

	// connection is what it was made of.
	connection client.Client
	feed       *feed.Feed[nodeipam.Key]
	end        context.CancelFunc
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
	direct, err := client.New(cfg, client.Options{HTTPClient: httpClient, Scheme: r.Client.Scheme(), Mapper: connection.RESTMapper()})
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
	ctx, end := context.WithCancel(r.ctx)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: typed.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		end()
		return nil, err
	}
	s := &site{connection: connection, end: func() { end(); broadcaster.Shutdown() }}
	s.Site = nodeipam.NewSite(nodeipam.Options{
		Key: key, Client: nodes.Patching(direct), Live: direct, Lister: nodes,
		Objects: nodeipam.Entries{ClusterCIDRs: nodeipam.ClusterCIDRs{Client: r.Client, Live: r.Live}, Cluster: key},
		Blocks:  r.allocations(key), BlockGrace: r.BlockGrace,
		ID: string(uuid.NewUUID()), Elected: r.Elected, Workers: r.Writers, Wake: r.wake,
		Recorder: text.Recorder{EventRecorder: broadcaster.NewRecorder(r.Client.Scheme(), "butler-ipam")}, Now: r.Now,
	})
	s.feed = feed.New(&corev1.Node{}, "", nodes, direct, s.Site)
	s.feed.Run(ctx, r.wake)
	go func() {
		if s.feed.WaitForSync(ctx) == nil {
			r.wake(key)
		}
	}()
	return s, nil
}
