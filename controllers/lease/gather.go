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

// gatherState reads the state of the namespace: its leases, their Services, the pools, and what hosts report.
func (l *scope) gatherState(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := l.Client.List(ctx, leases, client.InNamespace(l.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the leases of namespace %s: %w", l.namespace, err)
	}
	l.leasesByAddress = map[netip.Addr][]*v1alpha1.IPLease{}
	l.leasesByName, l.portHolders, l.readyEndpoints = map[string]*v1alpha1.IPLease{}, map[leaseports.ServiceRef]bool{}, map[string]map[string]bool{}
	for i := range leases.Items {
		o := &leases.Items[i]
		state := leaseports.NewLease(o)
		l.leases, l.leaseStates, l.leasesByName[o.Name] = append(l.leases, o), append(l.leaseStates, state), o
		if a := leaseAddress(o); a.IsValid() {
			l.leasesByAddress[a] = append(l.leasesByAddress[a], o)
		}
		for _, h := range state.PortTable {
			l.portHolders[h.Service] = true
		}
	}
	for _, read := range []func(context.Context) error{l.gatherServices, l.gatherUsurpedPorts, l.gatherClassPools, l.gatherAddressPools, l.gatherHostStatuses} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gatherServices reads the Services that request leases of the namespace, or have something of one.
func (l *scope) gatherServices(ctx context.Context) error {
	own, foreign := &corev1.ServiceList{}, &corev1.ServiceList{}
	if err := l.Client.List(ctx, own, client.InNamespace(l.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services of namespace %s: %w", l.namespace, err)
	}
	if err := l.Client.List(ctx, foreign, client.MatchingFields{foreignNamespaceIndex: l.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services that name leases of namespace %s: %w", l.namespace, err)
	}
	known := map[leaseports.ServiceRef]bool{}
	for _, all := range [][]corev1.Service{own.Items, foreign.Items} {
		for i := range all {
			s := &all[i]
			ref := leaseports.NewServiceRef(s, l.namespace)
			if known[ref] || (!isLeaseRelated(s) && !l.portHolders[ref]) {
				continue
			}
			known[ref] = true
			if err := l.addService(ctx, s, ref); err != nil {
				return err
			}
		}
	}
	for ref := range l.portHolders {
		if known[ref] || ref.Namespace == "" {
			continue
		}
		s := &corev1.Service{}
		if err := l.Client.Get(ctx, l.serviceKey(ref), s); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading Service %s, which has a port of a lease: %w", ref, err)
		}
		if err := l.addService(ctx, s, ref); err != nil {
			return err
		}
	}
	return nil
}

// addService adds a Service to those that are decided on.
func (l *scope) addService(ctx context.Context, s *corev1.Service, ref leaseports.ServiceRef) error {
	state := leaseports.NewService(s, l.namespace)
	state.NotServedMessage = l.disabledMessage(state.ShownBy)
	if c := leaseCondition(s); c != nil {
		state.ReportedIdle = c.Reason == v1alpha1.IdleReason
	}
	if state.LoadBalancerClass != "" || l.portHolders[ref] {
		ready, err := l.hasReadyEndpoint(ctx, s)
		if err != nil {
			return err
		}
		state.HasReadyEndpoint = ready
	}
	if ref.Namespace != "" {
		labels, err := l.namespaceLabels(ctx, ref.Namespace)
		if err != nil {
			return err
		}
		state.NamespaceLabels = labels
	}
	l.services, l.serviceStates = append(l.services, s), append(l.serviceStates, state)
	return nil
}

// namespaceLabels returns the labels of a namespace; one that is gone has none.
func (l *scope) namespaceLabels(ctx context.Context, name string) (map[string]string, error) {
	ns := lookup.NamespaceMetadata()
	err := l.Client.Get(ctx, client.ObjectKey{Name: name}, ns)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the labels of namespace %s: %w", name, err)
	}
	return ns.Labels, nil
}

// hasReadyEndpoint reports whether a Service has a ready endpoint.
func (l *scope) hasReadyEndpoint(ctx context.Context, s *corev1.Service) (bool, error) {
	if l.readyEndpoints[s.Namespace] == nil {
		all := &discoveryv1.EndpointSliceList{}
		if err := l.Client.List(ctx, all, client.InNamespace(s.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("reading the endpoints of namespace %s: %w", s.Namespace, err)
		}
		ready := map[string]bool{}
		for i := range all.Items {
			if e := &all.Items[i]; isSliceReady(e) {
				ready[e.Labels[discoveryv1.LabelServiceName]] = true
			}
		}
		l.readyEndpoints[s.Namespace] = ready
	}
	return l.readyEndpoints[s.Namespace][s.Name], nil
}

// isSliceReady reports whether an EndpointSlice has a ready endpoint.
func isSliceReady(e *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(e.Endpoints, func(p discoveryv1.Endpoint) bool { return ptr.Deref(p.Conditions.Ready, true) })
}

// gatherUsurpedPorts reads the Services, of any namespace, that show an address of a lease without having the port on
// record: a user who puts the label for Services with a lease on a Service without one can make MetalLB assign it a
// port that is free. Until that Service has lost the port, no other Service gets it. No watch enqueues the namespace of
// the lease then, so the namespace is requeued.
func (l *scope) gatherUsurpedPorts(ctx context.Context) error {
	if !l.MetalLB {
		return nil
	}
	for i, o := range l.leases {
		state := &l.leaseStates[i]
		if isShownByHost(o) || !state.Address.IsValid() {
			continue
		}
		all := &corev1.ServiceList{}
		if err := l.Client.List(ctx, all, client.MatchingFields{statusAddressIndex: state.Address.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("reading the Services that show %s: %w", state.Address, err)
		}
		for j := range all.Items {
			s := &all.Items[j]
			for _, p := range leaseports.FindUsurpedPorts(s, state, l.namespace) {
				if state.UsurpedPorts == nil {
					state.UsurpedPorts = map[leaseports.Port]leaseports.ServiceRef{}
				}
				state.UsurpedPorts[p] = leaseports.NewServiceRef(s, l.namespace)
				l.requeueAfter = grants.MinWait(l.requeueAfter, recheckInterval)
			}
		}
	}
	return nil
}

// isLeaseRelated reports whether a Service requests a lease, or carries what a Service that requests one gets.
func isLeaseRelated(s *corev1.Service) bool {
	_, asks := leaseports.ParseServiceRequest(s)
	_, names := s.Annotations[v1alpha1.LeaseAnnotation]
	_, published := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	_, labelled := s.Labels[v1alpha1.LeasedLabel]
	return asks || names || published || labelled || leaseCondition(s) != nil
}

// serviceKey returns the object key of a Service.
func (l *scope) serviceKey(r leaseports.ServiceRef) client.ObjectKey {
	if r.Namespace == "" {
		return client.ObjectKey{Namespace: l.namespace, Name: r.Name}
	}
	return client.ObjectKey{Namespace: r.Namespace, Name: r.Name}
}

// isResponsibleFor reports whether this namespace sets the condition of a Service and publishes it: the namespace of
// the leases that the Service names does that. For a Service that names none, its own namespace does, and those of
// whose leases it has ports.
func (l *scope) isResponsibleFor(s *corev1.Service) bool {
	asked, asks := leaseports.ParseServiceRequest(s)
	if asks {
		return asked.Namespace == l.namespace
	}
	return s.Namespace == l.namespace || l.portHolders[leaseports.NewServiceRef(s, l.namespace)]
}

// gatherClassPools reads the pools from which leases are created for Services.
func (l *scope) gatherClassPools(ctx context.Context) error {
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
	l.hostPools = map[v1alpha1.PoolReference]bool{}
	for i := range own.Items {
		l.addClassPool(&own.Items[i], from)
	}
	for i := range global.Items {
		l.addClassPool(&global.Items[i], from)
	}
	return nil
}

func (l *scope) addClassPool(p v1alpha1.Pool, from tenancy.Namespace) {
	leases := p.PoolSpec().Leases
	if leases == nil || leases.LoadBalancerClass == "" {
		return
	}
	key := pools.KeyForPool(p)
	pool := tenancy.NewPool(v1alpha1.PoolReference{Kind: key.Kind, Name: key.Name}, p, from)
	out := leaseports.Pool{
		Ref: pool.Ref, LoadBalancerClass: leases.LoadBalancerClass, Priority: leases.Priority, Family: 4, IsOpen: pool.Availability == tenancy.PoolOpen,
		AvailableIPs: pool.AvailableIPs, Quota: -1, ReleaseIdleAfter: time.Duration(leases.ReleaseIdleAfterSeconds) * time.Second, Generation: p.GetGeneration(),
	}
	if annotations.HasPaused(p) {
		out.IsOpen, pool.Message = false, "is paused"
	}
	if !out.IsOpen {
		out.ClosedMessage = fmt.Sprintf("%s %s", key, pool.Message)
	}
	if pool.IsIPv6 {
		out.Family = 6
	}
	if leases.QuotaPerNamespace != nil {
		out.Quota = int64(*leases.QuotaPerNamespace)
	}
	out.HasAddress = func(a netip.Addr) bool {
		layout, errs := poolspec.CompilePool(p)
		return len(errs) == 0 && layout.Declared().Contains(a)
	}
	l.hostPools[pool.Ref] = out.LoadBalancerClass == v1alpha1.HostLoadBalancerClass
	l.classPools = append(l.classPools, out)
}

// gatherAddressPools reads the IPAddressPools of the namespace.
func (l *scope) gatherAddressPools(ctx context.Context) error {
	l.addressPools, l.poolsByAddress = map[string]*metallbv1beta1.IPAddressPool{}, map[netip.Addr]*metallbv1beta1.IPAddressPool{}
	if !l.MetalLB {
		return nil
	}
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := l.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.MatchingFields{leaseNamespaceIndex: l.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the IPAddressPools of the leases of namespace %s: %w", l.namespace, err)
	}
	for i := range all.Items {
		p := &all.Items[i]
		l.addressPools[p.Name] = p
		for _, a := range metallb.LeaseAddresses(p) {
			l.poolsByAddress[a] = p
		}
	}
	return nil
}

// leasePoolFor returns the IPAddressPool that shows a lease, or will show it.
func (l *scope) leasePoolFor(o *v1alpha1.IPLease) metallb.LeasePool {
	return metallb.LeasePool{Namespace: l.namespace, NamespaceSelector: o.Spec.NamespaceSelector}
}
