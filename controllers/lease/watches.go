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

// controllerName is what a namespace is called where managers share the namespaces.
const controllerName = "Namespace"

// concurrency is how many namespaces are worked on at once.
const concurrency = 10

// Indexes of the cache: Services by the namespace of the leases that they name, where that is another one than theirs, and by
// their load balancer class, and by the addresses that their status has; IPAddressPools by the namespace whose leases they show.
const (
	foreignIndex = "leases.foreign"
	classIndex   = "leases.class"
	givenIndex   = "leases.given"
	leasesIndex  = "leases.namespace"
)

func foreign(o client.Object) []string {
	s, is := o.(*corev1.Service)
	if !is {
		return nil
	}
	if asked, asks := leaseports.AskedOf(s); asks && asked.Namespace != s.Namespace {
		return []string{asked.Namespace}
	}
	return nil
}

func classOf(o client.Object) []string {
	s, is := o.(*corev1.Service)
	if !is {
		return nil
	}
	if asked, asks := leaseports.AskedOf(s); asks && asked.Class != "" {
		return []string{asked.Class}
	}
	return nil
}

func given(o client.Object) []string {
	s, is := o.(*corev1.Service)
	if !is {
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

func leasesOf(o client.Object) []string {
	p, is := o.(*metallbv1beta1.IPAddressPool)
	if !is {
		return nil
	}
	if namespace, is := metallb.NamespaceOfLeasePool(p); is {
		return []string{namespace}
	}
	return nil
}

// SetupWithManager registers the watches: each wakes the namespaces that it concerns.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, part shard.Shard) error {
	for _, index := range []struct {
		of   client.Object
		name string
		key  client.IndexerFunc
	}{
		{&corev1.Service{}, foreignIndex, foreign}, {&corev1.Service{}, classIndex, classOf}, {&corev1.Service{}, givenIndex, given},
	} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, index.of, index.name, index.key); err != nil {
			return fmt.Errorf("indexing %T: %w", index.of, err)
		}
	}
	ofPools := handler.EnqueueRequestsFromMapFunc(r.ofPool)
	b := ctrl.NewControllerManagedBy(mgr).
		Named("lease").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency, RateLimiter: guard.Backoff[reconcile.Request]()}).
		Watches(&v1alpha1.IPLease{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return namespaces(o.GetNamespace())
		})).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(ofService)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(r.ofEndpoints), builder.WithPredicates(predicate.Funcs{UpdateFunc: readyChanged})).
		Watches(&v1alpha1.NetworkPool{}, ofPools, poolChanges).
		Watches(&v1alpha1.GlobalNetworkPool{}, ofPools, poolChanges).
		Watches(lookup.NamespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.ofNamespace), builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{}))
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
	return b.Complete(guard.OfShard(part, controllerName, r))
}

// watchMetalLB registers the watches of MetalLB's kinds.
func (r *Reconciler) watchMetalLB(ctx context.Context, mgr ctrl.Manager, b *builder.Builder) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &metallbv1beta1.IPAddressPool{}, leasesIndex, leasesOf); err != nil {
		return fmt.Errorf("indexing IPAddressPools: %w", err)
	}
	b.Watches(&metallbv1beta1.IPAddressPool{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return namespaces(leasesOf(o)...)
	})).
		Watches(&metallbv1beta1.IPAddressPool{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return namespaces(r.refusals.forget()...)
		}), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&metallbv1beta1.L2Advertisement{}, handler.EnqueueRequestsFromMapFunc(r.ofAdvertisement))
	return nil
}

// poolChanges are those that decide on where a lease is made: of the spec, of what pauses a pool, and of what is left of it.
var poolChanges = builder.WithPredicates(predicate.Or(
	lookup.MoreRoom, predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(v1alpha1.Pool)
		now, too := e.ObjectNew.(v1alpha1.Pool)
		return is && too && now.PoolStatus().AvailableIPs > was.PoolStatus().AvailableIPs
	}},
))

// ofAdvertisement are the namespaces with leases that MetalLB has, where what announces them has changed.
func (r *Reconciler) ofAdvertisement(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetName() != metallb.LeasesAdvertisement {
		return nil
	}
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := r.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "leases are announced again later")
	}
	seen := map[string]bool{}
	for i := range all.Items {
		for _, name := range leasesOf(&all.Items[i]) {
			seen[name] = true
		}
	}
	return namespaces(slices.Sorted(maps.Keys(seen))...)
}

func namespaces(all ...string) []reconcile.Request {
	var out []reconcile.Request
	for _, name := range all {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return out
}

// ofService are the namespace of a Service, and that of the leases which it names, or did until now.
func ofService(_ context.Context, o client.Object) []reconcile.Request {
	s, is := o.(*corev1.Service)
	if !is || !concerns(s) {
		return nil
	}
	return namespaces(append(foreign(s), s.Namespace)...)
}

// ofEndpoints are the namespaces of the leases of the Service that has endpoints.
func (r *Reconciler) ofEndpoints(ctx context.Context, o client.Object) []reconcile.Request {
	s := &corev1.Service{}
	key := client.ObjectKey{Namespace: o.GetNamespace(), Name: o.GetLabels()[discoveryv1.LabelServiceName]}
	if key.Name == "" || r.Client.Get(ctx, key, s) != nil {
		return nil // of one that is gone, that it is wakes
	}
	return ofService(ctx, s)
}

// readyChanged passes endpoints of which one is ready, and none was, or the other way round.
func readyChanged(e event.UpdateEvent) bool {
	was, is := e.ObjectOld.(*discoveryv1.EndpointSlice)
	now, too := e.ObjectNew.(*discoveryv1.EndpointSlice)
	return is && too && ready(was) != ready(now)
}

// ofPool are the namespaces with Services of the class of a pool.
func (r *Reconciler) ofPool(ctx context.Context, o client.Object) []reconcile.Request {
	p, is := o.(v1alpha1.Pool)
	if !is || p.PoolSpec().Leases == nil || p.PoolSpec().Leases.LoadBalancerClass == "" {
		return nil
	}
	all := &corev1.ServiceList{}
	in := client.ListOptions{Namespace: p.GetNamespace()} // none: all
	if err := r.Client.List(ctx, all, &in, client.MatchingFields{classIndex: p.PoolSpec().Leases.LoadBalancerClass}); err != nil {
		log.FromContext(ctx).Error(err, "Services of a load balancer class are looked at later", "pool", p.GetName())
	}
	seen := map[string]bool{}
	for i := range all.Items {
		seen[all.Items[i].Namespace] = true
	}
	return namespaces(slices.Sorted(maps.Keys(seen))...)
}

// ofNamespace are those whose leases select namespaces, and the one whose labels have changed.
func (r *Reconciler) ofNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	all := &v1alpha1.IPLeaseList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "leases that select namespaces are looked at later", "namespace", o.GetName())
	}
	seen := map[string]bool{o.GetName(): true}
	for i := range all.Items {
		if all.Items[i].Spec.NamespaceSelector != nil {
			seen[all.Items[i].Namespace] = true
		}
	}
	return namespaces(slices.Sorted(maps.Keys(seen))...)
}
