package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// isShownByHost reports whether hosts show a lease.
func isShownByHost(o *v1alpha1.IPLease) bool { return o.Status.ShownBy == v1alpha1.ShownByHost }

// lockName returns the name of the lock of the address of a lease.
func lockName(o *v1alpha1.IPLease) string { return record.LockName(leaseAddress(o), o.Status.Network) }

// gatherHostStatuses reads what hosts report about the leases with ports that Services have.
func (l *scope) gatherHostStatuses(ctx context.Context) error {
	l.hostStatuses = map[types.UID]*leaseports.HostStatus{}
	if !l.Hosts {
		return nil
	}
	for _, o := range l.leases {
		if !isShownByHost(o) || len(o.Status.Ports) == 0 || !leaseAddress(o).IsValid() {
			continue
		}
		lock := &coordinationv1.Lease{}
		err := l.Client.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: lockName(o)}, lock)
		if apierrors.IsNotFound(err) {
			lock, err = nil, nil
		}
		if err != nil {
			return fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		status := l.newHostStatus(o, lock)
		if status.RequiresLocalEndpoint = l.requiresLocalEndpoint(o); status.Silent {
			if status.ReachableByOther, err = l.isReachableByOther(ctx, o, status.Holder); err != nil {
				return err
			}
		}
		l.hostStatuses[o.UID] = status
	}
	return nil
}

// newHostStatus returns what the lock of the address of a lease shows; lock is nil if there is none.
func (l *scope) newHostStatus(o *v1alpha1.IPLease, lock *coordinationv1.Lease) *leaseports.HostStatus {
	out := &leaseports.HostStatus{HasLock: lock != nil}
	if lock == nil {
		return out
	}
	parsed, holder, err := record.ParseLock(lock)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // the wrapping text is for hosts
		}
		out.LockProblem = fmt.Sprintf("the lock of the address, Lease %s/%s, cannot be read: %v", lock.Namespace, lock.Name, err)
		return out
	}
	out.Holder, out.PreviousHolder = holder, parsed.ReleasedBy
	if holder != "" {
		life := l.heartbeats.livenessForHost(holder, l.now)
		out.Alive, out.Silent = life == livenessAlive, life == livenessSilent
	}
	if parsed.Report != nil && parsed.Report.LeaseUID == o.UID {
		out.Report = parsed.Report
	}
	return out
}

// requiresLocalEndpoint reports whether a Service that has ports of a lease must be served by Nodes with an endpoint of
// that Service.
func (l *scope) requiresLocalEndpoint(o *v1alpha1.IPLease) bool {
	for i, s := range l.services {
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
			slices.ContainsFunc(leaseports.NewLease(o).PortTable, func(h leaseports.Holder) bool { return h.Service == l.serviceStates[i].ServiceRef }) {
			return true
		}
	}
	return false
}

// trackMissingHosts records which addresses no host has, and since when: the condition shows it some time later.
func (l *scope) trackMissingHosts() {
	for uid, status := range l.hostStatuses {
		if status.HasReport() {
			continue
		}
		s := observation{leaseUID: uid, withoutHost: true}
		since, before := l.earlierObservations[s]
		if !before {
			since = l.now
		}
		if l.observations[s] = since; !l.isHostOverdue(uid) {
			l.requeueAfter = grants.MinWait(l.requeueAfter, noHostTimeout-l.now.Sub(since))
		}
	}
}

// isHostOverdue reports whether no host has had the address of a lease for so long that the condition shows it.
func (l *scope) isHostOverdue(lease types.UID) bool {
	since, without := l.observations[observation{leaseUID: lease, withoutHost: true}]
	return without && l.now.Sub(since) >= noHostTimeout
}

