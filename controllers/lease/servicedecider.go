package lease

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// serviceDecider decides which writes are due for Services: their conditions, and the addresses that they are published
// with, or lose. It decides by what was read, and has no client.
type serviceDecider struct {
	schedule *schedule
	state    *state
	decision *leaseports.Decision
	delays   *delays
}

// serviceDecision returns the write of one kind that is due for a Service, nil if none is.
type serviceDecision func(*corev1.Service, *leaseports.Service) *serviceWrite

// serviceWrite is a write of a Service that is due.
type serviceWrite struct {
	// action is what the write does, for errors.
	action string
	next   *corev1.Service
	// ofStatus and ofCondition report whether the write is of the status, or of the condition; otherwise it is of the
	// metadata.
	ofStatus, ofCondition bool
	// showsLeases reports whether the write shows addresses of leases. It is made only if the ports are on record, by a
	// live read.
	showsLeases bool
	// refusal is the reason that the condition newly shows, for an event; the zero Reason if there is none.
	refusal leaseports.Reason
	// isFirst reports whether the Service is published for the first time.
	isFirst bool
}

// decideCondition sets the condition of a Service that names a lease. One that names none keeps it until it shows none.
func (d *serviceDecider) decideCondition(s *corev1.Service, service *leaseports.Service) *serviceWrite {
	if granted, recorded := d.grantState(service); (granted && !recorded) || !d.state.isResponsibleFor(s) {
		return nil // its lease is unmanaged, or another namespace sets its condition
	}
	v, asks := d.decision.Reasons[s.UID]
	if v.Reason == v1alpha1.GrantedReason {
		v = d.delays.placementReason(s, service, v)
	}
	old := leaseCondition(s)
	c := newCondition(v1alpha1.LeaseSatisfiedCondition, v.Reason == v1alpha1.GrantedReason, v.Reason, text.SanitizeMessage(v.Message))
	c.ObservedGeneration, c.LastTransitionTime = s.Generation, metav1.NewTime(d.schedule.now)
	isKept := !asks && (old == nil || len(d.state.leasesShownBy(s)) > 0)
	if isKept || (asks && isSameCondition(old, c)) || d.delays.isAwaitingLease(s, v) {
		return nil
	}
	w := &serviceWrite{action: fmt.Sprintf("setting the condition of Service %s/%s", s.Namespace, s.Name), next: s.DeepCopy(), ofCondition: true}
	if !asks {
		meta.RemoveStatusCondition(&w.next.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
		return w
	}
	meta.SetStatusCondition(&w.next.Status.Conditions, *c)
	isRefused := c.Status == metav1.ConditionFalse && !leaseports.IsLeasePending(c.Reason, c.Message)
	wasRefused := old != nil && old.Reason == c.Reason && !leaseports.IsLeasePending(old.Reason, old.Message)
	if isRefused && !wasRefused {
		w.refusal = v
	}
	return w
}

// decidePublication makes MetalLB assign a Service the addresses of its leases, or withdraws those to which it has no
// right any more (P3). What a user writes there is overwritten while the Service names a lease.
func (d *serviceDecider) decidePublication(s *corev1.Service, service *leaseports.Service) *serviceWrite {
	granted, recorded := d.grantState(service)
	granted = granted && service.ShownBy != v1alpha1.ShownByHost // MetalLB does not serve those
	isReady := recorded && isReportedSatisfied(s)
	var p leaseports.Publication
	if granted {
		p.Addresses = d.state.addressesForService(service)
		for _, name := range service.LeaseNames {
			o := d.state.leasesByName[name]
			isReady = isReady && shouldBeInPool(o) && d.state.isInLeasePool(o) && !d.state.isUnmanaged(o)
			lease := leaseports.NewLease(o)
			p.SharingKey, p.IsShared = d.state.leasePoolFor(o).Name(), p.IsShared || lease.IsShared()
		}
	}
	if (granted && !isReady) || !d.mayPublish(s, service) {
		return nil
	}
	next := p.ApplyToService(s)
	if next == nil {
		return nil
	}
	_, wasPublished := s.Annotations[v1alpha1.LeasedAddressesAnnotation]
	return &serviceWrite{action: fmt.Sprintf("publishing Service %s/%s", s.Namespace, s.Name), next: next, showsLeases: granted, isFirst: granted && !wasPublished}
}

// decideHostIngress sets the addresses that hosts show in the status of a Service, and removes those to which it has no
// right any more (P3, P4): no other load balancer serves its class. An address is published once a host has announced
// it, and stays when it moves to another host.
func (d *serviceDecider) decideHostIngress(s *corev1.Service, service *leaseports.Service) *serviceWrite {
	granted, recorded := d.grantState(service)
	granted = granted && service.ShownBy == v1alpha1.ShownByHost
	isReady := recorded && isReportedSatisfied(s)
	if !d.state.Hosts || (granted && !isReady) || !d.mayPublish(s, service) {
		return nil
	}
	want, old := d.retainedIngress(s, service, granted), s.Status.LoadBalancer.Ingress
	if granted && d.isAnnouncedOrShown(s, service) {
		want = d.desiredIngress(s, service)
	}
	if leaseports.IsSameIngress(want, old) {
		return nil
	}
	w := &serviceWrite{action: fmt.Sprintf("publishing Service %s/%s", s.Namespace, s.Name), next: s.DeepCopy(), ofStatus: true, showsLeases: granted && len(want) > 0, isFirst: granted && len(old) == 0}
	w.next.Status.LoadBalancer.Ingress = want
	return w
}

// grantState reports whether a Service is granted all of its ports, and whether they are on record, as the leases were
// read.
func (d *serviceDecider) grantState(service *leaseports.Service) (granted, recorded bool) {
	granted = d.decision.Reasons[service.UID].Reason == v1alpha1.GrantedReason
	return granted, granted && leaseports.HasRecordedPorts(service, d.state.leaseStates)
}

// mayPublish reports whether this namespace publishes a Service, with addresses or without.
func (d *serviceDecider) mayPublish(s *corev1.Service, service *leaseports.Service) bool {
	return service.NotServedMessage == "" && !d.state.isHeldByPause(s) && d.state.isResponsibleFor(s)
}

// retainedIngress returns the entries that stay in the status of a Service that is not published with all that it has
// now. If the Service is of the class of hosts, all entries are ours, and those that it has a right to stay.
func (d *serviceDecider) retainedIngress(s *corev1.Service, service *leaseports.Service, granted bool) []corev1.LoadBalancerIngress {
	var may []netip.Addr
	if granted {
		may = d.state.addressesForService(service)
	}
	return slices.DeleteFunc(slices.Clone(s.Status.LoadBalancer.Ingress), func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		if service.ShownBy == v1alpha1.ShownByHost {
			return err != nil || !slices.Contains(may, a.Unmap())
		}
		return err == nil && slices.ContainsFunc(d.state.leasesByAddress[a.Unmap()], isShownByHost)
	})
}

