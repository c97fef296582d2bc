package lease

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
)

// controllerName is the name of the kind for namespaces where managers divide them among themselves by shard.
const controllerName = "Namespace"

// maxConcurrentReconciles is how many namespaces are reconciled at once.
const maxConcurrentReconciles = 10

// These indexes of the cache have Services by the namespace of the leases that they name, where that is not their own,
// by their load balancer class, and by the addresses in their status; and IPAddressPools by the namespace whose leases
// they show.
const (
	foreignNamespaceIndex  = "leases.foreign"
	loadBalancerClassIndex = "leases.class"
	statusAddressIndex     = "leases.given"
	leaseNamespaceIndex    = "leases.namespace"
)

func foreignNamespaceKeys(o client.Object) []string {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	if asked, asks := leaseports.ParseServiceRequest(s); asks && asked.Namespace != s.Namespace {
		return []string{asked.Namespace}
	}
	return nil
}

func loadBalancerClassKeys(o client.Object) []string {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	if asked, asks := leaseports.ParseServiceRequest(s); asks && asked.LoadBalancerClass != "" {
		return []string{asked.LoadBalancerClass}
	}
	return nil
}

func statusAddressKeys(o client.Object) []string {
	s, ok := o.(*corev1.Service)
	if !ok {
		return nil
	}
	var out []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap().String())
		}
	}
	return out
}

func leaseNamespaceKeys(o client.Object) []string {
	p, ok := o.(*metallbv1beta1.IPAddressPool)
	if !ok {
		return nil
	}
	if namespace, isLeasePool := metallb.NamespaceForLeasePool(p); isLeasePool {
		return []string{namespace}
	}
	return nil
}

// SetupWithManager registers the watches: each enqueues the namespaces that an object concerns.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, part shard.Shard) error {
	for _, index := range []struct {
		of   client.Object
		name string
		key  client.IndexerFunc
	}{
		{&corev1.Service{}, foreignNamespaceIndex, foreignNamespaceKeys}, {&corev1.Service{}, loadBalancerClassIndex, loadBalancerClassKeys}, {&corev1.Service{}, statusAddressIndex, statusAddressKeys},
	} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, index.of, index.name, index.key); err != nil {
			return fmt.Errorf("indexing %T: %w", index.of, err)
		}
	}
	ofPools := handler.EnqueueRequestsFromMapFunc(r.requestsForPool)
	b := ctrl.NewControllerManagedBy(mgr).
		Named("lease").
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles, RateLimiter: guard.NewRateLimiter[reconcile.Request]()}).
		Watches(&v1alpha1.IPLease{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return requestsForNamespaces(o.GetNamespace())
		})).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(requestsForService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.requestsForEndpoints), builder.WithPredicates(predicate.Funcs{UpdateFunc: hasReadinessChanged})).
		Watches(&v1alpha1.NetworkPool{}, ofPools, poolChangePredicate).
		Watches(&v1alpha1.GlobalNetworkPool{}, ofPools, poolChangePredicate).
		Watches(lookup.NamespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.requestsForNamespace), builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{}))
	if r.MetalLB {
		if err := r.watchMetalLB(ctx, mgr, b); err != nil {
			return err
		}
	}
	if r.Hosts {
		if err := r.watchHosts(ctx, mgr, b); err != nil {
			return err
		}
	}
	return b.Complete(guard.NewShardReconciler(part, controllerName, r))
}

// watchMetalLB registers the watches of MetalLB's kinds.
func (r *Reconciler) watchMetalLB(ctx context.Context, mgr ctrl.Manager, b *builder.Builder) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &metallbv1beta1.IPAddressPool{}, leaseNamespaceIndex, leaseNamespaceKeys); err != nil {
		return fmt.Errorf("indexing IPAddressPools: %w", err)
	}
	b.Watches(&metallbv1beta1.IPAddressPool{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return requestsForNamespaces(leaseNamespaceKeys(o)...)
	})).
		Watches(&metallbv1beta1.IPAddressPool{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return requestsForNamespaces(r.refusals.forgetAll()...)
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&metallbv1beta1.L2Advertisement{}, handler.EnqueueRequestsFromMapFunc(r.requestsForAdvertisement))
	return nil
}

