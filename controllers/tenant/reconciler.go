// Package tenant makes the blocks of a Cluster follow the Services of its workload cluster: it shows them to its load
// balancer, requests more, and releases those that are unused.
//
// A reconcile of a Cluster reads (connect.go), decides by internal/demand, and writes (grow.go, show.go,
// blockconditions.go, drain.go, report.go). Each step takes the blocks as they are, and returns them as they are after
// it.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// missingBalancerBackstop is how often a Cluster without its load balancer is reconciled: no watch shows when a load
// balancer is installed.
const missingBalancerBackstop = 10 * time.Second

// Reconciler shows a Cluster's blocks to its load balancer, makes them follow what its Services request, and releases
// none before the Cluster has released it. It decides by internal/demand.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	// Blocks are the blocks of each Cluster; Synced reports whether all existing ones were read.
	Blocks *index.BlockIndex
	Synced func() bool
	// Clusters connects to the workload clusters.
	Clusters clustercache.ClusterCache
	// NewCache creates the cache that reads the load balancer of each workload cluster.
	NewCache cache.NewCacheFunc
	// Writes delays the writes to workload clusters that another writer reverts.
	Writes *pace.WritePacer
	Clock  clock.PassiveClock
	// GracePeriod is how long a block that was added on demand stays without being used.
	GracePeriod time.Duration
	WatchFilter string
	// Shard decides which Clusters are served.
	Shard shard.Shard

	controller   controller.Controller
	tracker      stateTracker
	slowClusters workloads.SlowClusters
	// apiServerAnswers are the answers of API servers that the manager is not connected to.
	apiServerAnswers workloads.AccessProber
	// enqueueCluster enqueues a Cluster.
	enqueueCluster func(client.ObjectKey)
	balancerCaches balancerCaches
}

// scope is one reconcile of a Cluster.
type scope struct {
	*Reconciler

	cluster    *clusterv1.Cluster
	clusterKey client.ObjectKey
	clusterRef v1alpha1.ClusterReference
	now        time.Time
	// loadBalancer is the choice of the load balancer to serve; deferredBlocks are the blocks that wait for another
	// one.
	loadBalancer   tenancy.LoadBalancerChoice
	deferredBlocks allocations
	// refusalError is what the API server of the Cluster refuses, if that is why nothing is known.
	refusalError error
	// conditionDelay is how long until a condition may be written that another writer reverts; 0 if none waits.
	conditionDelay requeueDelay
}

// Reconcile reconciles one Cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Synced() {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil // without its blocks a Cluster would be shown none
	}
	cluster, key, shown := &clusterv1.Cluster{}, req.NamespacedName, r.Blocks.HasProjectedBlock(req.NamespacedName)
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, err
		}
		r.tracker.forgetCluster(key)
		r.slowClusters.ForgetCluster(key)
		r.apiServerAnswers.ForgetCluster(key)
		r.balancerCaches.removeCluster(key)
		if !shown {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, r.releaseIfClusterGone(ctx, key, r.Blocks.LoadBalancerBlocks(key))
	}
	if !shown && !r.Blocks.HasDemandCondition(key) && cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		r.balancerCaches.removeCluster(key)
		return reconcile.Result{}, nil // most Clusters are not ours, however many blocks they have
	}
	if guard.ShouldSkipCluster(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	l := &scope{
		Reconciler: r, cluster: cluster, clusterKey: key, clusterRef: v1alpha1.ClusterReference{Namespace: key.Namespace, Name: key.Name}, now: r.Clock.Now(),
	}
	next, err := r.slowClusters.RunBounded(ctx, key, func(ctx context.Context) (time.Duration, error) {
		next, err := l.reconcileOnce(ctx, r.Blocks.LoadBalancerBlocks(key))
		return time.Duration(next), err
	})
	after, err := pace.SplitDelayed(err)
	if apierrors.IsConflict(err) {
		return guard.RequeueWithBackoff(), nil // the watch brings the current state
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: time.Duration(requeueDelay(next).minWait(requeueDelay(after)).minWait(l.conditionDelay).minWait(requeueDelay(guard.ServedResyncPeriod)))}, nil
}

