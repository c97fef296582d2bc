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

// byHost reports whether hosts show a lease.
func byHost(o *v1alpha1.IPLease) bool { return o.Status.ShownBy == v1alpha1.ShownByHost }

// lockOf is the name of the lock of the address of a lease.
func lockOf(o *v1alpha1.IPLease) string { return record.LockName(addressOf(o), o.Status.Network) }

// gatherHosts reads what hosts say of the leases of which Services have ports.
func (l *look) gatherHosts(ctx context.Context) error {
	l.onHosts = map[types.UID]*leaseports.OnHost{}
	if !l.Hosts {
		return nil
	}
	for _, o := range l.leases {
		if !byHost(o) || len(o.Status.Ports) == 0 || !addressOf(o).IsValid() {
			continue
		}
		lock := &coordinationv1.Lease{}
		err := l.Client.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: lockOf(o)}, lock)
		if apierrors.IsNotFound(err) {
			lock, err = nil, nil
		}
		if err != nil {
			return fmt.Errorf("reading the lock of the address of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		is := l.onHost(o, lock)
		if is.Local = l.local(o); is.Silent {
			if is.Reached, err = l.reached(ctx, o, is.Holder); err != nil {
				return err
			}
		}
		l.onHosts[o.UID] = is
	}
	return nil
}

// onHost is what the lock of the address of a lease says; nil: there is none.
func (l *look) onHost(o *v1alpha1.IPLease, lock *coordinationv1.Lease) *leaseports.OnHost {
	out := &leaseports.OnHost{Locked: lock != nil}
	if lock == nil {
		return out
	}
	says, holder, err := record.LockOf(lock)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // the rest is for hosts
		}
		out.Problem = fmt.Sprintf("the lock of the address, Lease %s/%s, cannot be read: %v", lock.Namespace, lock.Name, err)
		return out
	}
	out.Holder, out.Left = holder, says.Left
	if holder != "" {
		life := l.heard.lives(holder, l.now)
		out.Alive, out.Silent = life == alive, life == silent
	}
	if says.Report != nil && says.Report.Lease == o.UID {
		out.Report = says.Report
	}
	return out
}

// local reports whether a Service that has ports of a lease is to be served by Nodes with an endpoint of its own.
func (l *look) local(o *v1alpha1.IPLease) bool {
	for i, s := range l.services {
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
			slices.ContainsFunc(leaseports.LeaseOf(o).Table, func(h leaseports.Holder) bool { return h.Service == l.asking[i].Ref }) {
			return true
		}
	}
	return false
}

// awaitHosts notes which addresses no host has, and since when: that is said some time later.
func (l *look) awaitHosts() {
	for uid, is := range l.onHosts {
		if is.Has() {
			continue
		}
		s := sight{lease: uid, without: true}
		since, before := l.before[s]
		if !before {
			since = l.now
		}
		if l.seen[s] = since; !l.waited(uid) {
			l.wait = grants.Sooner(l.wait, noHostAfter-l.now.Sub(since))
		}
	}
}

// waited reports whether no host has had the address of a lease for so long that it is said.
func (l *look) waited(lease types.UID) bool {
	since, without := l.seen[sight{lease: lease, without: true}]
	return without && l.now.Sub(since) >= noHostAfter
}

// publishOnHosts says in the status of Services which addresses hosts show for them, and takes back what they have no right to
// any more (P3, P4): no other load balancer answers for their class. An address is published once a host has announced it, and
// stays when it goes to another host.
func (l *look) publishOnHosts(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	if !l.Hosts {
		return false, nil
	}
	for i, s := range l.services {
		is := &l.asking[i]
		granted, recorded := l.granted(d, is)
		granted = granted && is.By == v1alpha1.ShownByHost
		if is.Off != "" || l.heldByPause(s) || !l.mine(s) || (granted && (!recorded || !satisfied(s))) {
			continue
		}
		want := l.kept(s, is, granted)
		if granted && l.announcedOrShown(s, is) {
			want = l.ingress(s, is)
		}
		if leaseports.SameIngress(want, s.Status.LoadBalancer.Ingress) {
			continue
		}
		if len(want) > 0 && granted {
			has, err := l.liveHas(ctx, is, l.addressesOf(is))
			if err != nil {
				return false, err
			}
			if !has {
				continue // the watch of the lease wakes us
			}
		}
		next := s.DeepCopy()
		next.Status.LoadBalancer.Ingress = want
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(s)); err != nil {
			return false, fmt.Errorf("publishing Service %s/%s: %w", s.Namespace, s.Name, err)
		}
		if granted && len(s.Status.LoadBalancer.Ingress) == 0 {
			metrics.LeaseServiceWait.Observe(l.now.Sub(s.CreationTimestamp.Time).Seconds())
		}
		changed = l.changes(s)
	}
	return changed, nil
}

// announcedOrShown reports whether a Service that has its ports may be published with them: each address is on it already, or
// announced.
func (l *look) announcedOrShown(s *corev1.Service, is *leaseports.Service) bool {
	for _, name := range is.Leases {
		o := l.byName[name]
		on := l.onHosts[o.UID]
		if l.leftAlone(o) || on == nil || !showable(o, v1alpha1.ShownByHost) || (!leaseports.Shows(s, addressOf(o)) && !on.Announces()) {
			return false
		}
	}
	return true
}

// addressesOf are the addresses of the leases of a Service that has its ports of them.
func (l *look) addressesOf(is *leaseports.Service) []netip.Addr {
	var out []netip.Addr
	for _, name := range is.Leases {
		out = append(out, addressOf(l.byName[name]))
	}
	return out
}

// ingress is what the status of a Service is to say. What was wrong with a port is, until a host says what is now.
func (l *look) ingress(s *corev1.Service, is *leaseports.Service) []corev1.LoadBalancerIngress {
	wrong := map[netip.Addr]map[leaseports.Port]string{}
	for _, name := range is.Leases {
		o := l.byName[name]
		a := addressOf(o)
		if on := l.onHosts[o.UID]; on.Announces() {
			wrong[a] = on.Errors()
		} else {
			wrong[a] = leaseports.ErrorsIn(s, a)
		}
	}
	return leaseports.Ingress(is, l.addressesOf(is), wrong)
}

// kept is what stays in the status of a Service that is not published with all that it has now: of the class of hosts, all of it
// is ours, and what it has a right to stays.
func (l *look) kept(s *corev1.Service, is *leaseports.Service, granted bool) []corev1.LoadBalancerIngress {
	var may []netip.Addr
	if granted {
		may = l.addressesOf(is)
	}
	return slices.DeleteFunc(slices.Clone(s.Status.LoadBalancer.Ingress), func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		if is.By == v1alpha1.ShownByHost {
			return err != nil || !slices.Contains(may, a.Unmap())
		}
		return err == nil && slices.ContainsFunc(l.byAddress[a.Unmap()], byHost)
	})
}