// poolChangePredicate passes the changes of a pool that decide from which pool a lease is created: of the spec, of what
// pauses the pool, and of the number of free addresses.
var poolChangePredicate = builder.WithPredicates(predicate.Or(
	lookup.MoreRoomPredicate, predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		old, ok := e.ObjectOld.(v1alpha1.Pool)
		now, too := e.ObjectNew.(v1alpha1.Pool)
		return ok && too && now.PoolStatus().AvailableIPs > old.PoolStatus().AvailableIPs
	}},
))

// requestsForAdvertisement returns requests for the namespaces with leases that MetalLB has, when the L2Advertisement
// that announces them has changed.
func (r *Reconciler) requestsForAdvertisement(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetName() != metallb.LeasesAdvertisement {
		return nil
	}
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := r.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list IPAddressPools: leases are announced again later")
	}
	seen := map[string]bool{}
	for i := range all.Items {
		for _, name := range leaseNamespaceKeys(&all.Items[i]) {
			seen[name] = true
		}
	}
	return requestsForNamespaces(slices.Sorted(maps.Keys(seen))...)
}

func requestsForNamespaces(all ...string) []reconcile.Request {
	var out []reconcile.Request
	for _, name := range all {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return out
}

// requestsForService returns requests for the namespace of a Service, and for that of the leases that it names, or
// named until now.
func requestsForService(_ context.Context, o client.Object) []reconcile.Request {
	s, ok := o.(*corev1.Service)
	if !ok || !isLeaseRelated(s) {
		return nil
	}
	return requestsForNamespaces(append(foreignNamespaceKeys(s), s.Namespace)...)
}

// requestsForEndpoints returns requests for the namespaces of the leases of the Service that has the endpoints.
func (r *Reconciler) requestsForEndpoints(ctx context.Context, o client.Object) []reconcile.Request {
	s := &corev1.Service{}
	key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName]}
	if key.Name == "" || r.Client.Get(ctx, key, s) != nil {
		return nil // the deletion of the Service enqueues
	}
	return requestsForService(ctx, s)
}

// hasReadinessChanged reports whether an EndpointSlice has a ready endpoint and had none before, or the other way
// round.
func hasReadinessChanged(e event.UpdateEvent) bool {
	old, ok := e.ObjectOld.(*discoveryv1.EndpointSlice)
	now, too := e.ObjectNew.(*discoveryv1.EndpointSlice)
	return ok && too && isSliceReady(old) != isSliceReady(now)
}

// requestsForPool returns requests for the namespaces with Services of the class of a pool.
func (r *Reconciler) requestsForPool(ctx context.Context, o client.Object) []reconcile.Request {
	p, ok := o.(v1alpha1.Pool)
	if !ok || p.PoolSpec().Leases == nil || p.PoolSpec().Leases.LoadBalancerClass == "" {
		return nil
	}
	all := &corev1.ServiceList{}
	in := client.ListOptions{Namespace: p.GetNamespace()} // empty means all namespaces
	if err := r.Client.List(ctx, all, &in, client.MatchingFields{loadBalancerClassIndex: p.PoolSpec().Leases.LoadBalancerClass}); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the Services of a load balancer class: they are reconciled later", "pool", p.GetName())
	}
	seen := map[string]bool{}
	for i := range all.Items {
		seen[all.Items[i].Namespace] = true
	}
	return requestsForNamespaces(slices.Sorted(maps.Keys(seen))...)
}

// requestsForNamespace returns requests for the namespaces whose leases select namespaces, and for the one whose labels
// have changed.
func (r *Reconciler) requestsForNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	all := &v1alpha1.IPLeaseList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Failed to list the leases that select namespaces: they are reconciled later", "namespace", o.GetName())
	}
	seen := map[string]bool{o.GetName(): true}
	for i := range all.Items {
		if all.Items[i].Spec.NamespaceSelector != nil {
			seen[all.Items[i].Namespace] = true
		}
	}
	return requestsForNamespaces(slices.Sorted(maps.Keys(seen))...)
}
