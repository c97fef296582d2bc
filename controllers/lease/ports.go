package lease

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
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
	live := map[leaseports.Ref]*corev1.Service{} // nil: there is none
	for name, all := range leaving {
		for _, h := range all {
			s, known := live[h.Service]
			if !known {
				s = &corev1.Service{}
				err := l.Live.Get(ctx, l.keyOf(h.Service), s)
				if apierrors.IsNotFound(err) {
					s, err = nil, nil
				}
				if err != nil {
					return nil, fmt.Errorf("reading Service %s, which had ports of a lease: %w", l.keyOf(h.Service), err)
				}
				live[h.Service] = s
			}
			o := l.byName[name]
			if s != nil && l.shows(s, o, h.Port) {
				l.wait = grants.Sooner(l.wait, askAgain) // it may be a Service that no watch wakes us for any more
			} else if l.twiceSeen(sight{lease: o.UID, port: h.Port, by: h.Service}) {
				proven[entry{name, h}] = true
			}
		}
	}
	return func(name string, h leaseports.Holder) bool { return proven[entry{name, h}] }, nil
}

// shows reports whether a Service shows a port of a lease, or may yet: by a manager that has read that it was told of its
// ports, and is about to publish it. Who asks for the port no more has changed since, so that write is refused; who asks
// still was told that it has lost the port.
func (l *look) shows(s *corev1.Service, o *v1alpha1.IPLease, port leaseports.Port) bool {
	is := leaseports.ServiceOf(s, l.namespace)
	a := addressOf(o)
	if !slices.Contains(is.Ports, port) {
		return a.IsValid() && leaseports.ShowsPort(s, a, port)
	}
	if a.IsValid() && leaseports.Shows(s, a) {
		return true
	}
	if !is.Names(o.Name) {
		return false
	}
	if is.Namespace != "" { // that it is not allowed is told it, whatever its labels are now
		is.NamespaceLabels = l.labelsOf(is.Ref)
	}
	lease := leaseports.LeaseOf(o)
	return satisfied(s) || (!toldOff(s) && !lease.Deleting && lease.Gives(port, &is))
}

// toldOff reports whether a Service was told that it has no lease, although it could have one.
func toldOff(s *corev1.Service) bool {
	c := conditionOf(s)
	return c != nil && (c.Reason == v1alpha1.IdleReason || c.Reason == v1alpha1.NoPoolReason)
}

// labelsOf are the labels of the namespace of a Service, as they are decided on.
func (l *look) labelsOf(r leaseports.Ref) labels.Set {
	for i := range l.asking {
		if l.asking[i].Ref == r {
			return l.asking[i].NamespaceLabels
		}
	}
	return nil
}

// satisfied reports whether a Service was told that it has its ports.
func satisfied(s *corev1.Service) bool {
	c := conditionOf(s)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.NotPlacedReason)
}

// writeTables writes who has which port (P2). The API server takes no two entries of one port, and no table that was decided
// on anything older than the lease is.
func (l *look) writeTables(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		table := leaseports.TableOf(d.Tables[o.Name])
		if err := l.keepUIDs(ctx, o, table); err != nil {
			return false, err
		}
		if l.leftAlone(o) || slices.Equal(table, o.Status.Ports) {
			continue
		}
		next := o.DeepCopy()
		if next.Status.Ports = table; len(table) > 0 {
			next.Status.ShownBy = d.By[o.Name]
		}
		if err := l.Client.Status().Patch(ctx, next, guard.SinceRead(o)); err != nil {
			return false, fmt.Errorf("writing the ports of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// keepUIDs leaves in a table the UIDs that it has, unless a live read shows that a Service was made again under its name: the
// cache may show the one before.
func (l *look) keepUIDs(ctx context.Context, o *v1alpha1.IPLease, table []v1alpha1.LeasedPort) error {
	for i := range table {
		was := slices.IndexFunc(o.Status.Ports, func(p v1alpha1.LeasedPort) bool {
			return p.Protocol == table[i].Protocol && p.Port == table[i].Port && p.Service == table[i].Service && p.Namespace == table[i].Namespace
		})
		if was < 0 || o.Status.Ports[was].UID == table[i].UID {
			continue
		}
		live := &corev1.Service{}
		key := l.keyOf(leaseports.Ref{Namespace: table[i].Namespace, Name: table[i].Service})
		err := l.Live.Get(ctx, key, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Service %s, which was made again: %w", key, err)
		}
		if live.UID != table[i].UID {
			table[i].UID = o.Status.Ports[was].UID
		}
	}
	return nil
}

// granted reports whether a Service is to have all of its ports, and whether they are on record, as the leases were read.
func (l *look) granted(d *leaseports.Decision, s *leaseports.Service) (granted, recorded bool) {
	granted = d.Verdicts[s.UID].Reason == v1alpha1.GrantedReason
	return granted, granted && leaseports.Recorded(s, l.known)
}
