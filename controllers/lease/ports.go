package lease

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/leaseports"
)

// entry names an entry of the table of a lease.
type entry struct {
	lease string
	leaseports.Holder
}

// prove looks whether nobody is shown behind ports that are to be free (P4). It returns of which that is proven: a live read
// now, and one some time ago, show no Service of the name, or one that does not ask for the port and does not show the
// address.
func (l *look) prove(ctx context.Context, leaving map[string][]leaseports.Holder) (func(string, leaseports.Holder) bool, error) {
	proven := map[entry]bool{}
	live := map[string]*corev1.Service{} // nil: there is none
	for name, all := range leaving {
		for _, h := range all {
			s, known := live[h.Service]
			if !known {
				s = &corev1.Service{}
				err := l.Live.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: h.Service}, s)
				if apierrors.IsNotFound(err) {
					s, err = nil, nil
				}
				if err != nil {
					return nil, fmt.Errorf("reading Service %s/%s, which had ports of a lease: %w", l.namespace, h.Service, err)
				}
				live[h.Service] = s
			}
			o := l.leaseOf(name)
			if (s == nil || !l.shows(s, o, h.Port)) && l.twiceSeen(sight{o.UID, h.Port, h.Service}) {
				proven[entry{name, h}] = true
			}
		}
	}
	return func(name string, h leaseports.Holder) bool { return proven[entry{name, h}] }, nil
}

// shows reports whether a Service shows a port of a lease, or may yet.
func (l *look) shows(s *corev1.Service, o *v1alpha1.IPLease, port leaseports.Port) bool {
	if a := addressOf(o); a.IsValid() && leaseports.Shows(s, a) {
		return true
	}
	is := leaseports.ServiceOf(s)
	if o.DeletionTimestamp != nil || !slices.Contains(is.Leases, o.Name) || !slices.Contains(is.Ports, port) {
		return false
	}
	// It asks, as the cache may not show yet. It has no right to it where the port is for another Service.
	lease := leaseports.LeaseOf(o)
	to, declared := lease.Declared[port]
	return lease.Declared == nil || (declared && (to == "" || to == s.Name))
}

// writeTables writes who has which port (P2). The API server takes no two entries of one port, and no table that was decided
// on anything older than the lease is.
func (l *look) writeTables(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		table := leaseports.TableOf(d.Tables[o.Name])
		if paused(o) || slices.Equal(table, o.Status.Ports) {
			continue
		}
		next := o.DeepCopy()
		if next.Status.Ports = table; len(table) > 0 {
			next.Status.ShownBy = v1alpha1.ShownByMetalLB
		}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(o)); err != nil {
			return false, fmt.Errorf("writing the ports of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// granted reports whether a Service has all of its ports, and they are on record as they were read (P3).
func (l *look) granted(d *leaseports.Decision, s *leaseports.Service) (granted, recorded bool) {
	granted = d.Verdicts[s.UID].Reason == v1alpha1.GrantedReason
	return granted, granted && leaseports.Recorded(s, l.known)
}
