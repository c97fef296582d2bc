// The manager of cluster-api-ipam-provider-butler.
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
		Complete: func(fs *pflag.FlagSet) error { return options.FromEnvironment(fs, os.Environ()) },
		Check: func() error {
			if o.NodeCIDRs == options.NodeCIDRsOnly {
				o.WebhookPort = 0 // they are of pools
			}
			return errors.Join(o.Check(), o.CheckCertificate())
		},
	}
	if ok, code := program.Start(os.Args[1:], os.Stdout, os.Stderr); !ok {
		os.Exit(code)
	}
	if err := run(o); err != nil {
		klog.Background().Error(err, "The manager ended with an error")
		os.Exit(1)
	}
}

func run(o *options.Options) error {
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
	metricsOptions.FilterProvider = page.OpenFiles(metricsOptions.FilterProvider)
	cfg, err := process.Connection()
	if err != nil {
		return err
	}
	apiClock := &process.APIClock{}
	cfg.Wrap(apiClock.Watch)
	part, err := shard.Parse(o.Shard)
	if err != nil {
		return fmt.Errorf("--shard: %w", err)
	}
	metrics.Shards.WithLabelValues().Set(float64(part.Count()))
	if o.AuditInterval > 0 {
		metrics.AuditInterval.WithLabelValues().Set(o.AuditInterval.Seconds())
	}
	settings := ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       *metricsOptions,
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              "butler-ipam" + part.Suffix() + ".butler.butlerlabs.dev",
		LeaderElectionNamespace:       o.LeaseNamespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.Lease,
		RenewDeadline:                 &o.Renew,
		RetryPeriod:                   &o.Retry,
		Cache:                         cache.Options{ByObject: slim.ByObject(), DefaultTransform: cache.TransformStripManagedFields()},
	}
	maps.Copy(settings.Cache.ByObject, ways(o).Cached())
	if o.Namespace != "" {
		settings.Cache.DefaultNamespaces = map[string]cache.Config{o.Namespace: {}}
	}
	if o.WebhookPort != 0 {
		if settings.WebhookServer, err = webhookServer(o, tlsOptions); err != nil {
			return fmt.Errorf("setting up the webhooks: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(cfg, settings)
	if err != nil {
		return err
	}
	var needed []process.Needed
	if o.OwnNodes() || o.FleetNodes() {
		needed = append(needed, process.ForNodes...)
	}
	if o.NetworkingX {
		needed = append(needed, process.ForNetworkingX...)
	}
	if o.NodeCIDRs != options.NodeCIDRsOnly {
		needed = append(needed, process.ForPools...)
	}
	if o.ServiceLeases {
		needed = append(needed, process.ForLeases...)
	}
	if err := process.CheckKinds(mgr.GetRESTMapper(), needed); err != nil {
		return err
	}
	report(mgr, o)
	return start(mgr, o, part, apiClock)
}

// reportTimeout is how long the manager waits at its start to be told its rights.
const reportTimeout = 10 * time.Second

// report logs what the manager serves, and what keeps it from that.
func report(mgr manager.Manager, o *options.Options) {
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	if o.Namespace != "" && apierrors.IsNotFound(mgr.GetAPIReader().Get(ctx, client.ObjectKey{Name: o.Namespace}, lookup.NamespaceMetadata())) {
		mgr.GetLogger().Error(nil, "The namespace that --namespace names does not exist: nothing is served until somebody makes it", "namespace", o.Namespace)
	}
	components.Report(ctx, mgr.GetClient(), mgr.GetLogger(), o.Namespace, components.Of(o))
}

func start(mgr manager.Manager, o *options.Options, part shard.Shard, apiClock *process.APIClock) error {
	ctx := ctrl.SetupSignalHandler()
	services, err := options.Prefixes(o.ServiceCIDRs)
	if err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	alloc, ready, err := controllers.Setup(ctx, mgr, controllers.Options{
		Namespace:       o.Namespace,
		WatchFilter:     o.WatchFilter,
		Shard:           part,
		Elected:         o.LeaderElect,
		APITime:         apiClock.At,
		Concurrency:     o.Concurrency,
		Writers:         o.Writers,
		OrphanGrace:     o.OrphanGrace,
		ShrinkGrace:     o.ShrinkGrace,
		BlockNamespace:  cmp.Or(o.BlockNamespace, os.Getenv("POD_NAMESPACE")),
		AuditInterval:   o.AuditInterval,
		LoadBalancers:   o.LoadBalancers,
		Leases:          o.ServesLeases(),
		InClusterPools:  o.InClusterPools,
		FailureDomains:  o.FailureDomains,
		LeaseWays:       ways(o),
		AddressAttempts: o.AddressAttempts,
		OwnNodes:        o.OwnNodes(),
		FleetNodes:      o.FleetNodes(),
		NodeCIDRsOnly:   o.NodeCIDRs == options.NodeCIDRsOnly,
		Services:        services,
		FlagsCIDR:       o.ClusterCIDR(),
		NetworkingX:     o.NetworkingX,
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
		if err := extension.Setup(mgr); err != nil {
			return fmt.Errorf("setting up the hooks of Cluster API: %w", err)
		}
	}
	if alloc != nil {
		if err := addPage(mgr, alloc, ready); err != nil {
			return fmt.Errorf("setting up the page of pools: %w", err)
		}
	}
	if err := addChecks(mgr, ready, o); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting the manager", "version", version.Get())
	return mgr.Start(ctx)
}

// ways are the ways by which Services get the addresses of leases.
func ways(o *options.Options) lease.Ways {
	return lease.Ways{MetalLB: o.ServiceLeases, Hosts: o.HostLBs}
}

// addPage serves the page of pools, and what there is of leases, beside the metrics.
func addPage(mgr manager.Manager, alloc *allocator.Allocator, ready []controllers.Ready) error {
	history := usage.New(clock.RealClock{}, alloc.Views)
	if err := mgr.Add(history); err != nil {
		return err
	}
	pools := &page.Page{Pools: alloc, History: history, Elected: mgr.Elected()}
	handlers := pools.Handlers()
	handlers[page.LeasesPath] = (&page.Leases{Pools: alloc, Elected: mgr.Elected(), Ready: all(ready)}).Handler()
	for path, handler := range handlers {
		if err := mgr.AddMetricsServerExtraHandler(path, handler); err != nil {
			return err
		}
	}
	return nil
}

// all says what is not ready yet; nil: nothing.
func all(ready []controllers.Ready) controllers.Ready {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		for _, is := range ready {
			if err := is(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// addChecks serves /healthz and /readyz. A leader is ready once what it serves was read; a manager that waits
// to be elected is ready to be.
func addChecks(mgr manager.Manager, ready []controllers.Ready, o *options.Options) error {
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
		return all(ready)(req.Context())
	})
}

// webhookServer serves the webhooks and, where Cluster API is to ask for endpoints, its hooks beside them.
func webhookServer(o *options.Options, tlsOptions []func(*tls.Config)) (webhook.Server, error) {
	if o.ControlPlaneEndpoints {
		return extension.NewServer(o.WebhookPort, o.WebhookCerts, tlsOptions)
	}
	return webhook.NewServer(webhook.Options{Port: o.WebhookPort, CertDir: o.WebhookCerts, TLSOpts: tlsOptions}), nil
}
