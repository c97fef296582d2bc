// Package cluster gives Clusters their first load-balancer block, sets their condition NetworkReady, and releases what
// they had.
package cluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations,verbs=get;list;create;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters/status,verbs=patch

// Reconciler gives Clusters that name a ProviderConfig their load-balancer block, and releases it when they are gone.
// It decides by internal/tenancy; the allocator grants the block itself.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server: IPAllocations are in no cache of their own.
	Live        client.Reader
	Recorder    events.EventRecorder
	WatchFilter string
	// LoadBalancers reports whether Clusters get blocks, as ProviderConfigs define. Clusters that are deleted release
	// what they have in any case, whichever manager gave it.
	LoadBalancers bool
	// NeedsPodCIDRs reports whether the Nodes of a Cluster get pod CIDRs, for which the Cluster has the same finalizer.
	NeedsPodCIDRs func(context.Context, *clusterv1.Cluster) bool
	// Namespace is the only namespace that is watched, if it is set.
	Namespace string
	// Blocks enqueues Clusters.
	Blocks *index.BlockIndex
	// Shard decides which Clusters are served.
	Shard shard.Shard
}

// Reconcile reconciles one Cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		if apierrors.IsNotFound(err) && r.Shard.Has(guard.ClusterKind, req.Namespace, req.Name) {
			err = r.releaseDeletedCluster(ctx, req.NamespacedName) // its other blocks are orphans
		}
		return guard.RequeueOnConflict(client.IgnoreNotFound(err), "releasing the blocks of a deleted Cluster")
	}
	if !r.Shard.Has(guard.ClusterKind, req.Namespace, req.Name) {
		return reconcile.Result{}, nil
	}
	if ending.IsMoved(cluster) {
		return r.finishMove(ctx, cluster)
	}
	if guard.ShouldSkipCluster(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	if !cluster.DeletionTimestamp.IsZero() {
		return r.reconcileDelete(ctx, cluster)
	}
	if !r.LoadBalancers {
		return reconcile.Result{}, nil
	}
	if cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		return r.withdrawBlocks(ctx, cluster, "the label "+v1alpha1.ProviderConfigLabel+" was removed")
	}
	config, refusal, err := lookup.FindProviderConfig(ctx, r.Client, cluster, nil)
	if err == nil && refusal != nil {
		config, refusal, err = r.getLiveConfig(ctx, cluster)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if refusal != nil {
		return r.reportDecision(ctx, cluster, *refusal)
	}
	if config.Network().Mode != v1alpha1.IPAMMode {
		return r.withdrawBlocks(ctx, cluster, fmt.Sprintf("ProviderConfig %s/%s has no mode ipam", config.Namespace, config.Name))
	}
	return r.reconcileBlock(ctx, cluster, config)
}

// getLiveConfig finds the ProviderConfig of a Cluster by live reads, as the cache may be behind. A Cluster that has
// blocks keeps their ProviderConfig.
func (r *Reconciler) getLiveConfig(ctx context.Context, cluster *clusterv1.Cluster) (*v1alpha1.ProviderConfig, *tenancy.Decision, error) {
	blocks, err := lookup.ListBlocks(ctx, r.Live, v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}, r.Namespace)
	if err != nil {
		return nil, nil, err
	}
	return lookup.FindProviderConfig(ctx, r.Live, cluster, blocks)
}

