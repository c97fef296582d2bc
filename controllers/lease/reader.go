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
	"k8s.io/apimachinery/pkg/types"
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

// reader reads the state of a namespace, mostly from the cache, once at the beginning of a reconcile. Nothing else adds
// objects to the state.
type reader struct {
	// readyEndpoints are the Services that have a ready endpoint, by namespace and name.
	readyEndpoints map[string]map[string]bool
	schedule       *schedule
	state          *state
	api            *api
	locks          *hostLocks
}

// gatherState reads the state of the namespace: its leases, their Services, the pools, and what hosts report.
func (r *reader) gatherState(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := r.api.Client.List(ctx, leases, client.InNamespace(r.state.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the leases of namespace %s: %w", r.state.namespace, err)
	}
	r.state.leasesByAddress = map[netip.Addr][]*v1alpha1.IPLease{}
	r.state.leasesByName, r.state.portHolders = map[string]*v1alpha1.IPLease{}, map[leaseports.ServiceRef]bool{}
	for i := range leases.Items {
		o := &leases.Items[i]
		state := leaseports.NewLease(o)
		r.state.leases, r.state.leaseStates, r.state.leasesByName[o.Name] = append(r.state.leases, o), append(r.state.leaseStates, state), o
		if a := leaseAddress(o); a.IsValid() {
			r.state.leasesByAddress[a] = append(r.state.leasesByAddress[a], o)
		}
		for _, h := range state.PortTable {
			r.state.portHolders[h.Service] = true
		}
	}
	for _, read := range []func(context.Context) error{r.gatherServices, r.gatherUsurpedPorts, r.gatherClassPools, r.gatherAddressPools, r.gatherHostStatuses} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gatherServices reads the Services that request leases of the namespace, or have something of one.
func (r *reader) gatherServices(ctx context.Context) error {
	own, foreign := &corev1.ServiceList{}, &corev1.ServiceList{}
	if err := r.api.Client.List(ctx, own, client.InNamespace(r.state.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services of namespace %s: %w", r.state.namespace, err)
	}
	if err := r.api.Client.List(ctx, foreign, client.MatchingFields{foreignNamespaceIndex: r.state.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the Services that name leases of namespace %s: %w", r.state.namespace, err)
	}
	known := map[leaseports.ServiceRef]bool{}
	for _, all := range [][]corev1.Service{own.Items, foreign.Items} {
		for i := range all {
			s := &all[i]
			ref := leaseports.NewServiceRef(s, r.state.namespace)
			if known[ref] || (!isLeaseRelated(s) && !r.state.portHolders[ref]) {
				continue
			}
			known[ref] = true
			if err := r.addService(ctx, s, ref); err != nil {
				return err
			}
		}
	}
	for ref := range r.state.portHolders {
		if known[ref] || ref.Namespace == "" {
			continue
		}
		s := &corev1.Service{}
		if err := r.api.Client.Get(ctx, r.state.serviceKey(ref), s); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading Service %s, which has a port of a lease: %w", ref, err)
		}
		if err := r.addService(ctx, s, ref); err != nil {
			return err
		}
	}
	return nil
}

// addService adds a Service to those that are decided on.
func (r *reader) addService(ctx context.Context, s *corev1.Service, ref leaseports.ServiceRef) error {
	state := leaseports.NewService(s, r.state.namespace)
	state.NotServedMessage = r.state.disabledMessage(state.ShownBy)
	if c := leaseCondition(s); c != nil {
		state.ReportedIdle = c.Reason == v1alpha1.IdleReason
	}
	if state.LoadBalancerClass != "" || r.state.portHolders[ref] {
		ready, err := r.hasReadyEndpoint(ctx, s)
		if err != nil {
			return err
		}
		state.HasReadyEndpoint = ready
	}
	if ref.Namespace != "" {
		labels, err := r.namespaceLabels(ctx, ref.Namespace)
		if err != nil {
			return err
		}
		state.NamespaceLabels = labels
	}
	r.state.services, r.state.serviceStates = append(r.state.services, s), append(r.state.serviceStates, state)
	return nil
}

// namespaceLabels returns the labels of a namespace; one that is gone has none.
func (r *reader) namespaceLabels(ctx context.Context, name string) (map[string]string, error) {
	ns := lookup.NamespaceMetadata()
	err := r.api.Client.Get(ctx, client.ObjectKey{Name: name}, ns)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the labels of namespace %s: %w", name, err)
	}
	return ns.Labels, nil
}

// hasReadyEndpoint reports whether a Service has a ready endpoint.
func (r *reader) hasReadyEndpoint(ctx context.Context, s *corev1.Service) (bool, error) {
	if r.readyEndpoints[s.Namespace] == nil {
		all := &discoveryv1.EndpointSliceList{}
		if err := r.api.Client.List(ctx, all, client.InNamespace(s.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return false, fmt.Errorf("reading the endpoints of namespace %s: %w", s.Namespace, err)
		}
		ready := map[string]bool{}
		for i := range all.Items {
			if e := &all.Items[i]; isSliceReady(e) {
				ready[e.Labels[discoveryv1.LabelServiceName]] = true
			}
		}
		r.readyEndpoints[s.Namespace] = ready
	}
	return r.readyEndpoints[s.Namespace][s.Name], nil
}

// isSliceReady reports whether an EndpointSlice has a ready endpoint.
func isSliceReady(e *discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(e.Endpoints, func(p discoveryv1.Endpoint) bool { return ptr.Deref(p.Conditions.Ready, true) })
}

// gatherUsurpedPorts reads the Services, of any namespace, that show an address of a lease without having the port on
// record: a user who puts the label for Services with a lease on a Service without one can make MetalLB assign it a
// port that is free. Until that Service has lost the port, no other Service gets it. No watch enqueues the namespace of
// the lease then, so the namespace is requeued.
func (r *reader) gatherUsurpedPorts(ctx context.Context) error {
	if !r.state.MetalLB {
		return nil
	}
	for i, o := range r.state.leases {
		state := &r.state.leaseStates[i]
		if isShownByHost(o) || !state.Address.IsValid() {
			continue
		}
		all := &corev1.ServiceList{}
		if err := r.api.Client.List(ctx, all, client.MatchingFields{statusAddressIndex: state.Address.String()}, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("reading the Services that show %s: %w", state.Address, err)
		}
		for j := range all.Items {
			s := &all.Items[j]
			for _, p := range leaseports.FindUsurpedPorts(s, state, r.state.namespace) {
				if state.UsurpedPorts == nil {
					state.UsurpedPorts = map[leaseports.Port]leaseports.ServiceRef{}
				}
				state.UsurpedPorts[p] = leaseports.NewServiceRef(s, r.state.namespace)
				r.schedule.requeueWithin(recheckInterval)
			}
		}
	}
	return nil
}

// gatherClassPools reads the pools from which leases are created for Services.
func (r *reader) gatherClassPools(ctx context.Context) error {
	own, global := &v1alpha1.NetworkPoolList{}, &v1alpha1.GlobalNetworkPoolList{}
	if err := r.api.Client.List(ctx, own, client.InNamespace(r.state.namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the NetworkPools of namespace %s: %w", r.state.namespace, err)
	}
	if err := r.api.Client.List(ctx, global, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the GlobalNetworkPools: %w", err)
	}
	labels, err := r.namespaceLabels(ctx, r.state.namespace)
	if err != nil {
		return err
	}
	from := tenancy.Namespace{Name: r.state.namespace, Labels: labels}
	r.state.hostPools = map[v1alpha1.PoolReference]bool{}
	for i := range own.Items {
		r.addClassPool(&own.Items[i], from)
	}
	for i := range global.Items {
		r.addClassPool(&global.Items[i], from)
	}
	return nil
}

func (r *reader) addClassPool(p v1alpha1.Pool, from tenancy.Namespace) {
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
	r.state.hostPools[pool.Ref] = out.LoadBalancerClass == v1alpha1.HostLoadBalancerClass
	r.state.classPools = append(r.state.classPools, out)
}

// gatherAddressPools reads the IPAddressPools of the namespace.
func (r *reader) gatherAddressPools(ctx context.Context) error {
	r.state.addressPools, r.state.poolsByAddress = map[string]*metallbv1beta1.IPAddressPool{}, map[netip.Addr]*metallbv1beta1.IPAddressPool{}
	if !r.state.MetalLB {
		return nil
	}
	all := &metallbv1beta1.IPAddressPoolList{}
	if err := r.api.Client.List(ctx, all, client.InNamespace(metallb.Namespace), client.MatchingFields{leaseNamespaceIndex: r.state.namespace}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the IPAddressPools of the leases of namespace %s: %w", r.state.namespace, err)
	}
	for i := range all.Items {
		p := &all.Items[i]
		r.state.addressPools[p.Name] = p
		for _, a := range metallb.LeaseAddresses(p) {
			r.state.poolsByAddress[a] = p
		}
	}
	return nil
}

// gatherHostStatuses reads what hosts report about the leases with ports that Services have.
func (r *reader) gatherHostStatuses(ctx context.Context) error {
	r.state.hostStatuses = map[types.UID]*leaseports.HostStatus{}
	if !r.state.Hosts {
		return nil
	}
	for _, o := range r.state.leases {
		if !isShownByHost(o) || len(o.Status.Ports) == 0 || !leaseAddress(o).IsValid() {
			continue
		}
		status, err := r.locks.readStatus(ctx, o)
		if err != nil {
			return err
		}
		status.RequiresLocalEndpoint = r.state.requiresLocalEndpoint(o)
		r.state.hostStatuses[o.UID] = status
	}
	return nil
}