func (sc *scope) reconcileOnce(ctx context.Context, all allocations) (requeueDelay, error) {
	if guard.HasOnlyOurFinalizer(sc.cluster) {
		return 0, sc.releaseDeletedBlocks(ctx, all) // no other finalizer is on the Cluster: its Machines are gone
	}
	config, err := sc.providerConfig(ctx)
	if err != nil {
		return 0, err
	}
	if config == nil && !slices.ContainsFunc(all, tenancy.IsProjected) {
		sc.balancerCaches.removeCluster(sc.clusterKey)
		_, err := sc.removeDemandConditions(ctx, all, "")
		return 0, err
	}
	moved, err := sc.hasMovedBlocks(ctx, config, all)
	if moved || err != nil {
		return requeueDelay(guard.WaitingResyncPeriod), err
	}
	sc.loadBalancer = tenancy.ChooseLoadBalancer(config, all)
	if sc.loadBalancer.Switching {
		config = nil
		all, sc.deferredBlocks = all.partitionProjected()
	}
	w, err := sc.connectWorkload(ctx)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		sc.balancerCaches.removeCluster(sc.clusterKey)
		return sc.reconcileUnreachable(ctx, all)
	}
	if err != nil {
		return 0, err
	}
	sc.apiServerAnswers.ForgetCluster(sc.clusterKey) // an earlier refusal is no evidence in the next outage
	observed, err := sc.observeWorkload(ctx, w)
	if workloads.IsAccessError(err) {
		return sc.reconcileRefused(ctx, w.liveClient, err, all)
	}
	if err != nil {
		return 0, fmt.Errorf("reading Cluster %s: %w", sc.clusterKey, err)
	}
	settings := tenancy.SettingsFromConfig(config, slices.ContainsFunc(all, func(a *v1alpha1.IPAllocation) bool { return observed.HasProjectedPool(a.Name) }))
	if !observed.IsInstalled() {
		return sc.reconcileMissingBalancer(ctx, w, settings, all)
	}
	if err := sc.watchBalancer(w.balancerCache); err != nil {
		return 0, err
	}
	if foreign := observed.DescribeForeignPool(sc.targetPoolNames(settings, all)...); foreign != "" {
		return sc.reconcileForeignPool(ctx, w, settings, foreign, all)
	}
	d, err := sc.decideBlocks(ctx, config, observed, settings, all)
	if err != nil {
		return 0, err
	}
	return sc.applyDecision(ctx, w, observed, d, all)
}

// providerConfig returns the ProviderConfig that the Cluster's blocks come from. It returns nil if the Cluster gets
// nothing new: what it has stays as it is.
func (sc *scope) providerConfig(ctx context.Context) (*v1alpha1.ProviderConfig, error) {
	if sc.cluster.Labels[v1alpha1.ProviderConfigLabel] == "" || !sc.cluster.DeletionTimestamp.IsZero() {
		return nil, nil //nolint:nilnil // none is an answer
	}
	config, _, err := lookup.FindProviderConfig(ctx, sc.Client, sc.cluster, sc.Blocks.LoadBalancerBlocks(sc.clusterKey))
	if err != nil || config == nil || config.Network().Mode != v1alpha1.IPAMMode {
		return nil, err
	}
	return config, nil
}

// hasMovedBlocks reports whether clusterctl has moved blocks of the Cluster to another management cluster, and was
// interrupted before it deleted the Cluster. What the load balancer shows stays: the other management cluster shows it
// when the move is over.
func (sc *scope) hasMovedBlocks(ctx context.Context, config *v1alpha1.ProviderConfig, all allocations) (bool, error) {
	namespace := sc.clusterKey.Namespace
	if config != nil {
		namespace = config.Namespace
	}
	moved, err := lookup.FindMovedBlock(ctx, sc.Client, sc.clusterRef, namespace, func(name string) bool { return all.findByName(name) != nil })
	return moved != "", err
}

// decideBlocks returns what to do with the blocks.
func (sc *scope) decideBlocks(ctx context.Context, config *v1alpha1.ProviderConfig, observed balancer.ObservedCluster, s tenancy.LoadBalancerSettings, all allocations) (demand.Decision, error) {
	c := demand.Cluster{Ref: sc.clusterRef, Annotations: sc.cluster.Annotations, ProviderConfig: config, Blocks: all}
	if config != nil {
		pools, err := lookup.ListPools(ctx, sc.Client, config)
		if err != nil {
			return demand.Decision{}, err
		}
		c.Pools = pools
	}
	assess := func(shown []elastic.DesiredPool, grows string, families [2]bool) elastic.Assessment {
		return observed.AssessServices(balancer.DesiredState{Pools: shown, GrowthPool: grows, GrowableFamilies: families, LoadBalancerClass: s.LoadBalancerClass})
	}
	w := demand.Workload{AssessServices: assess, UnreadablePool: observed.UnreadablePool(), SharedPool: sc.activeBalancer().SharedPoolName(), IsEmptied: sc.tracker.isEmptied}
	return demand.DecideBlocks(c, w, s, sc.GracePeriod, sc.now), nil
}

// applyDecision applies a decision: growth first, as Services wait for it.
func (sc *scope) applyDecision(ctx context.Context, w workloadClients, observed balancer.ObservedCluster, d demand.Decision, all allocations) (requeueDelay, error) {
	sc.updateMetrics(d)
	next := sc.requeueDelayUntil(d.NextCheck)
	grown, err := sc.growBlocks(ctx, d, all)
	if err != nil {
		return 0, err
	}
	// The conditions of the blocks are set even if the workload cluster does not answer now.
	all, showing, err := sc.projectBlocks(ctx, w.liveClient, observed, d.DesiredPools, all)
	all, marking, failed := sc.markBlocks(ctx, w.liveClient, d, all)
	err = errors.Join(err, failed)
	all, draining, failed := sc.drainBlocks(ctx, w.liveClient, d.Settings, all)
	err = errors.Join(err, failed)
	next = next.minWait(grown).minWait(showing).minWait(marking).minWait(draining)
	if d.ProviderConfig == nil { // it is unknown whether growth would help
		_, failed := sc.removeDemandConditions(ctx, slices.Concat(all, sc.deferredBlocks), "")
		return next, errors.Join(err, failed)
	}
	reporting, failed := sc.reportDemand(ctx, w.liveClient, observed, d, all)
	return next.minWait(reporting), errors.Join(err, failed)
}

