// Package cluster gives Clusters their first load-balancer block, says so on them, and releases what they had.
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

// Reconciler gives Clusters that name a ProviderConfig their load-balancer block, and takes it back
// when they are gone. What is decided is in internal/tenancy; the block itself is the allocator's.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server: IPAllocations are in no cache of their own.
	Live        client.Reader
	Recorder    events.EventRecorder
	WatchFilter string
	// LoadBalancers reports whether Clusters get blocks, as ProviderConfigs say. Those that are deleted give back what they
	// have, by whomever.
	LoadBalancers bool
	// NodesWant reports whether the Nodes of a Cluster get pod CIDRs, for which it has the same finalizer.
	NodesWant func(context.Context, *clusterv1.Cluster) bool
	// Namespace, where set, is the only one that is watched.
	Namespace string
	// Blocks wake it.
	Blocks *index.Blocks
	// Shard says which Clusters are served.
	Shard shard.Shard
}

// Reconcile brings one Cluster forward.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		if apierrors.IsNotFound(err) && r.Shard.Has(guard.ClusterKind, req.Namespace, req.Name) {
			err = r.releaseGone(ctx, req.NamespacedName) // what else it had is an orphan
		}
		return guard.Retry(client.IgnoreNotFound(err), "letting go of what a Cluster had that is gone")
	}
	if !r.Shard.Has(guard.ClusterKind, req.Namespace, req.Name) {
		return reconcile.Result{}, nil
	}
	if ending.IsMoved(cluster) {
		return r.endMove(ctx, cluster)
	}
	if guard.LeavesAlone(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	if !cluster.DeletionTimestamp.IsZero() {
		return r.release(ctx, cluster)
	}
	if !r.LoadBalancers {
		return reconcile.Result{}, nil
	}
	if cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		return r.withdraw(ctx, cluster, "the label "+v1alpha1.ProviderConfigLabel+" was taken off")
	}
	config, no, err := lookup.ConfigOf(ctx, r.Client, cluster, nil)
	if err == nil && no != nil {
		config, no, err = r.configOf(ctx, cluster)
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if no != nil {
		return r.report(ctx, cluster, *no)
	}
	if config.Network().Mode != v1alpha1.IPAMMode {
		return r.withdraw(ctx, cluster, fmt.Sprintf("ProviderConfig %s/%s has no mode ipam", config.Namespace, config.Name))
	}
	return r.serve(ctx, cluster, config)
}

// configOf finds the ProviderConfig of a Cluster by live reads: the cache may be behind. One that has blocks keeps theirs.
func (r *Reconciler) configOf(ctx context.Context, cluster *clusterv1.Cluster) (*v1alpha1.ProviderConfig, *tenancy.Decision, error) {
	blocks, err := lookup.BlocksOf(ctx, r.Live, v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}, r.Namespace)
	if err != nil {
		return nil, nil, err
	}
	return lookup.ConfigOf(ctx, r.Live, cluster, blocks)
}

// serve does the next thing for a Cluster that is to have a block.
func (r *Reconciler) serve(ctx context.Context, cluster *clusterv1.Cluster, config *v1alpha1.ProviderConfig) (reconcile.Result, error) {
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	standing, err := r.standing(ctx, config.Namespace, tenancy.Name(ref))
	if err != nil {
		return reconcile.Result{}, err
	}
	if standing != nil && !tenancy.Owns(ref, standing) {
		return r.report(ctx, cluster, tenancy.Taken(standing))
	}
	if standing == nil {
		earlier, err := r.earlier(ctx, ref)
		if err != nil {
			return reconcile.Result{}, err
		}
		if earlier != nil {
			return r.keep(ctx, cluster, config, earlier)
		}
		moved, err := lookup.MovedAway(ctx, r.Client, ref, config.Namespace, func(name string) bool { return name != tenancy.Name(ref) })
		if err != nil {
			return reconcile.Result{}, err
		}
		if moved != "" {
			return r.report(ctx, cluster, tenancy.Decision{Action: tenancy.Wait, Reason: v1alpha1.MovedReason, Message: moved})
		}
	}
	size, err := tenancy.Size(config.Network(), cluster.Annotations)
	if err != nil {
		return r.report(ctx, cluster, standingOf(standing).Keep(err))
	}
	pools, err := lookup.PoolsOf(ctx, r.Client, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	situation := tenancy.Situation{Config: client.ObjectKeyFromObject(config), Count: size.Count, Pools: pools, Tried: tenancy.ParseTried(cluster.Annotations[v1alpha1.TriedPoolsAnnotation])}
	situation.Standing = standingOf(standing)
	if err := r.labelAll(ctx, cluster); err != nil {
		return guard.Retry(err, "labelling the IPAllocations of the Cluster")
	}
	if err := r.labelOurs(ctx, standing); err != nil {
		return guard.Retry(err, "labelling IPAllocation "+standing.Name)
	}
	decision := tenancy.Next(situation)
	// First what must not be lost: what was tried, and that there is something to release.
	if err := r.note(ctx, cluster, decision); err != nil {
		return guard.Retry(err, "noting on the Cluster what was tried")
	}
	switch decision.Action {
	case tenancy.Try:
		block := tenancy.Request(ref, config, tenancy.Name(ref), v1alpha1.InitialRole, decision.Pool, size.Count)
		guard.Label(block, r.WatchFilter)
		err = client.IgnoreAlreadyExists(r.Client.Create(ctx, block))
	case tenancy.Replace:
		err = client.IgnoreNotFound(exact.Delete(ctx, r.Client, standing))
	case tenancy.Done, tenancy.Wait, tenancy.Exhausted:
	}
	if err != nil {
		return guard.Retry(err, fmt.Sprintf("asking for a block (%s)", decision.Action))
	}
	return r.report(ctx, cluster, decision)
}

// standingOf describes what a Cluster has under its name, nil if nothing.
func standingOf(a *v1alpha1.IPAllocation) *tenancy.Standing {
	if a == nil {
		return nil
	}
	return tenancy.StandingOf(a)
}

// standing reads the IPAllocation of a name, nil if there is none.
func (r *Reconciler) standing(ctx context.Context, namespace, name string) (*v1alpha1.IPAllocation, error) {
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

// note writes on a Cluster which pools had nothing for it, and that its deletion waits for us.
func (r *Reconciler) note(ctx context.Context, cluster *clusterv1.Cluster, d tenancy.Decision) error {
	before := cluster.DeepCopy()
	noted := tenancy.SetTried(cluster, v1alpha1.TriedPoolsAnnotation, d.Tried)
	added := controllerutil.AddFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	if !added && !noted {
		return nil
	}
	return r.Client.Patch(ctx, cluster, guard.SinceRead(before))
}
