// Package controllers sets up all controllers: which there are, and what they share.
package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/cluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/fleetcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lease"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/nodecidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/pool"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/providerconfig"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/tenant"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// syncTimeout is how long the first lists of claims and IPAddresses may take before the manager ends itself. A slow API
// server ends a list after a minute (--request-timeout), and it is read again: whoever began anew after two minutes, as
// controllers do by default, would never end where there are many.
const syncTimeout = 30 * time.Minute

// Options are those of the manager that decide what its controllers do.
type Options struct {
	// Namespace, where set, is the only one that is watched; WatchFilter, the value of the label of what is served.
	Namespace, WatchFilter string
	// Shard is the part of all pools and Clusters that is served.
	Shard shard.Shard
	// Elected reports whether the manager works only while it is the leader.
	Elected bool
	// Concurrency is how many pools are reconciled at once, Writers how many writes are under way.
	Concurrency, Writers int
	// OrphanGrace is how long an orphan stays, ShrinkGrace how long a block that no Service uses.
	OrphanGrace, ShrinkGrace time.Duration
	// BlockNamespace is where the blocks of carved GlobalNetworkPools are.
	BlockNamespace string
	// AuditInterval is how often the memory is compared with the API server, and Nodes with each other; 0: never.
	AuditInterval time.Duration
	// InClusterPools reports whether the pools of the in-cluster provider are served.
	InClusterPools bool
	// Leases are the ways by which Services of the manager's own cluster get the addresses of leases.
	Leases lease.Ways
	// AddressAttempts is how many addresses such a Service gets for which somebody else answers.
	AddressAttempts int
	// OwnNodes reports whether the Nodes of the manager's own cluster get their pod CIDRs, FleetNodes whether those of
	// workload clusters do; NodeCIDRsOnly, whether nothing else is done. Services are CIDRs that no own Node is given.
	OwnNodes, FleetNodes, NodeCIDRsOnly bool
	Services                            []netip.Prefix
	// FlagsCIDR is the ClusterCIDR that flags stand for; nil: there are none.
	FlagsCIDR *v1alpha1.ClusterCIDRSpec
	// NetworkingX reports whether the ClusterCIDRs of node-ipam-controller are served too.
	NetworkingX bool
}

// Ready reports whether what is served was read: nil, or what was not.
type Ready func(context.Context) error

// Setup adds all controllers to a manager. It returns the allocator of the pools, where these are served, and who knows
// whether the manager is ready.
func Setup(ctx context.Context, mgr manager.Manager, o Options) (*allocator.Allocator, []Ready, error) {
	streams, err := stream.New(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err != nil {
		return nil, nil, err
	}
	var ready []Ready
	writers := workers.New[nodeipam.Key](o.Writers)
	if o.OwnNodes || o.FleetNodes {
		metrics.ServeNodes()
	}
	if o.OwnNodes {
		nodes, err := setupNodes(mgr, o, streams, writers)
		if err != nil {
			return nil, nil, fmt.Errorf("setting up the controller of Nodes: %w", err)
		}
		ready = append(ready, nodes.Ready)
	}
	if o.NodeCIDRsOnly {
		return nil, ready, nil
	}
	pools, err := setupPools(ctx, mgr, o, streams, writers)
	if err != nil {
		return nil, nil, err
	}
	return pools.Allocator, append(ready, pools.Ready), nil
}

// setupNodes adds the controller that gives the Nodes of the manager's own cluster their pod CIDRs.
func setupNodes(mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.Key]) (*nodecidr.Reconciler, error) {
	direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, err
	}
	live, recorder := mgr.GetAPIReader(), text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	objects := nodeipam.Kinds{v1alpha1.ClusterCIDRKind: nodeipam.ClusterCIDRs{Client: direct, Live: live}}
	if o.NetworkingX {
		objects[nodeipam.NetworkingXKind] = nodeipam.NetworkingX{Client: direct, Live: live}
	}
	site := nodeipam.NewSite(nodeipam.Options{
		Client: streams.Patching(direct), Live: live, Lister: streams, Objects: objects,
		ID: string(uuid.NewUUID()), Elected: o.Elected, Workers: writers,
		Recorder: recorder, Now: time.Now,
	})
	nodes := &nodecidr.Reconciler{Client: mgr.GetClient(), Site: site, Services: o.Services, Now: time.Now}
	if o.FlagsCIDR != nil {
		nodes.Flags = &nodecidr.Flags{Client: direct, Live: live, Recorder: recorder, Spec: *o.FlagsCIDR, Now: time.Now}
	}
	if o.NetworkingX {
		nodes.NetworkingX = &nodecidr.NetworkingX{Recorder: recorder, Now: time.Now}
	}
	if err := auditNodes(mgr, o, func() []*nodeipam.Site { return []*nodeipam.Site{site} }); err != nil {
		return nil, err
	}
	err = nodes.SetupWithManager(mgr, streams, live, controller.TypedOptions[nodeipam.Key]{CacheSyncTimeout: syncTimeout})
	return nodes, err
}

