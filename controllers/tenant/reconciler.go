// Package tenant has the blocks of a Cluster follow the Services of its workload cluster: it shows them to MetalLB, asks
// for more, and gives back what nobody uses. What is decided is in internal/elastic and internal/tenancy.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// MetalLB tells nobody when it is installed, so a Cluster without it is looked at this often.
const metalLBBackstop = 10 * time.Second

// lookTimeout bounds one look at a Cluster. A usual one takes some milliseconds.
const lookTimeout = time.Minute

// Reconciler shows a Cluster's blocks to its MetalLB, has them follow what its Services ask for, and gives
// none back before the Cluster has let go of it. What is decided is in internal/elastic and internal/tenancy.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	// Blocks of each Cluster; Synced reports whether all that exist were read.
	Blocks *blocks.Index
	Synced func() bool
	// Clusters connects to the workload clusters: SetupWithManager makes it.
	Clusters clustercache.ClusterCache
	// NewCache makes what reads the MetalLB of each.
	NewCache cache.NewCacheFunc
	Clock    clock.PassiveClock
	// Grace is how long a block that was added on demand stays without being used.
	Grace       time.Duration
	WatchFilter string
	// Shard says which Clusters are served.
	Shard shard.Shard

	controller controller.Controller
	notes      notes
	metalLBs   metalLBs
}

// tenant is a Cluster while it is looked at.
type tenant struct {
	*Reconciler
	cluster *clusterv1.Cluster
	key     client.ObjectKey
	ref     v1alpha1.ClusterReference
	// config is nil where the Cluster gets nothing new. What it has stays as it is: apart reports whether that is
	// a pool for each block.
	config *v1alpha1.ProviderConfig
	apart  bool
	blocks []*v1alpha1.IPAllocation
	now    time.Time
	// live writes to the workload cluster, and reads what is there now.
	live client.Client
	// next is when to come back if nothing happens.
	next time.Duration
}

// Reconcile brings one Cluster forward.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Synced() {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil // without its blocks a Cluster would be shown none
	}
	t := &tenant{Reconciler: r, key: req.NamespacedName, cluster: &clusterv1.Cluster{}, now: r.Clock.Now(), next: guard.ServedBackstop}
	t.ref = v1alpha1.ClusterReference{Namespace: req.Namespace, Name: req.Name}
	shown := r.Blocks.Projects(t.key)
	if err := r.Client.Get(ctx, req.NamespacedName, t.cluster); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, err
		}
		r.notes.forget(t.key)
		r.metalLBs.end(t.key)
		if !shown {
			return reconcile.Result{}, nil
		}
		t.blocks = r.Blocks.Of(t.key)
		return reconcile.Result{}, t.endIfGone(ctx)
	}
	if !shown && t.cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		r.metalLBs.end(t.key)
		return reconcile.Result{}, nil // most Clusters are none of ours, however many blocks are for them
	}
	t.blocks = r.Blocks.Of(t.key)
	if guard.LeavesAlone(t.cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	err := t.look(ctx)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: time.Second}, nil // what is there now is on its way to us, and wakes us
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: t.next}, nil
}

// look is one look at the Cluster. Its API server may take its time with each answer: no longer than that is another
// Cluster kept waiting.
func (t *tenant) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return t.reconcile(ctx)
}

func (t *tenant) reconcile(ctx context.Context) error {
	if !t.cluster.DeletionTimestamp.IsZero() && slices.Equal(t.cluster.Finalizers, []string{v1alpha1.TenantNetworkFinalizer}) {
		return t.end(ctx) // nobody else holds the Cluster: its machines are gone
	}
	if err := t.configure(ctx); err != nil {
		return err
	}
	if t.config == nil && !slices.ContainsFunc(t.blocks, tenancy.Projected) {
		t.metalLBs.end(t.key)
		return nil
	}
	cached, m, err := t.connect(ctx)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		t.metalLBs.end(t.key)
		return t.unreachable(ctx)
	}
	if err != nil {
		return err
	}
	observed, err := t.observe(ctx, cached, m)
	if err != nil {
		return fmt.Errorf("reading Cluster %s: %w", t.key, err)
	}
	if !observed.Installed {
		t.soon(metalLBBackstop)
		return errors.Join(t.demand(ctx, metalLBMissing()), t.drain(ctx))
	}
	if err := t.watchMetalLB(m); err != nil {
		return err
	}
	return t.serve(ctx, observed)
}

