// Command butler-ipam-manager is the manager of cluster-api-ipam-provider-butler.
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lease"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cilium"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/components"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/extension"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/options"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/page"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/process"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/slim"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/usage"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/webhooks"
)

func main() {
	o := &options.Options{}
	program := process.Program{
		Name: "butler-ipam-manager", AddFlags: o.AddFlags,
		Complete: func(fs *pflag.FlagSet) error { return options.ApplyEnvironment(fs, os.Environ()) },
		Validate: func() error {
			if o.NodeCIDRs == options.NodeCIDRsOnly {
				o.WebhookPort = 0 // they are for pools
			}
			return errors.Join(o.Validate(), o.ValidateCertificate())
		},
	}
	if ok, code := program.ParseFlags(os.Args[1:], os.Stdout, os.Stderr); !ok {
		os.Exit(code)
	}
	if err := runManager(o); err != nil {
		klog.Background().Error(err, "The manager ended with an error")
		os.Exit(1)
	}
}

func runManager(o *options.Options) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, metallbv1beta1.AddToScheme, ipamv1.AddToScheme, v1alpha1.AddToScheme,
		cilium.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	tlsOptions, metricsOptions, err := flags.GetManagerOptions(o.Diagnostics)
	if err != nil {
		return fmt.Errorf("diagnostics flags: %w", err)
	}
	metricsOptions.FilterProvider = page.AllowAnonymousFiles(metricsOptions.FilterProvider)
	cfg, err := process.NewRESTConfig()
	if err != nil {
		return err
	}
	apiClock := &process.APIClock{}
	cfg.Wrap(apiClock.WrapTransport)
	part, err := shard.Parse(o.Shard)
	if err != nil {
		return fmt.Errorf("--shard: %w", err)
	}
	metrics.ShardCount.WithLabelValues().Set(float64(part.Count()))
	if o.AuditInterval > 0 {
		metrics.AuditInterval.WithLabelValues().Set(o.AuditInterval.Seconds())
	}
	settings := ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       *metricsOptions,
		HealthProbeBindAddress:        o.HealthProbeAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              "butler-ipam" + part.LeaseNameSuffix() + ".butler.butlerlabs.dev",
		LeaderElectionNamespace:       o.LeaderElectNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.LeaseDuration,
		RenewDeadline:                 &o.RenewDeadline,
		RetryPeriod:                   &o.RetryPeriod,
		Cache:                         cache.Options{ByObject: slim.CacheByObject(), DefaultTransform: cache.TransformStripManagedFields()},
	}
	maps.Copy(settings.Cache.ByObject, leaseBackends(o).CacheOptions())
	if o.Namespace != "" {
		settings.Cache.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	if o.WebhookPort != 0 {
		if settings.WebhookServer, err = newWebhookServer(o, tlsOptions); err != nil {
			return fmt.Errorf("setting up the webhooks: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(cfg, settings)
	if err != nil {
		return err
	}
	var needed []process.RequiredKinds
	if o.ServesOwnNodes() || o.ServesFleetNodes() {
		needed = append(needed, process.KindsForNodes...)
	}
	if o.NetworkingX {
		needed = append(needed, process.KindsForNetworkingX...)
	}
	if o.NodeCIDRs != options.NodeCIDRsOnly {
		needed = append(needed, process.KindsForPools...)
	}
	if o.ServiceLeases {
		needed = append(needed, process.KindsForLeases...)
	}
	if err := process.CheckKinds(mgr.GetRESTMapper(), needed); err != nil {
		return err
	}
	reportComponents(mgr, o)
	return startManager(mgr, o, part, apiClock)
}

// reportTimeout is how long the manager waits at its start for the check of its rights.
const reportTimeout = 10 * time.Second

// reportComponents logs what the manager serves, and what keeps it from that.
func reportComponents(mgr manager.Manager, o *options.Options) {
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	if o.Namespace != "" && apierrors.IsNotFound(mgr.GetAPIReader().Get(ctx, client.ObjectKey{Name: o.Namespace}, lookup.NamespaceMetadata())) {
		mgr.GetLogger().Error(nil, "The namespace of --namespace does not exist, nothing is served until it is created", "namespace", o.Namespace)
	}
	components.LogComponents(ctx, mgr.GetClient(), mgr.GetLogger(), o.Namespace, components.ListComponents(o))
}

func startManager(mgr manager.Manager, o *options.Options, part shard.Shard, apiClock *process.APIClock) error {
	ctx := ctrl.SetupSignalHandler()
	services, err := options.ParsePrefixes(o.ServiceCIDRs)
	if err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	alloc, ready, err := controllers.SetupControllers(ctx, mgr, controllers.Options{
		Namespace:        o.Namespace,
		WatchFilter:      o.WatchFilter,
		Shard:            part,
		LeaderElection:   o.LeaderElect,
		APITime:          apiClock.ToServerTime,
		PoolConcurrency:  o.PoolConcurrency,
		Writers:          o.Writers,
		OrphanGrace:      o.OrphanGrace,
		ShrinkGrace:      o.ShrinkGrace,
		BlockNamespace:   cmp.Or(o.BlockNamespace, os.Getenv("POD_NAMESPACE")),
		AuditInterval:    o.AuditInterval,
		LoadBalancers:    o.LoadBalancers,
		Leases:           o.ServesLeases(),
		InClusterPools:   o.InClusterPools,
		FailureDomains:   o.FailureDomains,
		LeaseBackends:    leaseBackends(o),
		AddressAttempts:  o.AddressAttempts,
		ServesOwnNodes:   o.ServesOwnNodes(),
		ServesFleetNodes: o.ServesFleetNodes(),
		NodeCIDRsOnly:    o.NodeCIDRs == options.NodeCIDRsOnly,
		ServiceCIDRs:     services,
		FlagClusterCIDR:  o.ClusterCIDRSpec(),
		NetworkingX:      o.NetworkingX,
	})
	if err != nil {
		return err
	}
	if o.WebhookPort != 0 && alloc != nil {
		if err := webhooks.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("setting up the webhooks: %w", err)
		}
	}
	if o.ControlPlaneEndpoints {
		if err := extension.SetupHooks(mgr); err != nil {
			return fmt.Errorf("setting up the hooks of Cluster API: %w", err)
		}
	}
	if alloc != nil {
		if err := addPoolsPage(mgr, alloc, ready); err != nil {
			return fmt.Errorf("setting up the page of pools: %w", err)
		}
	}
	if err := addHealthChecks(mgr, ready, o); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting the manager", "version", version.Get())
	return mgr.Start(ctx)
}

// leaseBackends returns the backends by which Services get the addresses of leases.
func leaseBackends(o *options.Options) lease.EnabledBackends {
	return lease.EnabledBackends{MetalLB: o.ServiceLeases, Hosts: o.HostLoadBalancers}
}

// addPoolsPage serves the page of pools, and the API of leases, beside the metrics.
func addPoolsPage(mgr manager.Manager, alloc *allocator.Allocator, ready []controllers.ReadyCheck) error {
	history := usage.NewHistory(clock.RealClock{}, alloc.PoolViews)
	if err := mgr.Add(history); err != nil {
		return err
	}
	pools := &page.Page{Pools: alloc, History: history, Elected: mgr.Elected()}
	handlers := pools.Handlers()
	handlers[page.LeasesPath] = (&page.LeaseAPI{Pools: alloc, Elected: mgr.Elected(), CheckReady: allReady(ready)}).Handler()
	for path, handler := range handlers {
		if err := mgr.AddMetricsServerExtraHandler(path, handler); err != nil {
			return err
		}
	}
	return nil
}

// allReady returns a check that fails while any of these checks does.
func allReady(ready []controllers.ReadyCheck) controllers.ReadyCheck {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		for _, check := range ready {
			if err := check(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// addHealthChecks serves /healthz and /readyz. A leader is ready once it has read what it serves; a manager that waits
// for its election is ready for that.
func addHealthChecks(mgr manager.Manager, ready []controllers.ReadyCheck, o *options.Options) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if o.WebhookPort != 0 {
		if err := mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker()); err != nil {
			return err
		}
	}
	return mgr.AddReadyzCheck("served", func(req *http.Request) error {
		select {
		case <-mgr.Elected():
		default:
			if !o.LeaderElect {
				return errors.New("the manager is starting")
			}
			return nil
		}
		return allReady(ready)(req.Context())
	})
}

// newWebhookServer returns the server of the webhooks and, where Cluster API asks for endpoints, of its hooks beside
// them.
func newWebhookServer(o *options.Options, tlsOptions []func(*tls.Config)) (webhook.Server, error) {
	if o.ControlPlaneEndpoints {
		return extension.NewServer(o.WebhookPort, o.WebhookCertDir, tlsOptions)
	}
	return webhook.NewServer(webhook.Options{Port: o.WebhookPort, CertDir: o.WebhookCertDir, TLSOpts: tlsOptions}), nil
}
