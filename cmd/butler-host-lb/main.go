//go:build linux

// Command butler-host-lb shows the addresses of IPLeases on the host that it runs on.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/agent"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/process"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
)

// lockSocket is bound while the program runs. It is in the abstract namespace, which each network namespace has for
// itself.
const lockSocket = "@butler-host-lb"

func main() {
	o := &options{}
	var agentOptions agent.Options
	program := process.Program{Name: "butler-host-lb", AddFlags: o.addFlags, Validate: func() (err error) {
		agentOptions, err = o.buildAgentOptions()
		return err
	}}
	if ok, code := program.ParseFlags(os.Args[1:], os.Stdout, os.Stderr); !ok {
		os.Exit(code)
	}
	if err := run(ctrl.SetupSignalHandler(), o, agentOptions); err != nil {
		klog.Background().Error(err, "The host ended with an error")
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options, agentOptions agent.Options) error {
	alone, err := (&net.ListenConfig{}).Listen(ctx, "unix", lockSocket)
	if err != nil {
		return fmt.Errorf("another butler-host-lb runs on this host, in the same network namespace; end it first: %w", err)
	}
	defer func() { _ = alone.Close() }()
	// A connection that has died silently must be found before this host may be taken for dead.
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "2", "HTTP2_PING_TIMEOUT_SECONDS": "2"} {
		if _, set := os.LookupEnv(name); !set {
			if err := os.Setenv(name, seconds); err != nil {
				return err
			}
		}
	}
	cfg, err := process.NewRESTConfig()
	if err != nil {
		return err
	}
	cfg.UserAgent = "butler-host-lb"
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	// The host answers probes from the start, also while it waits for an API server.
	host := &atomic.Pointer[agent.Agent]{}
	probes, err := serveProbes(cfg, o.metricsAddress, host)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	probing, stop := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stop()
		return runHost(ctx, cfg, scheme, agentOptions, host)
	})
	if probes != nil {
		group.Go(func() error { return probes.Start(probing) })
	}
	return group.Wait()
}

// serveProbes returns the server of metrics and probes, or nil if they are turned off.
func serveProbes(cfg *rest.Config, address string, host *atomic.Pointer[agent.Agent]) (metricsserver.Server, error) {
	state := func(ok func() bool) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ok() {
				return
			}
			http.Error(w, "the host has not read what there is, or its heartbeat was never answered", http.StatusServiceUnavailable)
		})
	}
	return metricsserver.NewServer(metricsserver.Options{BindAddress: address, ExtraHandlers: map[string]http.Handler{
		"/healthz": state(func() bool { return true }),
		"/readyz": state(func() bool {
			h := host.Load()
			return h != nil && h.IsReady()
		}),
	}}, cfg, nil)
}

// runHost waits for the API server, and shows addresses until ctx ends. It stores the host in at.
func runHost(ctx context.Context, cfg *rest.Config, scheme *runtime.Scheme, agentOptions agent.Options, at *atomic.Pointer[agent.Agent]) error {
	if err := waitForAPIServer(ctx, cfg); err != nil || ctx.Err() != nil {
		return err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"}, // they are served already
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         map[client.Object]cache.ByObject{&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{record.Namespace: {}}}},
		},
		GracefulShutdownTimeout: ptr.To(10 * time.Second),
	})
	if err != nil {
		return err
	}
	if agentOptions.MaxFiles == 0 {
		if agentOptions.MaxFiles, err = forward.FileLimit(); err != nil {
			return err
		}
	}
	host := agent.New(agentOptions, mgr.GetCache(), mgr.GetAPIReader(), mgr.GetClient(), klog.FromContext(ctx).WithName(agentOptions.Name))
	host.RegisterMetrics()
	if err := registerWatches(ctx, mgr, host); err != nil {
		return err
	}
	if err := mgr.Add(host); err != nil {
		return err
	}
	at.Store(host)
	klog.FromContext(ctx).Info("Starting the host", "version", version.Get(), "host", agentOptions.Name)
	return mgr.Start(ctx)
}

// waitForAPIServer waits until the API server answers, and checks that it has the kinds that hosts read. It returns nil
// when ctx ends.
func waitForAPIServer(ctx context.Context, cfg *rest.Config) error {
	connection, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, connection)
	if err != nil {
		return err
	}
	var next time.Time
	for {
		err := process.CheckKinds(mapper, process.KindsForHosts)
		if err == nil || errors.Is(err, process.ErrKindUnknown) {
			return err
		}
		if now := time.Now(); !now.Before(next) { // not each second, even if each error names another port
			klog.FromContext(ctx).Error(err, "Waiting for the API server")
			next = now.Add(time.Minute)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// registerWatches has the host sync whenever an object that it reads changes.
func registerWatches(ctx context.Context, mgr manager.Manager, host *agent.Agent) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &discoveryv1.EndpointSlice{}, agent.ServiceNameIndex, agent.IndexByService); err != nil {
		return err
	}
	kinds := []client.Object{&v1alpha1.IPLease{}, &coordinationv1.Lease{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}}
	if host.ForwardTraffic && host.BackendType == hostlb.NodePortBackends {
		kinds = append(kinds, &corev1.Node{})
	}
	for _, kind := range kinds {
		informer, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		changed := host.TriggerPortSync
		if _, ok := kind.(*coordinationv1.Lease); ok {
			changed = host.TriggerSync
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		})
		if err != nil {
			return err
		}
	}
	return nil
}
