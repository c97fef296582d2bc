// Package controllers sets up all controllers, and what they share.
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

// cacheSyncTimeout is how long the first lists of claims and IPAddresses may take before the manager ends itself. A
// slow API server ends a list after a minute (--request-timeout), and it is read again: a controller that starts again
// after two minutes, as controllers do by default, would never finish where there are many objects.
const cacheSyncTimeout = 30 * time.Minute

// Options are the options of the manager that decide what its controllers do.
type Options struct {
	// Namespace is the only namespace that is watched, if it is set; WatchFilter is the value of the watch label of
	// what is served, if it is set.
	Namespace, WatchFilter string
	// Shard is the part of all pools and Clusters that is served.
	Shard shard.Shard
	// LeaderElection reports whether the manager works only while it is the leader.
	LeaderElection bool
	// APITime converts a time of this machine's clock to the clock of the API server.
	APITime func(time.Time) time.Time
	// PoolConcurrency is how many pools are reconciled at once; Writers is how many writes are in flight at once.
	PoolConcurrency, Writers int
	// OrphanGrace is how long an orphan stays; ShrinkGrace is how long a block that no Service uses stays.
	OrphanGrace, ShrinkGrace time.Duration
	// BlockNamespace is the namespace of the blocks of carved GlobalNetworkPools.
	BlockNamespace string
	// AuditInterval is how often the memory is compared with the API server, and Nodes with each other; 0 means never.
	AuditInterval time.Duration
	// LoadBalancers reports whether Clusters get blocks for their load balancers, as ProviderConfigs define.
	LoadBalancers bool
	// Leases reports whether IPLeases are served.
	Leases bool
	// InClusterPools reports whether the pools of the in-cluster provider are served.
	InClusterPools bool
	// FailureDomains reports whether subnets serve failure domains: the Machines of claims are read then.
	FailureDomains bool
	// LeaseBackends are the load balancers by which Services of the manager's own cluster get the addresses of leases.
	LeaseBackends lease.EnabledBackends
	// AddressAttempts is how many addresses a Service with a lease gets at most, one after another, while a foreign
	// machine answers for each.
	AddressAttempts int
	// ServesOwnNodes reports whether the Nodes of the manager's own cluster get their pod CIDRs; ServesFleetNodes
	// reports whether those of workload clusters do; NodeCIDRsOnly reports whether nothing else is done. ServiceCIDRs
	// are CIDRs that no own Node gets.
	ServesOwnNodes, ServesFleetNodes, NodeCIDRsOnly bool
	ServiceCIDRs                                    []netip.Prefix
	// FlagClusterCIDR is the ClusterCIDR that flags define; nil if they define none.
	FlagClusterCIDR *v1alpha1.ClusterCIDRSpec
	// NetworkingX reports whether the ClusterCIDRs of node-ipam-controller are served too.
	NetworkingX bool
}

// ReadyCheck returns nil if everything that is served was read, otherwise an error that names what was not.
type ReadyCheck func(context.Context) error

// SetupControllers adds all controllers to a manager. It returns the allocator of the pools, nil if these are not
// served, and the checks that report whether the manager is ready.
func SetupControllers(ctx context.Context, mgr manager.Manager, o Options) (*allocator.Allocator, []ReadyCheck, error) {
	streams, err := stream.New(mgr.GetConfig(), mgr.GetHTTPClient(), mgr.GetScheme())
	if err != nil {
		return nil, nil, err
	}
	back := newRollbackMonitor(streams)
	if err := mgr.Add(back); err != nil {
		return nil, nil, fmt.Errorf("setting up what notices that etcd was put back: %w", err)
	}
	var ready []ReadyCheck
	writers := workers.New[nodeipam.ClusterKey](o.Writers)
	if o.ServesOwnNodes || o.ServesFleetNodes {
		metrics.RegisterNodeMetrics()
	}
	if o.ServesOwnNodes {
		nodes, err := setupNodes(mgr, o, streams, writers)
		if err != nil {
			return nil, nil, fmt.Errorf("setting up the controller of Nodes: %w", err)
		}
		ready = append(ready, nodes.CheckSynced)
	}
	if o.NodeCIDRsOnly {
		return nil, ready, nil
	}
	pools, err := setupPools(ctx, mgr, o, streams, writers)
	if err != nil {
		return nil, nil, err
	}
	return pools.Allocator, append(ready, pools.CheckReady), nil
}

