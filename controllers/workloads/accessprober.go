package workloads

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
)

const (
	// probeTimeout bounds one request to an API server; maxConcurrentProbes is how many are probed at once.
	probeTimeout        = 10 * time.Second
	maxConcurrentProbes = 4
)

// AccessProber holds the answers of the API servers to which clustercache gets no connection. clustercache does not
// expose the reason: to it, a server that refuses access looks like one that is away. The zero value knows nothing.
type AccessProber struct {
	mu         sync.Mutex
	byCluster  map[client.ObjectKey]*accessProbe
	probeSlots chan struct{}
}

type accessProbe struct {
	inFlight  bool
	accessErr error
}

// LastAccessError returns what the API server of a Cluster refused when it was last probed, nil if nothing is known to
// be refused, and starts another probe; wake is called when the answer changes. It does not wait for the server.
func (a *AccessProber) LastAccessError(ctx context.Context, live client.Reader, cluster client.ObjectKey, wake func()) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byCluster == nil {
		a.byCluster, a.probeSlots = map[client.ObjectKey]*accessProbe{}, make(chan struct{}, maxConcurrentProbes)
	}
	probe := a.byCluster[cluster]
	if probe == nil {
		probe = &accessProbe{}
		a.byCluster[cluster] = probe
	}
	if !probe.inFlight {
		probe.inFlight = true
		go a.probeCluster(context.WithoutCancel(ctx), live, cluster, probe, wake)
	}
	return probe.accessErr
}

// ForgetCluster forgets what is known of a Cluster.
func (a *AccessProber) ForgetCluster(cluster client.ObjectKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byCluster, cluster)
}

func (a *AccessProber) probeCluster(ctx context.Context, live client.Reader, cluster client.ObjectKey, probe *accessProbe, wake func()) {
	a.probeSlots <- struct{}{}
	why := probeAPIServer(ctx, live, cluster)
	<-a.probeSlots
	if a.recordResult(probe, why) {
		wake()
	}
}

func (a *AccessProber) recordResult(probe *accessProbe, why error) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = fmt.Sprint(probe.accessErr) != fmt.Sprint(why)
	probe.inFlight, probe.accessErr = false, why
	return changed
}

// probeAPIServer sends the request with which clustercache checks whether a server answers, and returns what is
// refused.
func probeAPIServer(ctx context.Context, live client.Reader, cluster client.ObjectKey) error {
	config, err := kubeconfig.RESTConfigForCluster(ctx, live, cluster)
	if err != nil {
		return nil //nolint:nilerr // MissingKubeconfigReason says so
	}
	config.Timeout = probeTimeout
	asking, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil //nolint:nilerr // it refuses nothing, as far as is known
	}
	err = asking.RESTClient().Get().AbsPath("/").Do(ctx).Error()
	if IsAccessError(err) {
		return fmt.Errorf("GET / of %s: %w", config.Host, err)
	}
	return nil
}