// publishHostIngress sets the addresses that hosts show in the status of Services, and removes those to which a Service
// has no right any more (P3, P4): no other load balancer serves their class. An address is published once a host has
// announced it, and stays when it moves to another host.
func (l *scope) publishHostIngress(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	if !l.Hosts {
		return false, nil
	}
	for i, s := range l.services {
		state := &l.serviceStates[i]
		granted, recorded := l.grantState(d, state)
		granted = granted && state.ShownBy == v1alpha1.ShownByHost
		if state.NotServedMessage != "" || l.isHeldByPause(s) || !l.isResponsibleFor(s) || (granted && (!recorded || !isReportedSatisfied(s))) {
			continue
		}
		want := l.retainedIngress(s, state, granted)
		if granted && l.isAnnouncedOrShown(s, state) {
			want = l.desiredIngress(s, state)
		}
		if leaseports.IsSameIngress(want, s.Status.LoadBalancer.Ingress) {
			continue
		}
		if len(want) > 0 && granted {
			isGranted, err := l.isGrantedLive(ctx, state, l.addressesForService(state))
			if err != nil {
				return false, err
			}
			if !isGranted {
				continue // the watch of the lease enqueues the namespace
			}
		}
		next := s.DeepCopy()
		next.Status.LoadBalancer.Ingress = want
		if err := l.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(s)); err != nil {
			return false, fmt.Errorf("publishing Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		if granted && len(s.Status.LoadBalancer.Ingress) == 0 {
			metrics.LeaseServiceWait.Observe(l.now.Sub(s.CreationTimestamp.Time).Seconds())
		}
		changed = l.recordServiceWrite(s)
	}
	return changed, nil
}

// isAnnouncedOrShown reports whether a Service that has its ports may be published with them: each address is
// announced, or the Service shows it already.
func (l *scope) isAnnouncedOrShown(s *corev1.Service, state *leaseports.Service) bool {
	for _, name := range state.LeaseNames {
		o := l.leasesByName[name]
		on := l.hostStatuses[o.UID]
		if l.isUnmanaged(o) || on == nil || !mayBeShown(o, v1alpha1.ShownByHost) || (!leaseports.ShowsAddress(s, leaseAddress(o)) && !on.IsAnnounced()) {
			return false
		}
	}
	return true
}

// addressesForService returns the addresses of the leases of a Service that has its ports of them.
func (l *scope) addressesForService(state *leaseports.Service) []netip.Addr {
	var out []netip.Addr
	for _, name := range state.LeaseNames {
		out = append(out, leaseAddress(l.leasesByName[name]))
	}
	return out
}

// desiredIngress returns the desired load balancer status of a Service. The error of a port stays until a host reports
// the current one.
func (l *scope) desiredIngress(s *corev1.Service, state *leaseports.Service) []corev1.LoadBalancerIngress {
	wrong := map[netip.Addr]map[leaseports.Port]string{}
	for _, name := range state.LeaseNames {
		o := l.leasesByName[name]
		a := leaseAddress(o)
		if on := l.hostStatuses[o.UID]; on.IsAnnounced() {
			wrong[a] = on.PortErrors()
		} else {
			wrong[a] = leaseports.StatusPortErrors(s, a)
		}
	}
	return leaseports.NewIngress(state, l.addressesForService(state), wrong)
}

// retainedIngress returns the entries that stay in the status of a Service that is not published with all that it has
// now. If the Service is of the class of hosts, all entries are ours, and those that it has a right to stay.
func (l *scope) retainedIngress(s *corev1.Service, state *leaseports.Service, granted bool) []corev1.LoadBalancerIngress {
	var may []netip.Addr
	if granted {
		may = l.addressesForService(state)
	}
	return slices.DeleteFunc(slices.Clone(s.Status.LoadBalancer.Ingress), func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		if state.ShownBy == v1alpha1.ShownByHost {
			return err != nil || !slices.Contains(may, a.Unmap())
		}
		return err == nil && slices.ContainsFunc(l.leasesByAddress[a.Unmap()], isShownByHost)
	})
}