// auditNodes adds the audit of Nodes, where there is to be one.
func auditNodes(mgr manager.Manager, o Options, sites func() []*nodeipam.Site) error {
	if o.AuditInterval == 0 {
		return nil
	}
	return mgr.Add(&nodeipam.Auditor{Sites: sites, Interval: o.AuditInterval, Clock: clock.RealClock{}})
}

func setupPools(ctx context.Context, mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.Key]) (*pool.Reconciler, error) {
	blocks := &index.Blocks{}
	c, live := mgr.GetClient(), mgr.GetAPIReader()
	recorder := text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	alloc := newAllocator(mgr, o, streams, recorder)
	poolReconciler := &pool.Reconciler{Client: c, Live: live, Source: streams, Allocator: alloc, Blocks: blocks}
	clusters := &cluster.Reconciler{
		Client: c, Live: live, Recorder: recorder, Blocks: blocks, QuotaChanged: alloc.QuotaChanged,
		WatchFilter: o.WatchFilter, Namespace: o.Namespace, Shard: o.Shard,
	}
	configs := &providerconfig.Reconciler{Client: c, Recorder: recorder, Now: time.Now, Shard: o.Shard}
	fleet := &fleetcidr.Reconciler{
		Client: c, Live: live, Elected: o.Elected, Writers: writers, WatchFilter: o.WatchFilter, Shard: o.Shard, Now: time.Now,
		Blocks: blocks, Synced: poolReconciler.Synced, BlockGrace: o.ShrinkGrace,
	}
	connections, err := workloads.Connect(ctx, mgr, o.WatchFilter, func(c *clusterv1.Cluster) bool {
		return o.Shard.Has(guard.ClusterKind, c.Namespace, c.Name) && (tenant.Wants(blocks, c) || (o.FleetNodes && fleet.Wants(ctx, c)))
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the connections to workload clusters: %w", err)
	}
	fleet.Clusters = connections
	tenants := &tenant.Reconciler{
		Client: c, Live: live, Recorder: recorder, Blocks: blocks, Synced: poolReconciler.Synced, Clusters: connections,
		NewCache: cache.New, Clock: clock.RealClock{}, Grace: o.ShrinkGrace,
		WatchFilter: o.WatchFilter, Shard: o.Shard,
	}
	poolOptions := controller.TypedOptions[pools.Key]{MaxConcurrentReconciles: o.Concurrency, CacheSyncTimeout: syncTimeout}
	steps := []step{
		{"setting up the cluster controller", func() error { return clusters.SetupWithManager(mgr) }},
		{"setting up the provider config controller", func() error { return configs.SetupWithManager(mgr) }},
		{"setting up the pool controller", func() error { return poolReconciler.SetupWithManager(mgr, poolOptions) }},
		{"setting up the tenant controller", func() error { return tenants.SetupWithManager(mgr) }},
	}
	if o.FleetNodes {
		steps = append(steps,
			step{"setting up the controller of the Nodes of workload clusters", func() error { return fleet.SetupWithManager(ctx, mgr) }},
			step{"setting up the audit of the Nodes of workload clusters", func() error { return auditNodes(mgr, o, fleet.Sites) }})
	}
	if o.InClusterPools {
		steps = append(steps, step{"serving the pools of the in-cluster provider", func() error { return incluster.Setup(mgr, recorder, o.Shard) }})
	}
	if o.Leases.Any() {
		leases := &lease.Reconciler{Client: c, Live: live, Recorder: recorder, Now: time.Now, WatchFilter: o.WatchFilter, Ways: o.Leases, AddressAttempts: o.AddressAttempts}
		steps = append(steps, step{"setting up the controller of leases", func() error { return leases.SetupWithManager(ctx, mgr, o.Shard) }})
	}
	if o.AuditInterval > 0 {
		steps = append(steps, step{"setting up the audit", func() error { return mgr.Add(&allocator.Auditor{Allocator: alloc, Interval: o.AuditInterval}) }})
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.doing, err)
		}
	}
	return poolReconciler, nil
}

// step adds a controller.
type step struct {
	doing string
	do    func() error
}

// newAllocator makes the allocator that all controllers share. What it asks of Clusters, their quota, is read by it:
// it needs none of the controllers.
func newAllocator(mgr manager.Manager, o Options, streams *stream.Client, recorder events.EventRecorder) *allocator.Allocator {
	return allocator.New(allocator.Options{
		Client:      streams.Patching(mgr.GetClient()),
		Live:        mgr.GetAPIReader(),
		Lists:       streams,
		Recorder:    recorder,
		ID:          string(uuid.NewUUID()),
		ShrinkGrace: o.ShrinkGrace, BlockNamespace: o.BlockNamespace,
		WatchFilter: o.WatchFilter,
		Namespace:   o.Namespace,
		Elected:     o.Elected,
		Writers:     o.Writers,
		OrphanGrace: o.OrphanGrace,
		NodeQuota:   lookup.NodeQuota(mgr.GetClient()),
		Shard:       o.Shard,

		InClusterPools: o.InClusterPools,
		Unmirrored:     incluster.Unmirrored(mgr.GetAPIReader()),
	})
}
