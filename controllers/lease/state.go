package lease

import (
	"cmp"
	"net/netip"
	"slices"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
)

// state is what one reconcile has read of a namespace. The reader fills it, and the rest of the reconcile looks things
// up in it; the objects belong to the cache, and are not changed. It has no client.
type state struct {
	namespace string
	// watchFilter is the value of the watch label of the leases that are served; if it is empty, all are.
	watchFilter string
	EnabledBackends

	leases   []*v1alpha1.IPLease
	services []*corev1.Service
	// leaseStates and serviceStates are the input of the decisions, in the order of leases and services.
	leaseStates   []leaseports.Lease
	serviceStates []leaseports.Service
	// classPools are the pools from which leases are created, by load balancer class; hostPools are those whose leases
	// hosts show.
	classPools []leaseports.Pool
	hostPools  map[v1alpha1.PoolReference]bool
	// addressPools are the IPAddressPools of the namespace, by name; poolsByAddress are the same by the addresses that
	// they have.
	addressPools   map[string]*metallbv1beta1.IPAddressPool
	poolsByAddress map[netip.Addr]*metallbv1beta1.IPAddressPool
	// leasesByName and leasesByAddress are the leases; portHolders are the Services that have ports of them.
	leasesByName    map[string]*v1alpha1.IPLease
	leasesByAddress map[netip.Addr][]*v1alpha1.IPLease
	portHolders     map[leaseports.ServiceRef]bool
	// hostStatuses is what hosts report about the leases that they show, by the UID of the lease.
	hostStatuses map[types.UID]*leaseports.HostStatus
}

// isUnmanaged reports whether a lease is paused, or served by another manager. All leases of a namespace share one
// IPAddressPool and the Services, so they are decided on together, and an unmanaged lease itself is not written.
func (st *state) isUnmanaged(o *v1alpha1.IPLease) bool {
	return annotations.HasPaused(o) || guard.IsFilteredOut(o, st.watchFilter)
}

// isPoolShownByHosts reports whether hosts show the leases of the pool of a lease.
func (st *state) isPoolShownByHosts(o *v1alpha1.IPLease) bool {
	return st.hostPools[leaseports.NewLease(o).Pool]
}

// leasePoolFor returns the IPAddressPool that shows a lease, or will show it.
func (st *state) leasePoolFor(o *v1alpha1.IPLease) metallb.LeasePool {
	return metallb.LeasePool{Namespace: st.namespace, NamespaceSelector: o.Spec.NamespaceSelector}
}

// isInLeasePool reports whether an IPAddressPool has the address of a lease, and is the one that should have it.
func (st *state) isInLeasePool(o *v1alpha1.IPLease) bool {
	p := st.poolsByAddress[leaseAddress(o)]
	return p != nil && p.Name == st.leasePoolFor(o).Name()
}

// desiredPoolFor returns the IPAddressPool that should have the address of a lease; wanted is false if none should. An
// unmanaged lease stays where it is.
func (st *state) desiredPoolFor(o *v1alpha1.IPLease) (pool metallb.LeasePool, wanted bool) {
	existing := st.poolsByAddress[leaseAddress(o)]
	switch {
	case !st.isUnmanaged(o):
		return st.leasePoolFor(o), shouldBeInPool(o)
	case existing != nil:
		return metallb.NewLeasePool(existing), true
	}
	return pool, false
}

// serviceKey returns the object key of a Service.
func (st *state) serviceKey(r leaseports.ServiceRef) client.ObjectKey {
	return client.ObjectKey{Namespace: cmp.Or(r.Namespace, st.namespace), Name: r.Name}
}

// isResponsibleFor reports whether this namespace sets the condition of a Service and publishes it: the namespace of
// the leases that the Service names does that. For a Service that names none, its own namespace does, and those of
// whose leases it has ports.
func (st *state) isResponsibleFor(s *corev1.Service) bool {
	asked, asks := leaseports.ParseServiceRequest(s)
	if asks {
		return asked.Namespace == st.namespace
	}
	return s.Namespace == st.namespace || st.portHolders[leaseports.NewServiceRef(s, st.namespace)]
}

// leasesShownBy returns the leases whose address a Service shows.
func (st *state) leasesShownBy(s *corev1.Service) []*v1alpha1.IPLease {
	var out []*v1alpha1.IPLease
	for _, a := range leaseports.ShownAddresses(s) {
		out = append(out, st.leasesByAddress[a]...)
	}
	return out
}