func setupPools(ctx context.Context, mgr manager.Manager, o Options, streams *stream.Client, writers *workers.Workers[nodeipam.ClusterKey]) (*pool.Reconciler, error) {
	live := mgr.GetAPIReader()
	recorder := text.Recorder{EventRecorder: mgr.GetEventRecorder("butler-ipam")}
	home, err := managementClusterUID(ctx, live)
	if err != nil {
		return nil, err
	}
	writes := &pace.WritePacer{Clock: clock.RealClock{}}
	blocks := &index.BlockIndex{}
	alloc := newAllocator(mgr, o, streams, recorder, home, blocks)
	poolReconciler := &pool.Reconciler{Client: mgr.GetClient(), Live: live, Source: streams, Allocator: alloc, Blocks: blocks}
	poolOptions := controller.TypedOptions[pools.Key]{MaxConcurrentReconciles: o.PoolConcurrency, CacheSyncTimeout: cacheSyncTimeout}
	steps := []setupStep{{"setting up the pool controller", func() error { return poolReconciler.SetupWithManager(mgr, poolOptions) }}}
	more, err := workloadSetupSteps(ctx, mgr, o, poolReconciler, writes, recorder, writers)
	if err != nil {
		return nil, err
	}
	steps = append(steps, more...)
	if o.InClusterPools {
		steps = append(steps, setupStep{"serving the pools of the in-cluster provider", func() error {
			return incluster.SetupControllers(mgr, writes.WrapClient(mgr.GetClient()), recorder, o.Shard, home, alloc.MirroredPoolReferrer)
		}})
	}
	if o.LeaseBackends.IsAnyEnabled() {
		leases := &lease.Reconciler{Client: writes.WrapClient(mgr.GetClient()), Live: live, Recorder: recorder, Now: time.Now, WatchFilter: o.WatchFilter, EnabledBackends: o.LeaseBackends, MaxAddressAttempts: o.AddressAttempts}
		steps = append(steps, setupStep{"setting up the controller of leases", func() error { return leases.SetupWithManager(ctx, mgr, o.Shard) }})
	}
	if o.AuditInterval > 0 {
		steps = append(steps, setupStep{"setting up the audit", func() error { return mgr.Add(&allocator.Auditor{Allocator: alloc, Interval: o.AuditInterval}) }})
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.description, err)
		}
	}
	return poolReconciler, nil
}

// setupStep adds a controller.
type setupStep struct {
	description string
	run         func() error
}

// newAllocator creates the allocator that all controllers share. It reads the quota of Clusters itself, and needs none
// of the controllers.
func newAllocator(mgr manager.Manager, o Options, streams *stream.Client, recorder events.EventRecorder, home string, blocks *index.BlockIndex) *allocator.Allocator {
	var machineOf func(context.Context, string, []metav1.OwnerReference) (grants.Machine, error)
	if o.FailureDomains {
		machineOf = (&failuredomain.Finder{Live: mgr.GetAPIReader()}).FindMachine
	}
	return allocator.New(allocator.Options{
		Client:      streams.NewPatchingClient(mgr.GetClient()),
		Live:        mgr.GetAPIReader(),
		Lister:      streams,
		Recorder:    recorder,
		ManagerID:   string(uuid.NewUUID()),
		ShrinkGrace: o.ShrinkGrace, BlockNamespace: o.BlockNamespace,
		WatchFilter: o.WatchFilter,
		Namespace:   o.Namespace,
		Elected:     o.LeaderElection,
		Writers:     o.Writers,

		ManagementCluster: home,
		OrphanGrace:       o.OrphanGrace,
		NodeQuota:         lookup.NewNodeQuotaLookup(mgr.GetClient(), blocks.LoadBalancerBlocks),
		Shard:             o.Shard,

		APITime:             o.APITime,
		FindMachine:         machineOf,
		WithoutLeases:       !o.Leases,
		InClusterPools:      o.InClusterPools,
		MissingMirrorReason: incluster.NewMissingMirrorLookup(mgr.GetAPIReader()),
	})
}