// isAnnouncedOrShown reports whether a Service that has its ports may be published with them: each address is
// announced, or the Service shows it already.
func (d *serviceDecider) isAnnouncedOrShown(s *corev1.Service, service *leaseports.Service) bool {
	for _, name := range service.LeaseNames {
		o := d.state.leasesByName[name]
		on := d.state.hostStatuses[o.UID]
		if d.state.isUnmanaged(o) || on == nil || !mayBeShown(o, v1alpha1.ShownByHost) {
			return false
		}
		if !leaseports.ShowsAddress(s, leaseAddress(o)) && !on.IsAnnounced() {
			return false
		}
	}
	return true
}

// desiredIngress returns the desired load balancer status of a Service. The error of a port stays until a host reports
// the current one.
func (d *serviceDecider) desiredIngress(s *corev1.Service, service *leaseports.Service) []corev1.LoadBalancerIngress {
	wrong := map[netip.Addr]map[leaseports.Port]string{}
	for _, name := range service.LeaseNames {
		o := d.state.leasesByName[name]
		a := leaseAddress(o)
		if on := d.state.hostStatuses[o.UID]; on.IsAnnounced() {
			wrong[a] = on.PortErrors()
		} else {
			wrong[a] = leaseports.StatusPortErrors(s, a)
		}
	}
	return leaseports.NewIngress(service, d.state.addressesForService(service), wrong)
}

// decideStatusRemoval removes an address from the status of a Service that has no right to it any more: MetalLB leaves
// a Service what it has. If a user requests the address from MetalLB, it is left alone. MetalLB itself removes the
// address of a lease that is being deleted, as no IPAddressPool has it: that shows that it has released it.
func (d *serviceDecider) decideStatusRemoval(s *corev1.Service, service *leaseports.Service) *serviceWrite {
	granted, _ := d.grantState(service)
	isServedByMetalLB := service.NotServedMessage == "" && service.ShownBy != v1alpha1.ShownByHost
	if granted || !isServedByMetalLB || d.state.isHeldByPause(s) || !slices.ContainsFunc(d.state.leasesShownBy(s), func(o *v1alpha1.IPLease) bool {
		return o.DeletionTimestamp == nil && !isShownByHost(o) && leaseports.HasOnlyStatusAddress(s, leaseAddress(o))
	}) {
		return nil
	}
	w := &serviceWrite{action: fmt.Sprintf("removing the address of a lease from Service %s/%s", s.Namespace, s.Name), next: s.DeepCopy(), ofStatus: true}
	w.next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	return w
}

// decideTriedAddressRemoval removes the annotation with the tried addresses from a Service (P7): once it is shown with
// what it has, and where no lease is created for it any more.
func (d *serviceDecider) decideTriedAddressRemoval(s *corev1.Service, service *leaseports.Service) *serviceWrite {
	_, noted := s.Annotations[v1alpha1.TriedAddressesAnnotation]
	isStillTrying := service.LoadBalancerClass != "" && !d.isFullyShown(s, service)
	if !noted || isStillTrying || !d.state.isResponsibleFor(s) || d.state.isHeldByPause(s) {
		return nil
	}
	w := &serviceWrite{action: fmt.Sprintf("removing the tried addresses from Service %s/%s", s.Namespace, s.Name), next: s.DeepCopy()}
	delete(w.next.Annotations, v1alpha1.TriedAddressesAnnotation)
	return w
}

// isFullyShown reports whether a Service is shown with the addresses of all of its leases, and they are announced.
func (d *serviceDecider) isFullyShown(s *corev1.Service, service *leaseports.Service) bool {
	_, recorded := d.grantState(service)
	return recorded && !slices.ContainsFunc(service.LeaseNames, func(name string) bool {
		o := d.state.leasesByName[name]
		return !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.AnnouncedCondition) || !leaseports.ShowsAddress(s, leaseAddress(o))
	})
}