// reconcileMissingBalancer sets the condition that there is no load balancer to show the blocks to.
func (sc *scope) reconcileMissingBalancer(ctx context.Context, w workloadClients, s tenancy.LoadBalancerSettings, all allocations) (requeueDelay, error) {
	reason, message := sc.activeBalancer().MissingReason()
	all, err := sc.setDemandCondition(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: reason, Message: message,
	}, all)
	_, next, failed := sc.drainBlocks(ctx, w.liveClient, s, all)
	return next.minWait(requeueDelay(missingBalancerBackstop)), errors.Join(err, failed)
}

// reconcileForeignPool sets the condition that a foreign pool is where the blocks should be shown. Nothing is added for
// Services meanwhile: no load balancer would see it.
func (sc *scope) reconcileForeignPool(ctx context.Context, w workloadClients, s tenancy.LoadBalancerSettings, foreign string, all allocations) (requeueDelay, error) {
	all, err := sc.setDemandCondition(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ForeignPoolReason, Message: foreign,
	}, all)
	_, next, failed := sc.drainBlocks(ctx, w.liveClient, s, all)
	return next, errors.Join(err, failed)
}

// targetPoolNames returns the names of the pools that should have the blocks of a Cluster.
func (sc *scope) targetPoolNames(s tenancy.LoadBalancerSettings, all allocations) (names []string) {
	for _, a := range all {
		_, granted := demand.GrantedRange(a)
		switch {
		case !granted:
		case s.PoolPerAllocation:
			names = append(names, a.Name)
		default:
			return []string{sc.activeBalancer().SharedPoolName()}
		}
	}
	return names
}

// reconcileUnreachable sets the condition that nothing is known of the Cluster, and keeps all that it has. The
// connection enqueues the Cluster.
func (sc *scope) reconcileUnreachable(ctx context.Context, all allocations) (requeueDelay, error) {
	var condition *metav1.Condition
	why, err := workloads.MissingKubeconfigReason(ctx, sc.Live, sc.cluster)
	if why != "" {
		condition = unreachableCondition()
		condition.Message = why
	}
	// A Cluster that was never observed is being built; one that was not tried yet may answer.
	if tried := sc.Clusters.GetHealthCheckingState(ctx, sc.clusterKey); condition == nil && tried.ConsecutiveFailures > 0 {
		if refused := sc.connectionRefusal(ctx); refused != nil {
			return sc.reconcileRefused(ctx, nil, refused, all)
		}
		if slices.ContainsFunc(all, wasObserved) {
			condition = unreachableCondition()
		}
	}
	all, conditionErr := sc.setDemandCondition(ctx, condition, all)
	_, next, failed := sc.drainBlocks(ctx, nil, tenancy.LoadBalancerSettings{}, all)
	return next.minWait(requeueDelay(guard.WaitingResyncPeriod)), errors.Join(err, conditionErr, failed)
}

// connectionRefusal returns what the API server of a Cluster that is not connected refuses, as far as is known; nil if
// nothing.
func (sc *scope) connectionRefusal(ctx context.Context) error {
	if !workloads.HasInfrastructure(sc.cluster) {
		return nil
	}
	return sc.apiServerAnswers.LastAccessError(ctx, sc.Live, sc.clusterKey, func() { sc.enqueueCluster(sc.clusterKey) })
}

// reconcileRefused sets the condition that a permission is missing in the workload cluster, and keeps all that the
// Cluster has. No watch shows when the permission is granted.
func (sc *scope) reconcileRefused(ctx context.Context, live client.Client, why error, all allocations) (requeueDelay, error) {
	sc.refusalError = why
	all, conditionErr := sc.setDemandCondition(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantRefusedReason,
		Message: workloads.NewAccessError(sc.clusterKey, why, "the Cluster keeps all of its blocks, and gets no others", sc.activeBalancer().RoleFile()).Error(),
	}, all)
	_, next, failed := sc.drainBlocks(ctx, live, tenancy.LoadBalancerSettings{}, all)
	return next.minWait(requeueDelay(guard.WaitingResyncPeriod)), errors.Join(conditionErr, failed)
}

// wasObserved reports whether the Services of a Cluster were observed.
func wasObserved(a *v1alpha1.IPAllocation) bool {
	return tenancy.IsProjected(a) || tenancy.HasDemandCondition(a)
}