// configure finds the ProviderConfig that the Cluster's blocks come from.
func (t *tenant) configure(ctx context.Context) error {
	if t.cluster.Labels[v1alpha1.ProviderConfigLabel] == "" || !t.cluster.DeletionTimestamp.IsZero() {
		return nil
	}
	config, _, err := lookup.ConfigOf(ctx, t.Client, t.cluster)
	if err != nil {
		return err
	}
	if config != nil && config.Network().Mode == v1alpha1.IPAMMode {
		t.config = config
	}
	return nil
}

// serve does what the Services ask for: growth first, as somebody waits for it.
func (t *tenant) serve(ctx context.Context, observed *metallb.Observed) error {
	t.apart = slices.ContainsFunc(t.blocks, func(a *v1alpha1.IPAllocation) bool { return observed.Shows(a.Name) })
	s := t.settings()
	pools, err := t.pools(ctx)
	if err != nil {
		return err
	}
	described := t.describe()
	assessed := elastic.Assess(elastic.Inventory{
		Services: observed.Services, Class: s.class, Grows: families(pools),
		Pools: observed.Pools(t.shown(s, living), s.grows()),
	})
	plan := elastic.Decide(assessed, described, s.Settings, t.now)
	if !plan.Next.IsZero() {
		t.soon(plan.Next.Sub(t.now))
	}
	t.observeServices(assessed, described)
	exhausted, err := t.grow(ctx, pools, assessed, plan, s)
	if err != nil {
		return err
	}
	// What is known of the blocks is said even where the workload cluster does not answer now.
	err = errors.Join(
		t.show(ctx, observed, s),
		t.mark(ctx, described, plan, s),
		t.drain(ctx),
	)
	if t.config == nil {
		return err // nobody knows whether growth would help
	}
	unplaced, unknown := t.unplaced(ctx, observed, assessed)
	return errors.Join(err, unknown, t.demand(ctx, satisfaction(assessed, plan, s, exhausted, unplaced)), t.tellServices(ctx, assessed))
}

// pools are those that the Cluster's blocks come from.
func (t *tenant) pools(ctx context.Context) ([]tenancy.Pool, error) {
	if t.config == nil {
		return nil, nil
	}
	return lookup.PoolsOf(ctx, t.Client, t.config)
}

// families are those that pools have addresses of.
func families(pools []tenancy.Pool) (out [2]bool) {
	for _, p := range pools {
		out[elastic.IPv4] = out[elastic.IPv4] || !p.IPv6
		out[elastic.IPv6] = out[elastic.IPv6] || p.IPv6
	}
	return out
}

// unreachable says that nothing is known of the Cluster, and keeps all that it has. The connection wakes us.
func (t *tenant) unreachable(ctx context.Context) error {
	t.soon(guard.WaitingBackstop)
	is, err := t.withoutKubeconfig(ctx)
	// One that was never looked at is being built; one that was not tried yet may answer.
	if tried := t.Clusters.GetHealthCheckingState(ctx, t.key); is == nil && tried.ConsecutiveFailures > 0 && slices.ContainsFunc(t.blocks, lookedAt) {
		is = tenantUnreachable()
	}
	return errors.Join(err, t.demand(ctx, is), t.drain(ctx))
}

// lookedAt reports whether the Services of a Cluster were seen.
func lookedAt(a *v1alpha1.IPAllocation) bool {
	return tenancy.Projected(a) || meta.FindStatusCondition(a.Status.Conditions, v1alpha1.DemandSatisfiedCondition) != nil
}

func (t *tenant) soon(d time.Duration) { t.next = min(t.next, max(d, time.Millisecond)) }

// settings are those that decide for one Cluster.
type settings struct {
	elastic.Settings
	elastic    bool
	projection v1alpha1.Projection
	class      string
}

func (t *tenant) settings() settings {
	s := settings{Settings: elastic.Settings{Increment: v1alpha1.DefaultGrowthIncrement, Quota: -1, Grace: t.Grace}, projection: v1alpha1.DefaultPoolProjection}
	if t.config == nil {
		if t.apart {
			s.projection = v1alpha1.PoolPerAllocationProjection
		}
		return s
	}
	network := t.config.Network()
	s.elastic = tenancy.Elastic(network)
	if lb := network.LoadBalancer; lb != nil {
		s.class = lb.Class
		if lb.Projection != "" {
			s.projection = lb.Projection
		}
		if lb.GrowthIncrement != nil {
			s.Increment = int64(*lb.GrowthIncrement)
		}
	}
	if q := network.QuotaPerTenant; q != nil && q.MaxLoadBalancerIPs != nil {
		s.Quota = int64(*q.MaxLoadBalancerIPs)
	}
	return s
}

// grows is the pool that growth is added to: with a pool for each block, one that does not exist yet.
func (s settings) grows() string {
	if s.projection == v1alpha1.PoolPerAllocationProjection {
		return ""
	}
	return metallb.DefaultPool
}
