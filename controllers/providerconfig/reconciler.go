// Package providerconfig writes the status of ProviderConfigs: whether what they request can be served.
package providerconfig

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=providerconfigs,verbs=get;list;watch
// +kubebuilder:rbac:groups=butler.butlerlabs.dev,resources=providerconfigs/status,verbs=update

// resyncPeriod is the longest time between two reconciles of a ProviderConfig, whatever the watches show.
const resyncPeriod = 5 * time.Minute

// Reconciler reports whether the pools of a ProviderConfig exist and have room for another Cluster, and for how many.
// It writes the status and nothing else.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	Now      func() time.Time
	// Shard decides which ProviderConfigs are reconciled.
	Shard shard.Shard
}

// Reconcile updates the status of one ProviderConfig.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	config := &v1alpha1.ProviderConfig{}
	if err := r.Client.Get(ctx, req.NamespacedName, config); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := config.DeepCopy()
	if setPausedCondition(config); annotations.HasPaused(config) {
		return reconcile.Result{}, r.updateStatus(ctx, before, config)
	}
	network := config.Network()
	var pools []tenancy.Pool
	if network.Mode == v1alpha1.IPAMMode {
		var err error
		if pools, err = lookup.ListPools(ctx, r.Client, config); err != nil {
			return reconcile.Result{}, err
		}
	}
	result := tenancy.ValidateNetwork(network, pools)
	for _, c := range []*metav1.Condition{&result.PoolAvailable, &result.Ready} {
		c.Message = text.SanitizeMessage(c.Message)
	}
	conditions.Set(config, result.PoolAvailable)
	conditions.Set(config, result.Ready)
	s := &config.Status
	s.Capacity = tenancy.EstimateCapacity(network, pools)
	if s.LastValidationTime == nil || s.Validated != result.IsValid || s.ObservedGeneration != config.Generation {
		now := metav1.NewTime(r.Now())
		s.LastValidationTime = &now
	}
	s.Validated, s.Ready, s.ObservedGeneration = result.IsValid, result.Ready.Status == metav1.ConditionTrue, config.Generation
	if err := r.updateStatus(ctx, before, config); err != nil {
		return guard.RequeueOnConflict(err, fmt.Sprintf("writing the status of ProviderConfig %s", req.NamespacedName))
	}
	old := conditions.Get(before, v1alpha1.PoolAvailableCondition)
	if condition := result.PoolAvailable; condition.Reason == v1alpha1.PoolExhaustedReason && (old == nil || old.Reason != condition.Reason) {
		r.Recorder.Eventf(config, nil, corev1.EventTypeWarning, "PoolsExhausted", "Validate", "%s", condition.Message)
	}
	return reconcile.Result{RequeueAfter: resyncPeriod}, nil
}

// updateStatus writes the status if it has changed.
func (r *Reconciler) updateStatus(ctx context.Context, before, config *v1alpha1.ProviderConfig) error {
	if equality.Semantic.DeepEqual(before.Status, config.Status) {
		return nil
	}
	// Use no patch: it would leave out fields that are zero, and were zero, and must be present.
	return client.IgnoreNotFound(r.Client.Status().Update(ctx, config))
}

// setPausedCondition sets Cluster API's condition Paused. A ProviderConfig that was never paused does not have it, as
// pools do not.
func setPausedCondition(config *v1alpha1.ProviderConfig) {
	condition := metav1.Condition{
		Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.PausedReason,
		Message: "ProviderConfig has the annotation " + clusterv1.PausedAnnotation + "; its status is not brought up to date, and its Clusters are served; remove it to resume",
	}
	if !annotations.HasPaused(config) {
		if conditions.Get(config, clusterv1.PausedCondition) == nil {
			return
		}
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, clusterv1.NotPausedReason, "the ProviderConfig is no longer paused"
	}
	conditions.Set(config, condition)
}

// SetupWithManager registers the watches.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	users := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, pool client.Object) []reconcile.Request {
		return lookup.ConfigsNamingPool(ctx, r.Client, pool)
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.ProviderConfig{}).
		WithOptions(controller.Options{RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
		Watches(&v1alpha1.NetworkPool{}, users).
		Watches(&v1alpha1.GlobalNetworkPool{}, users).
		Complete(guard.NewShardReconciler(r.Shard, "ProviderConfig", r))
}
