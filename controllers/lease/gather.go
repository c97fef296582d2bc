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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// gather reads what there is.
func (l *look) gather(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := l.Client.List(ctx, leases, client.InNamespace(l.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the leases of namespace %s: %w", l.namespace, err)
	}
	l.byAddress = map[netip.Addr][]*v1alpha1.IPLease{}
	l.byName, l.holders, l.endpoints = map[string]*v1alpha1.IPLease{}, map[leaseports.Ref]bool{}, map[string]map[string]bool{}
	for i := range leases.Items {
		o := &leases.Items[i]
		is := leaseports.LeaseOf(o)
		l.leases, l.known, l.byName[o.Name] = append(l.leases, o), append(l.known, is), o
		if a := addressOf(o); a.IsValid() {
			l.byAddress[a] = append(l.byAddress[a], o)
		}
		for _, h := range is.Table {
			l.holders[h.Service] = true
		}
	}
	for _, read := range []func(context.Context) error{l.gatherServices, l.gatherUsurpers, l.gatherClasses, l.gatherPools, l.gatherHosts} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gatherServices reads the Services that ask for leases of the namespace, or have something of one.
func (l *look) gatherServices(ctx context.Context) error {
	own, foreign := &corev1.ServiceList{}, &corev1.ServiceList{}
	if err := l.Client.List(ctx, own, client.InNamespace(l.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services of namespace %s: %w", l.namespace, err)
	}
	if err := l.Client.List(ctx, foreign, client.MatchingFields{foreignIndex: l.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services that name leases of namespace %s: %w", l.namespace, err)
	}
	known := map[leaseports.Ref]bool{}
	for _, all := range [][]corev1.Service{own.Items, foreign.Items} {
		for i := range all {
			s := &all[i]
			ref := leaseports.RefOf(s, l.namespace)
			if known[ref] || (!concerns(s) && !l.holders[ref]) {
				continue
			}
			known[ref] = true
			if err := l.ask(ctx, s, ref); err != nil {
				return err
			}
		}
	}
	for ref := range l.holders {
		if known[ref] || ref.Namespace == "" {
			continue
		}
		s := &corev1.Service{}
		if err := l.Client.Get(ctx, l.keyOf(ref), s); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading Service %s, which has a port of a lease: %w", ref, err)
		}
		if err := l.ask(ctx, s, ref); err != nil {
			return err
		}
	}
	return nil
}

// ask adds a Service to those that are decided on.
func (l *look) ask(ctx context.Context, s *corev1.Service, ref leaseports.Ref) error {
	is := leaseports.ServiceOf(s, l.namespace)
	is.Off = l.off(is.By)
	if c := conditionOf(s); c != nil {
		is.ToldIdle = c.Reason == v1alpha1.IdleReason
	}
	if is.Class != "" || l.holders[ref] {
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
	if l.endpoints[s.Namespace] == nil {
		all := &discoveryv1.EndpointSliceList{}
		if err := l.Client.List(ctx, all, client.InNamespace(s.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("reading the endpoints of namespace %s: %w", s.Namespace, err)
		}
		has := map[string]bool{}
		for i := range all.Items {
			if e := &all.Items[i]; ready(e) {
				has[e.Labels[discoveryv1.LabelServiceName]] = true
			}
		}
		l.endpoints[s.Namespace] = has
	}
	return l.endpoints[s.Namespace][s.Name], nil
}

// ready reports whether there is a ready endpoint.
func ready(e *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(e.Endpoints, func(p discoveryv1.Endpoint) bool { return ptr.Deref(p.Conditions.Ready, true) })
}

// gatherUsurpers reads the Services, of any namespace, that show an address of a lease and do not have the port on record: who gives
// the label of those that have a lease to one that has none can have MetalLB give it a port that is free. Until it is taken from that
// one, the port is no other Service's. No watch wakes the namespace of the lease then.
func (l *look) gatherUsurpers(ctx context.Context) error {
	if !l.MetalLB {
		return nil
	}
	for i, o := range l.leases {
		is := &l.known[i]
		if byHost(o) || !is.Address.IsValid() {
			continue
		}
		all := &corev1.ServiceList{}
		if err := l.Client.List(ctx, all, client.MatchingFields{givenIndex: is.Address.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("reading the Services that show %s: %w", is.Address, err)
		}
		for j := range all.Items {
			s := &all.Items[j]
			for _, p := range leaseports.Usurped(s, is, l.namespace) {
				if is.Usurped == nil {
					is.Usurped = map[leaseports.Port]leaseports.Ref{}
				}
				is.Usurped[p] = leaseports.RefOf(s, l.namespace)
				l.wait = grants.Sooner(l.wait, askAgain)
			}
		}
	}
	return nil
}

// concerns reports whether a Service asks for a lease, or bears what one that does is given.
func concerns(s *corev1.Service) bool {
	_, asks := leaseports.AskedOf(s)
	_, names := s.Annotations[v1alpha1.LeaseAnnotation]
	_, published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	_, labelled := s.Labels[v1alpha1.LeasedLabel]
	return asks || names || published || labelled || conditionOf(s) != nil
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
	return s.Namespace == l.namespace || l.holders[leaseports.RefOf(s, l.namespace)]
}

// gatherClasses reads the pools that leases are made of for Services.
func (l *look) gatherClasses(ctx context.Context) error {
	own, global := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	if err := l.Client.List(ctx, own, client.InNamespace(l.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the NetworkPools of namespace %s: %w", l.namespace, err)
	}
	if err := l.Client.List(ctx, global, client.UnsafeDisableDeepCopy); err != nil {
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
	l.pools, l.shownIn = map[string]*metallbv1beta1.IPAddressPool{}, map[netip.Addr]*metallbv1beta1.IPAddressPool{}
	if !l.MetalLB {
		return nil
	}
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := l.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.MatchingFields{leasesIndex: l.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the IPAddressPools of the leases of namespace %s: %w", l.namespace, err)
	}
	for i := range all.Items {
		p := &all.Items[i]
		l.pools[p.Name] = p
		for _, a := range metallb.LeasesIn(p) {
			l.shownIn[a] = p
		}
	}
	return nil
}

// poolOf is the IPAddressPool that shows a lease, or is to.
func (l *look) poolOf(o *v1alpha1.IPLease) metallb.LeasePool {
	return metallb.LeasePool{Namespace: l.namespace, Others: o.Spec.NamespaceSelector}
}
