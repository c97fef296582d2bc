package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=ipallocations,verbs=create
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters/status,verbs=patch

const (
	// waitingBackstop and servedBackstop are how often a Cluster is looked at, whatever the watches say.
	waitingBackstop = 30 * time.Second
	servedBackstop  = 5 * time.Minute
)

// ClusterReconciler gives Clusters that name a ProviderConfig their load-balancer block, and takes it back
// when they are gone. What is decided is in internal/tenancy; the block itself is the allocator's.
type ClusterReconciler struct {
	Client client.Client
	// Live reads from the API server: IPAllocations are in no cache of their own.
	Live        client.Reader
	Recorder    events.EventRecorder
	WatchFilter string
	// Namespace, where set, is the only one that is watched.
	Namespace string
	// QuotaChanged is told of Clusters whose quota may be another one.
	QuotaChanged func(client.ObjectKey)
	// Blocks wake it.
	Blocks *Blocks
	// Shard says which Clusters are served.
	Shard shard.Shard
}

// Reconcile brings one Cluster forward.
func (r *ClusterReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // what it had is an orphan
	}
	if leftAlone(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	r.QuotaChanged(req.NamespacedName) // or it may have; claims of it wait in pools of any shard
	if !r.Shard.Has(clusterKind, req.Namespace, req.Name) {
		return reconcile.Result{}, nil
	}
	if !cluster.DeletionTimestamp.IsZero() {
		return r.release(ctx, cluster)
	}
	if cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		return reconcile.Result{}, nil
	}
	config, no, err := configOf(ctx, r.Client, cluster)
	if err == nil && no != nil {
		config, no, err = configOf(ctx, r.Live, cluster) // the cache may be behind
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if no != nil {
		return r.tell(ctx, cluster, *no)
	}
	if config.Network().Mode != v1alpha1.IPAMMode {
		return r.untell(ctx, cluster)
	}
	return r.serve(ctx, cluster, config)
}

// configOf finds the ProviderConfig that a Cluster names: the one of its own namespace, else the one that
// admits its namespace. It returns what to tell the Cluster where there is none.
func configOf(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster) (*v1alpha1.ProviderConfig, *tenancy.Decision, error) {
	name := cluster.Labels[v1alpha1.ProviderConfigLabel]
	all := &v1alpha1.ProviderConfigList{}
	if err := reader.List(ctx, all); err != nil {
		return nil, nil, fmt.Errorf("listing the ProviderConfigs: %w", err)
	}
	from, err := namespaceOf(ctx, reader, cluster.Namespace)
	if err != nil {
		return nil, nil, err
	}
	var admitted []*v1alpha1.ProviderConfig
	denied := ""
	for i := range all.Items {
		config := &all.Items[i]
		if config.Name != name {
			continue
		}
		if config.Namespace == cluster.Namespace {
			return config, nil, nil
		}
		if a := tenancy.Admits(config, from); a.Allowed {
			admitted = append(admitted, config)
		} else {
			denied = a.Message
		}
	}
	switch {
	case len(admitted) == 1:
		return admitted[0], nil, nil
	case len(admitted) > 1:
		return nil, &tenancy.Decision{Reason: v1alpha1.ValidationFailedReason, Message: fmt.Sprintf(
			"ProviderConfigs of the name %s in the namespaces %s and %s serve this Cluster; rename one of them", name, admitted[0].Namespace, admitted[1].Namespace)}, nil
	case denied != "":
		return nil, &tenancy.Decision{Reason: v1alpha1.AccessDeniedReason, Message: denied}, nil
	}
	return nil, &tenancy.Decision{Reason: v1alpha1.NetworkNotReadyReason, Message: fmt.Sprintf(
		"ProviderConfig %s does not exist; create it or correct the label %s", name, v1alpha1.ProviderConfigLabel)}, nil
}

// NodeQuota is how many addresses for machines a Cluster may have; false: any number.
func (r *ClusterReconciler) NodeQuota(ctx context.Context, key client.ObjectKey) (limit int64, limited bool) {
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); err != nil || cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		return 0, false
	}
	config, _, err := configOf(ctx, r.Client, cluster)
	if err != nil || config == nil {
		return 0, false
	}
	network := config.Network()
	if network.Mode != v1alpha1.IPAMMode || network.QuotaPerTenant == nil || network.QuotaPerTenant.MaxNodeIPs == nil {
		return 0, false
	}
	return int64(*network.QuotaPerTenant.MaxNodeIPs), true
}

