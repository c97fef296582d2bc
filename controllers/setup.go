// Package controllers sets up all controllers: which there are, and what they share.
package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lease"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/pool"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/allocator"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/failuredomain"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
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
	// APITime is a moment of this machine's clock by that of the API server.
	APITime func(time.Time) time.Time
	// Concurrency is how many pools are reconciled at once, Writers how many writes are under way.
	Concurrency, Writers int
	// OrphanGrace is how long an orphan stays, ShrinkGrace how long a block that no Service uses.
	OrphanGrace, ShrinkGrace time.Duration
	// BlockNamespace is where the blocks of carved GlobalNetworkPools are.
	BlockNamespace string
	// AuditInterval is how often the memory is compared with the API server, and Nodes with each other; 0: never.
	AuditInterval time.Duration
	// LoadBalancers reports whether Clusters get blocks for their load balancers, as ProviderConfigs say.
	LoadBalancers bool
	// Leases reports whether IPLeases are served.
	Leases bool
	// InClusterPools reports whether the pools of the in-cluster provider are served.
	InClusterPools bool
	// FailureDomains reports whether subnets serve failure domains: the Machines of claims are read then.
	FailureDomains bool
	// LeaseWays are the ways by which Services of the manager's own cluster get the addresses of leases.
	LeaseWays lease.Ways
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
	back := historyOf(streams)
	if err := mgr.Add(back); err != nil {
		return nil, nil, fmt.Errorf("setting up what notices that etcd was put back: %w", err)
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

func setupPools(ctx context.Context, mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.Key]) (*pool.Reconciler, error) {
	live := mgr.GetAPIReader()
	recorder := text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	home, err := managementCluster(ctx, live)
	if err != nil {
		return nil, err
	}
	writes := &pace.Writes{Clock: clock.RealClock{}}
	blocks := &index.Blocks{}
	alloc := newAllocator(mgr, o, streams, recorder, home, blocks)
	poolReconciler := &pool.Reconciler{Client: mgr.GetClient(), Live: live, Source: streams, Allocator: alloc, Blocks: blocks}
	poolOptions := controller.TypedOptions[pools.Key]{MaxConcurrentReconciles: o.Concurrency, CacheSyncTimeout: syncTimeout}
	steps := []step{{"setting up the pool controller", func() error { return poolReconciler.SetupWithManager(mgr, poolOptions) }}}
	more, err := workloadSteps(ctx, mgr, o, poolReconciler, writes, recorder, writers)
	if err != nil {
		return nil, err
	}
	steps = append(steps, more...)
	if o.InClusterPools {
		steps = append(steps, step{"serving the pools of the in-cluster provider", func() error {
			return incluster.Setup(mgr, writes.Client(mgr.GetClient()), recorder, o.Shard, home, alloc.NamesMirrored)
		}})
	}
	if o.LeaseWays.Any() {
		leases := &lease.Reconciler{Client: writes.Client(mgr.GetClient()), Live: live, Recorder: recorder, Now: time.Now, WatchFilter: o.WatchFilter, Ways: o.LeaseWays, AddressAttempts: o.AddressAttempts}
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
func newAllocator(mgr manager.Manager, o Options, streams *stream.Client, recorder events.EventRecorder, home string, blocks *index.Blocks) *allocator.Allocator {
	var machineOf func(context.Context, string, []metav1.OwnerReference) (grants.Machine, error)
	if o.FailureDomains {
		machineOf = (&failuredomain.Finder{Live: mgr.GetAPIReader()}).Of
	}
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

		ManagementCluster: home,
		OrphanGrace:       o.OrphanGrace,
		NodeQuota:         lookup.NodeQuota(mgr.GetClient(), blocks.Of),
		Shard:             o.Shard,

		APITime:        o.APITime,
		MachineOf:      machineOf,
		WithoutLeases:  !o.Leases,
		InClusterPools: o.InClusterPools,
		Unmirrored:     incluster.Unmirrored(mgr.GetAPIReader()),
	})
}
