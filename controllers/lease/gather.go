package lease

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// gather reads what there is.
func (l *look) gather(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := l.Client.List(ctx, leases, client.InNamespace(l.namespace)); err != nil {
		return fmt.Errorf("reading the leases of namespace %s: %w", l.namespace, err)
	}
	for i := range leases.Items {
		o := &leases.Items[i]
		l.leases, l.known = append(l.leases, o), append(l.known, leaseports.LeaseOf(o))
	}
	for _, read := range []func(context.Context) error{l.gatherServices, l.gatherClasses, l.gatherPools} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gatherServices reads the Services that ask for leases of the namespace, or have something of one.
func (l *look) gatherServices(ctx context.Context) error {
	own, foreign := &corev1.ServiceList{}, &corev1.ServiceList{}
	if err := l.Client.List(ctx, own, client.InNamespace(l.namespace)); err != nil {
		return fmt.Errorf("reading the Services of namespace %s: %w", l.namespace, err)
	}
	if err := l.Client.List(ctx, foreign, client.MatchingFields{foreignIndex: l.namespace}); err != nil {
		return fmt.Errorf("reading the Services that name leases of namespace %s: %w", l.namespace, err)
	}
	known := map[leaseports.Ref]bool{}
	for _, all := range [][]corev1.Service{own.Items, foreign.Items} {
		for i := range all {
			s := &all[i]
			ref := leaseports.RefOf(s, l.namespace)
			if known[ref] || (!concerns(s) && !l.holds(ref)) {
				continue
			}
			known[ref] = true
			if err := l.ask(ctx, s, ref); err != nil {
				return err
			}
		}
	}
	for _, o := range l.known {
		for _, h := range o.Table {
			if known[h.Service] || h.Service.Namespace == "" {
				continue
			}
			known[h.Service] = true
			s := &corev1.Service{}
			if err := l.Client.Get(ctx, l.keyOf(h.Service), s); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return fmt.Errorf("reading Service %s, which has a port of a lease: %w", h.Service, err)
			}
			if err := l.ask(ctx, s, h.Service); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask adds a Service to those that are decided on.
func (l *look) ask(ctx context.Context, s *corev1.Service, ref leaseports.Ref) error {
	is := leaseports.ServiceOf(s, l.namespace)
	if c := conditionOf(s); c != nil {
		is.ToldIdle = c.Reason == v1alpha1.IdleReason
	}
	if is.Class != "" || l.holds(ref) {
		ready, err := l.hasEndpoint(ctx, s)
		if err != nil {
			return err
		}
		is.Ready = ready
	}
	if ref.Namespace != "" {
		labels, err := l.namespaceLabels(ctx, ref.Namespace)
		if err != nil {
			return err
		}
		is.NamespaceLabels = labels
	}
	l.services, l.asking = append(l.services, s), append(l.asking, is)
	return nil
}

// namespaceLabels are those of a namespace; one that is gone has none.
func (l *look) namespaceLabels(ctx context.Context, name string) (map[string]string, error) {
	ns := lookup.NamespaceMetadata()
	err := l.Client.Get(ctx, client.ObjectKey{Name: name}, ns)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the labels of namespace %s: %w", name, err)
	}
	return ns.Labels, nil
}

// hasEndpoint reports whether a Service has a ready endpoint.
func (l *look) hasEndpoint(ctx context.Context, s *corev1.Service) (bool, error) {
	all := &discoveryv1.EndpointSliceList{}
	if err := l.Client.List(ctx, all, client.InNamespace(s.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: s.Name}); err != nil {
		return false, fmt.Errorf("reading the endpoints of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return slices.ContainsFunc(all.Items, func(e discoveryv1.EndpointSlice) bool { return ready(&e) }), nil
}

// ready reports whether there is a ready endpoint.
func ready(e *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(e.Endpoints, func(p discoveryv1.Endpoint) bool { return ptr.Deref(p.Conditions.Ready, true) })
}

// concerns reports whether a Service asks for a lease, or bears what one that does is given.
func concerns(s *corev1.Service) bool {
	_, asks := leaseports.AskedOf(s)
	_, names := s.Annotations[v1alpha1.LeaseAnnotation]
	_, published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	return asks || names || published || conditionOf(s) != nil
}

// holds reports whether a Service has a port of a lease.
func (l *look) holds(service leaseports.Ref) bool {
	return slices.ContainsFunc(l.known, func(o leaseports.Lease) bool {
		return slices.ContainsFunc(o.Table, func(h leaseports.Holder) bool { return h.Service == service })
	})
}

// keyOf is where a Service is.
func (l *look) keyOf(r leaseports.Ref) client.ObjectKey {
	if r.Namespace == "" {
		return client.ObjectKey{Namespace: l.namespace, Name: r.Name}
	}
	return client.ObjectKey{Namespace: r.Namespace, Name: r.Name}
}

// mine reports whether a Service is told, and published, by this namespace: that of the leases that it names. One that
// names none is by its own, and by those of which it has ports.
func (l *look) mine(s *corev1.Service) bool {
	asked, asks := leaseports.AskedOf(s)
	if asks {
		return asked.Namespace == l.namespace
	}
	return s.Namespace == l.namespace || l.holds(leaseports.RefOf(s, l.namespace))
}

// gatherClasses reads the pools that leases are made of for Services.
func (l *look) gatherClasses(ctx context.Context) error {
	own, global := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	if err := l.Client.List(ctx, own, client.InNamespace(l.namespace)); err != nil {
		return fmt.Errorf("reading the NetworkPools of namespace %s: %w", l.namespace, err)
	}
	if err := l.Client.List(ctx, global); err != nil {
		return fmt.Errorf("reading the GlobalNetworkPools: %w", err)
	}
	labels, err := l.namespaceLabels(ctx, l.namespace)
	if err != nil {
		return err
	}
	from := tenancy.Namespace{Name: l.namespace, Labels: labels}
	l.ofHosts = map[v1alpha1.PoolReference]bool{}
	for i := range own.Items {
		l.addClass(&own.Items[i], from)
	}
	for i := range global.Items {
		l.addClass(&global.Items[i], from)
	}
	return nil
}

func (l *look) addClass(p v1alpha1.Pool, from tenancy.Namespace) {
	leases := p.PoolSpec().Leases
	if leases == nil || leases.LoadBalancerClass == "" {
		return
	}
	key := pools.KeyOf(p)
	is := tenancy.PoolOf(v1alpha1.PoolReference{Kind: key.Kind, Name: key.Name}, p, from)
	out := leaseports.Pool{
		Ref: is.Ref, Class: leases.LoadBalancerClass, Priority: leases.Priority, Family: 4, Open: is.State == tenancy.Open,
		Available: is.AvailableIPs, Quota: -1, IdleAfter: time.Duration(leases.ReleaseIdleAfterSeconds) * time.Second, Generation: p.GetGeneration(),
	}
	if annotations.HasPaused(p) {
		out.Open, is.Message = false, "is paused"
	}
	if !out.Open {
		out.Why = fmt.Sprintf("%s %s", key, is.Message)
	}
	if is.IPv6 {
		out.Family = 6
	}
	if leases.QuotaPerNamespace != nil {
		out.Quota = int64(*leases.QuotaPerNamespace)
	}
	out.Has = func(a netip.Addr) bool {
		layout, errs := poolspec.Of(p)
		return len(errs) == 0 && layout.Declared().Contains(a)
	}
	l.ofHosts[is.Ref] = out.Class == v1alpha1.HostLoadBalancerClass
	l.classes = append(l.classes, out)
}

// gatherPools reads the IPAddressPools of the namespace.
func (l *look) gatherPools(ctx context.Context) error {
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := l.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.MatchingFields{leasesIndex: l.namespace}); err != nil {
		return fmt.Errorf("reading the IPAddressPools of the leases of namespace %s: %w", l.namespace, err)
	}
	l.pools = map[string]*metallbv1beta1.IPAddressPool{}
	for i := range all.Items {
		l.pools[all.Items[i].Name] = &all.Items[i]
	}
	return nil
}

// poolOf is the IPAddressPool that shows a lease, or is to.
func (l *look) poolOf(o *v1alpha1.IPLease) metallb.LeasePool {
	return metallb.LeasePool{Namespace: l.namespace, Others: o.Spec.NamespaceSelector}
}