// serve does the next thing for a Cluster that is to have a block.
func (r *ClusterReconciler) serve(ctx context.Context, cluster *clusterv1.Cluster, config *v1alpha1.ProviderConfig) (reconcile.Result, error) {
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	standing, err := r.standing(ctx, config.Namespace, tenancy.Name(ref))
	if err != nil {
		return reconcile.Result{}, err
	}
	if standing != nil && !tenancy.Owns(ref, standing) {
		other := standing.Spec.TenantClusterRef
		return r.tell(ctx, cluster, tenancy.Decision{Reason: v1alpha1.NetworkNotReadyReason, Message: fmt.Sprintf(
			"IPAllocation %s/%s is for Cluster %s/%s, whose names make the same name; rename one of the two Clusters",
			standing.Namespace, standing.Name, other.Namespace, other.Name)})
	}
	size, err := tenancy.Size(config.Network(), cluster.Annotations)
	if err != nil {
		return r.tell(ctx, cluster, standingOf(standing).Keep(err))
	}
	pools, err := poolsOf(ctx, r.Client, config)
	if err != nil {
		return reconcile.Result{}, err
	}
	situation := tenancy.Situation{Config: client.ObjectKeyFromObject(config), Count: size.Count, Pools: pools, Tried: tenancy.ParseTried(cluster.Annotations[v1alpha1.TriedPoolsAnnotation])}
	situation.Standing = standingOf(standing)
	if err := r.labelAll(ctx, cluster); err != nil {
		return conflictAgain(err, "labelling the IPAllocations of the Cluster")
	}
	if err := r.labelOurs(ctx, standing); err != nil {
		return conflictAgain(err, "labelling IPAllocation "+standing.Name)
	}
	decision := tenancy.Next(situation)
	// First what must not be lost: what was tried, and that there is something to release.
	if err := r.note(ctx, cluster, decision); err != nil {
		return conflictAgain(err, "noting on the Cluster what was tried")
	}
	switch decision.Action {
	case tenancy.Try:
		block := blockFor(ref, config, tenancy.Name(ref), v1alpha1.InitialRole, decision.Pool, size.Count)
		filtered(block, r.WatchFilter)
		err = client.IgnoreAlreadyExists(r.Client.Create(ctx, block))
	case tenancy.Replace:
		err = client.IgnoreNotFound(r.Client.Delete(ctx, standing,
			client.Preconditions{UID: &standing.UID, ResourceVersion: &standing.ResourceVersion}))
	case tenancy.Done, tenancy.Wait, tenancy.Exhausted:
	}
	if err != nil {
		return conflictAgain(err, fmt.Sprintf("asking for a block (%s)", decision.Action))
	}
	return r.tell(ctx, cluster, decision)
}

// standingOf describes what a Cluster has under its name, nil if nothing.
func standingOf(a *v1alpha1.IPAllocation) *tenancy.Standing {
	if a == nil {
		return nil
	}
	return tenancy.StandingOf(a)
}

// standing reads the IPAllocation of a name, nil if there is none.
func (r *ClusterReconciler) standing(ctx context.Context, namespace, name string) (*v1alpha1.IPAllocation, error) {
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
func (r *ClusterReconciler) note(ctx context.Context, cluster *clusterv1.Cluster, d tenancy.Decision) error {
	before := cluster.DeepCopy()
	noted := setTried(cluster, v1alpha1.TriedPoolsAnnotation, d.Tried)
	added := controllerutil.AddFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	if !added && !noted {
		return nil
	}
	return r.Client.Patch(ctx, cluster, sinceRead(before))
}

// release gives back what a deleted Cluster had, once nobody else holds the Cluster: while its machines
// exist they may still answer for its addresses.
func (r *ClusterReconciler) release(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if !slices.Equal(cluster.Finalizers, []string{v1alpha1.TenantNetworkFinalizer}) {
		return reconcile.Result{}, nil
	}
	ref := v1alpha1.ClusterReference{Namespace: cluster.Namespace, Name: cluster.Name}
	left, err := blocksOf(ctx, r.Live, ref, r.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	for _, a := range left {
		if living(a) {
			if err := client.IgnoreNotFound(r.Client.Delete(ctx, a, client.Preconditions{UID: &a.UID})); err != nil {
				return reconcile.Result{}, fmt.Errorf("deleting IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
			}
		}
	}
	if len(left) > 0 {
		return reconcile.Result{RequeueAfter: waitingBackstop}, nil // their end wakes us
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, v1alpha1.TenantNetworkFinalizer)
	err = r.Client.Patch(ctx, cluster, sinceRead(before))
	return conflictAgain(client.IgnoreNotFound(err), "letting go of the Cluster")
}

// tell writes the NetworkReady condition of a Cluster, and an event where its reason is new.
func (r *ClusterReconciler) tell(ctx context.Context, cluster *clusterv1.Cluster, d tenancy.Decision) (reconcile.Result, error) {
	after := waitingBackstop
	if d.Action == tenancy.Done {
		after = servedBackstop
	}
	is := networkReady(d)
	was := conditionOf(cluster)
	if was != nil && was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
		return reconcile.Result{RequeueAfter: after}, nil
	}
	if err := r.changeCondition(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Set(c, is) }); err != nil {
		return conflictAgain(client.IgnoreNotFound(err), "writing the condition NetworkReady")
	}
	if is.Reason != v1alpha1.ReconcilingReason && (was == nil || was.Reason != is.Reason) {
		kind := corev1.EventTypeNormal
		if is.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(cluster, nil, kind, "Network"+is.Reason, "Allocate", "%s", is.Message)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// untell takes the condition off a Cluster that has come to need nothing from us.
func (r *ClusterReconciler) untell(ctx context.Context, cluster *clusterv1.Cluster) (reconcile.Result, error) {
	if conditionOf(cluster) == nil {
		return reconcile.Result{}, nil
	}
	err := r.changeCondition(ctx, cluster, func(c *clusterv1.Cluster) { conditions.Delete(c, v1alpha1.NetworkReadyCondition) })
	return conflictAgain(client.IgnoreNotFound(err), "taking off the condition NetworkReady")
}

// conflictAgain makes a conflict a quiet retry: what is there now is read first.
func conflictAgain(err error, doing string) (reconcile.Result, error) {
	switch {
	case err == nil:
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return reconcile.Result{}, fmt.Errorf("%s: %w", doing, err)
}