// isHeldByPause reports whether a Service shows a lease that is unmanaged: the Service stays as it is.
func (st *state) isHeldByPause(s *corev1.Service) bool {
	return slices.ContainsFunc(st.leasesShownBy(s), st.isUnmanaged)
}

// addressesForService returns the addresses of the leases of a Service that has its ports of them.
func (st *state) addressesForService(service *leaseports.Service) []netip.Addr {
	var out []netip.Addr
	for _, name := range service.LeaseNames {
		out = append(out, leaseAddress(st.leasesByName[name]))
	}
	return out
}

// hasMissingLease reports whether a lease that a Service names does not exist, or, for a Service of another namespace,
// does not allow it: that Service cannot distinguish the two, not even by a delay.
func (st *state) hasMissingLease(service *leaseports.Service) bool {
	return slices.ContainsFunc(service.LeaseNames, func(name string) bool {
		o := st.leasesByName[name]
		if o == nil || service.Namespace == "" {
			return o == nil
		}
		lease := leaseports.NewLease(o)
		return !lease.AllowsService(service)
	})
}

// isPlaced reports whether the status of a Service has the addresses of all of its leases, or whether MetalLB is not
// responsible for that.
func (st *state) isPlaced(service *leaseports.Service) bool {
	return !st.MetalLB || service.ShownBy != v1alpha1.ShownByMetalLB || !slices.ContainsFunc(service.LeaseNames, func(name string) bool {
		o := st.leasesByName[name]
		return o == nil || !slices.Contains(service.StatusAddresses, leaseAddress(o))
	})
}

// requiresLocalEndpoint reports whether a Service that has ports of a lease must be served by Nodes with an endpoint of
// that Service.
func (st *state) requiresLocalEndpoint(o *v1alpha1.IPLease) bool {
	for i, s := range st.services {
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
			slices.ContainsFunc(leaseports.NewLease(o).PortTable, func(h leaseports.Holder) bool { return h.Service == st.serviceStates[i].ServiceRef }) {
			return true
		}
	}
	return false
}

// mayShowPort reports whether a Service shows a port of a lease, or may show it yet, as a manager has read in its
// condition that it has its ports, and is about to publish it. A Service that does not request the port any more has
// changed since, so that write is refused; for one that still requests it the condition was set when it lost the port.
func (st *state) mayShowPort(s *corev1.Service, o *v1alpha1.IPLease, port leaseports.Port) bool {
	service := leaseports.NewService(s, st.namespace)
	a := leaseAddress(o)
	if !slices.Contains(service.Ports, port) {
		return a.IsValid() && leaseports.StatusHasPort(s, a, port)
	}
	if a.IsValid() && leaseports.ShowsAddress(s, a) {
		return true
	}
	if !service.NamesLease(o.Name) {
		return false
	}
	if service.Namespace != "" { // the condition NotAllowed is set by these labels, whatever its labels are now
		service.NamespaceLabels = st.knownNamespaceLabels(service.ServiceRef)
	}
	lease := leaseports.NewLease(o)
	return isReportedSatisfied(s) || (!isReportedWithoutLease(s) && !lease.Deleting && lease.AllowsPort(port, &service))
}

// knownNamespaceLabels returns the labels of the namespace of a Service on which the decision is based.
func (st *state) knownNamespaceLabels(r leaseports.ServiceRef) labels.Set {
	for i := range st.serviceStates {
		if st.serviceStates[i].ServiceRef == r {
			return st.serviceStates[i].NamespaceLabels
		}
	}
	return nil
}

// setCreateErrors records for each Service why the API server refuses a lease that is created for it, by the name of
// the lease.
func (st *state) setCreateErrors(refused map[string]string) {
	for i := range st.serviceStates {
		for _, name := range st.serviceStates[i].LeaseNames {
			if why := refused[name]; why != "" {
				st.serviceStates[i].LeaseCreateError = why
			}
		}
	}
}

// updateAddressInUse clears AddressInUse for the leases about which hosts report something else by now: the condition
// of the lease does not show that yet.
func (st *state) updateAddressInUse() {
	for i := range st.leaseStates {
		if on := st.hostStatuses[st.leaseStates[i].UID]; on != nil {
			announced := on.AnnouncedReason(false)
			st.leaseStates[i].AddressInUse = st.leaseStates[i].AddressInUse && (announced == leaseports.Reason{} || announced.Reason == v1alpha1.AddressInUseReason)
		}
	}
}
