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

// workloadSteps add the controllers that look into workload clusters: those of load balancers, and of the Nodes of a fleet.
func workloadSteps(ctx context.Context, mgr manager.Manager, o Options, served *pool.Reconciler, writes *pace.Writes, recorder events.EventRecorder, writers *workers.Workers[nodeipam.Key]) ([]step, error) {
	if !o.LoadBalancers && !o.FleetNodes {
		return nil, nil
	}
	c, live, blocks := writes.Client(mgr.GetClient()), mgr.GetAPIReader(), served.Blocks
	fleet := &fleetcidr.Reconciler{
		Client: c, Live: live, Holder: (&pace.Writes{Clock: clock.RealClock{}, Max: pace.Least}).Client(mgr.GetClient()), Elected: o.Elected, Writers: writers, WatchFilter: o.WatchFilter, Shard: o.Shard, Now: time.Now,
		Blocks: blocks, Synced: served.Synced, BlockGrace: o.ShrinkGrace,
	}
	connections, err := workloads.Connect(ctx, mgr, o.WatchFilter, func(c *clusterv1.Cluster) bool {
		return o.Shard.Has(guard.ClusterKind, c.Namespace, c.Name) && ((o.LoadBalancers && tenant.Wants(blocks, c)) || (o.FleetNodes && fleet.Wants(ctx, c)))
	})
	if err != nil {
		return nil, fmt.Errorf("setting up the connections to workload clusters: %w", err)
	}
	fleet.Clusters = connections
	clusters := &cluster.Reconciler{
		Client: c, Live: live, Recorder: recorder, Blocks: blocks, LoadBalancers: o.LoadBalancers,
		NodesWant:   func(ctx context.Context, c *clusterv1.Cluster) bool { return o.FleetNodes && fleet.Wants(ctx, c) },
		WatchFilter: o.WatchFilter, Namespace: o.Namespace, Shard: o.Shard,
	}
	steps := []step{{"setting up the cluster controller", func() error { return clusters.SetupWithManager(mgr) }}}
	if o.LoadBalancers {
		configs := &providerconfig.Reconciler{Client: c, Recorder: recorder, Now: time.Now, Shard: o.Shard}
		tenants := &tenant.Reconciler{
			Client: c, Live: live, Recorder: recorder, Blocks: blocks, Synced: served.Synced, Clusters: connections,
			NewCache: cache.New, Writes: writes, Clock: clock.RealClock{}, Grace: o.ShrinkGrace,
			WatchFilter: o.WatchFilter, Shard: o.Shard,
		}
		steps = append(steps,
			step{"setting up the provider config controller", func() error { return configs.SetupWithManager(mgr) }},
			step{"setting up the tenant controller", func() error { return tenants.SetupWithManager(mgr) }})
	}
	if o.FleetNodes {
		steps = append(steps,
			step{"setting up the controller of the Nodes of workload clusters", func() error { return fleet.SetupWithManager(ctx, mgr) }},
			step{"setting up the audit of the Nodes of workload clusters", func() error { return auditNodes(mgr, o, fleet.Sites) }})
	}
	return steps, nil
}