// reconcileBlock does the next step for a Cluster that should have a block.
func (r *Reconciler) reconcileBlock(ctx context.Context, cluster *clusterv1.Cluster, config *v1alpha1.ProviderConfig) (reconcile.Result, error) {
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	current, err := r.getLiveAllocation(ctx, config.Namespace, tenancy.InitialBlockName(ref))
	if err != nil {
		return reconcile.Result{}, err
	}
	if current != nil && !tenancy.OwnsAllocation(ref, current) {
		return r.reportDecision(ctx, cluster, tenancy.NameTakenDecision(current))
	}
	if current == nil {
		earlier, err := r.findEarlierBlock(ctx, ref)
		if err != nil {
			return reconcile.Result{}, err
		}
		if earlier != nil {
			return r.keepEarlierBlock(ctx, cluster, config, earlier)
		}
		moved, err := lookup.FindMovedBlock(ctx, r.Client, ref, config.Namespace, func(name string) bool { return name != tenancy.InitialBlockName(ref) })
		if err != nil {
			return reconcile.Result{}, err
		}
		if moved != "" {
			return r.reportDecision(ctx, cluster, tenancy.Decision{Action: tenancy.ActionWait, Reason: v1alpha1.MovedReason, Message: moved})
		}
	}
	size, err := tenancy.ComputeInitialSize(config.Network(), cluster.Annotations)
	if err != nil {
		return r.reportDecision(ctx, cluster, currentAllocation(current).KeepDecision(err))
	}
	pools, err := lookup.ListPools(ctx, r.Client, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	situation := tenancy.AllocationRequest{Config: client.ObjectKeyFromObject(config), Count: size.Count, Pools: pools, Attempts: tenancy.ParseAttempts(cluster.Annotations[v1alpha1.TriedPoolsAnnotation])}
	situation.Current = currentAllocation(current)
	if err := r.labelAllocations(ctx, cluster); err != nil {
		return guard.RequeueOnConflict(err, "labelling the IPAllocations of the Cluster")
	}
	if err := r.addWatchLabel(ctx, current); err != nil {
		return guard.RequeueOnConflict(err, "labelling IPAllocation "+current.Name)
	}
	decision := tenancy.DecideInitialBlock(situation)
	// First write what must not be lost: what was tried, and that there is something to release.
	if err := r.recordTriedPools(ctx, cluster, decision); err != nil {
		return guard.RequeueOnConflict(err, "recording the tried pools on the Cluster")
	}
	switch decision.Action {
	case tenancy.ActionCreate:
		block := tenancy.NewAllocation(ref, config, tenancy.InitialBlockName(ref), v1alpha1.InitialRole, decision.Pool, size.Count)
		guard.AddWatchLabel(block, r.WatchFilter)
		err = client.IgnoreAlreadyExists(r.Client.Create(ctx, block))
	case tenancy.ActionReplace:
		err = client.IgnoreNotFound(exact.DeleteWithPreconditions(ctx, r.Client, current))
	case tenancy.ActionDone, tenancy.ActionWait, tenancy.ActionExhausted:
	}
	if err != nil {
		return guard.RequeueOnConflict(err, fmt.Sprintf("asking for a block (%s)", decision.Action))
	}
	return r.reportDecision(ctx, cluster, decision)
}

// currentAllocation describes the IPAllocation that a Cluster has under its name, nil if there is none.
func currentAllocation(a *v1alpha1.IPAllocation) *tenancy.CurrentAllocation {
	if a == nil {
		return nil
	}
	return tenancy.NewCurrentAllocation(a)
}

// getLiveAllocation reads an IPAllocation by name, nil if there is none.
func (r *Reconciler) getLiveAllocation(ctx context.Context, namespace, name string) (*v1alpha1.IPAllocation, error) {
	out := &v1alpha1.IPAllocation{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, out)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("reading IPAllocation %s/%s: %w", namespace, name, err)
	}
	return out, nil
}

// recordTriedPools writes on a Cluster which pools had nothing for it, and the finalizer that makes its deletion wait
// for us.
func (r *Reconciler) recordTriedPools(ctx context.Context, cluster *clusterv1.Cluster, d tenancy.Decision) error {
	before := cluster.DeepCopy()
	noted := tenancy.SetAttemptsAnnotation(cluster, v1alpha1.TriedPoolsAnnotation, d.Attempts)
	added := controllerutil.AddFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	if !added && !noted {
		return nil
	}
	return r.Client.Patch(ctx, cluster, guard.NewOptimisticPatch(before))
}
