package lease

import (
	"context"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// controllerName is what a namespace is called where managers share the namespaces.
const controllerName = "Namespace"

// concurrency is how many namespaces are worked on at once.
const concurrency = 10

// Cached are the settings of the cache for MetalLB's kinds: the manager may read them in no other namespace.
func Cached() map[client.Object]cache.ByObject {
	ofMetalLB := cache.ByObject{Namespaces: map[string]cache.Config{metallb.Namespace: {}}}
	return map[client.Object]cache.ByObject{&metallbv1beta1.IPAddressPool{}: ofMetalLB, &metallbv1beta1.L2Advertisement{}: ofMetalLB}
}

// SetupWithManager registers the watches: each wakes the namespace that it concerns.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, part shard.Shard) error {
	namespaceOf := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetNamespace()}}}
	})
	poolOf := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		p, is := o.(*metallbv1beta1.IPAddressPool)
		if !is {
			return nil
		}
		namespace, is := metallb.NamespaceOfLeasePool(p)
		if !is {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: namespace}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("lease").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Watches(&v1alpha1.IPLease{}, namespaceOf).
		Watches(&corev1.Service{}, namespaceOf, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return concernsObject(e.Object) },
			DeleteFunc: func(e event.DeleteEvent) bool { return concernsObject(e.Object) },
			UpdateFunc: func(e event.UpdateEvent) bool { return concernsObject(e.ObjectOld) || concernsObject(e.ObjectNew) },
		})).
		Watches(&metallbv1beta1.IPAddressPool{}, poolOf).
		Complete(guard.OfShard(part, controllerName, r))
}

func concernsObject(o client.Object) bool {
	s, is := o.(*corev1.Service)
	return is && concerns(s)
}
