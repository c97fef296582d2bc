package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/cluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/fleetcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/pool"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/providerconfig"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/tenant"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// workloadSetupSteps returns the steps that add the controllers which read workload clusters: those of load balancers,
// and of the Nodes of a fleet.
func workloadSetupSteps(ctx context.Context, mgr manager.Manager, o Options, served *pool.Reconciler, writes *pace.WritePacer, recorder events.EventRecorder, writers *workers.Workers[nodeipam.ClusterKey]) ([]setupStep, error) {
	if !o.LoadBalancers && !o.ServesFleetNodes {
		return nil, nil
	}
	c, live, blocks := writes.WrapClient(mgr.GetClient()), mgr.GetAPIReader(), served.Blocks
	fleet := &fleetcidr.Reconciler{
		Client: c, Live: live, EntryClient: (&pace.WritePacer{Clock: clock.RealClock{}, MaxDelay: pace.MinDelay}).WrapClient(mgr.GetClient()), Elected: o.LeaderElection, WriteWorkers: writers, WatchFilter: o.WatchFilter, Shard: o.Shard, Now: time.Now,
		Blocks: blocks, HasSynced: served.HasSynced, BlockGracePeriod: o.ShrinkGrace,
	}
	connections, err := workloads.SetupClusterCache(ctx, mgr, o.WatchFilter, func(c *clusterv1.Cluster) bool {
		return o.Shard.Has(guard.ClusterKind, c.Namespace, c.Name) && ((o.LoadBalancers && tenant.NeedsWorkloadAccess(blocks, c)) || (o.ServesFleetNodes && fleet.NeedsWorkloadAccess(ctx, c)))
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the connections to workload clusters: %w", err)
	}
	fleet.Clusters = connections
	clusters := &cluster.Reconciler{
		Client: c, Live: live, Recorder: recorder, Blocks: blocks, LoadBalancers: o.LoadBalancers,
		NeedsPodCIDRs: func(ctx context.Context, c *clusterv1.Cluster) bool {
			return o.ServesFleetNodes && fleet.NeedsWorkloadAccess(ctx, c)
		},
		WatchFilter: o.WatchFilter, Namespace: o.Namespace, Shard: o.Shard,
	}
	steps := []setupStep{{"setting up the cluster controller", func() error { return clusters.SetupWithManager(mgr) }}}
	if o.LoadBalancers {
		configs := &providerconfig.Reconciler{Client: c, Recorder: recorder, Now: time.Now, Shard: o.Shard}
		tenants := &tenant.Reconciler{
			Client: c, Live: live, Recorder: recorder, Blocks: blocks, Synced: served.HasSynced, Clusters: connections,
			NewCache: cache.New, Writes: writes, Clock: clock.RealClock{}, GracePeriod: o.ShrinkGrace,
			WatchFilter: o.WatchFilter, Shard: o.Shard,
		}
		steps = append(steps,
			setupStep{"setting up the provider config controller", func() error { return configs.SetupWithManager(mgr) }},
			setupStep{"setting up the tenant controller", func() error { return tenants.SetupWithManager(mgr) }})
	}
	if o.ServesFleetNodes {
		steps = append(steps,
			setupStep{"setting up the controller of the Nodes of workload clusters", func() error { return fleet.SetupWithManager(ctx, mgr) }},
			setupStep{"setting up the audit of the Nodes of workload clusters", func() error { return setupNodeAudit(mgr, o, fleet.ClusterAllocators) }})
	}
	return steps, nil
}
