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

// tableEntry names an entry in the port table of a lease.
type tableEntry struct {
	leaseName string
	leaseports.Holder
}

// proveFreePorts checks whether no Service is shown behind the ports in leaving (P4: withdraw before release). It
// returns a function that reports whether that is proven for an entry: a live read now, and one some time ago, show no
// Service of the name, or one that does not request the port and does not show the address.
func (l *scope) proveFreePorts(ctx context.Context, leaving map[string][]leaseports.Holder) (func(string, leaseports.Holder) bool, error) {
	proven := map[tableEntry]bool{}
	live := map[leaseports.ServiceRef]*corev1.Service{} // nil if there is none
	for name, all := range leaving {
		for _, h := range all {
			s, known := live[h.Service]
			if !known {
				s = &corev1.Service{}
				err := l.Live.Get(ctx, l.serviceKey(h.Service), s)
				if apierrors.IsNotFound(err) {
					s, err = nil, nil
				}
				if err != nil {
					return nil, fmt.Errorf("reading Service %s, which had ports of a lease: %w", l.serviceKey(h.Service), err)
				}
				live[h.Service] = s
			}
			o := l.leasesByName[name]
			if s != nil && l.mayShowPort(s, o, h.Port) {
				l.requeueAfter = grants.MinWait(l.requeueAfter, recheckInterval) // no watch may enqueue us for this Service any more
			} else if l.confirmedTwice(observation{leaseUID: o.UID, port: h.Port, formerService: h.Service}) {
				proven[tableEntry{name, h}] = true
			}
		}
	}
	return func(name string, h leaseports.Holder) bool { return proven[tableEntry{name, h}] }, nil
}

// mayShowPort reports whether a Service shows a port of a lease, or may show it yet, as a manager has read in its
// condition that it has its ports, and is about to publish it. A Service that does not request the port any more has
// changed since, so that write is refused; for one that still requests it the condition was set when it lost the port.
func (l *scope) mayShowPort(s *corev1.Service, o *v1alpha1.IPLease, port leaseports.Port) bool {
	service := leaseports.NewService(s, l.namespace)
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
		service.NamespaceLabels = l.knownNamespaceLabels(service.ServiceRef)
	}
	lease := leaseports.NewLease(o)
	return isReportedSatisfied(s) || (!isReportedWithoutLease(s) && !lease.Deleting && lease.AllowsPort(port, &service))
}

// isReportedWithoutLease reports whether the condition of a Service shows that it has no lease, although it could have
// one.
func isReportedWithoutLease(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && (c.Reason == v1alpha1.IdleReason || c.Reason == v1alpha1.NoPoolReason)
}

// knownNamespaceLabels returns the labels of the namespace of a Service on which the decision is based.
func (l *scope) knownNamespaceLabels(r leaseports.ServiceRef) labels.Set {
	for i := range l.serviceStates {
		if l.serviceStates[i].ServiceRef == r {
			return l.serviceStates[i].NamespaceLabels
		}
	}
	return nil
}

// isReportedSatisfied reports whether the condition of a Service shows that it has its ports.
func isReportedSatisfied(s *corev1.Service) bool {
	c := leaseCondition(s)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.NotPlacedReason)
}

// writePortTables writes which Service has which port (P2). The API server accepts no two entries of one port, and no
// table that was decided on an older version of the lease.
func (l *scope) writePortTables(ctx context.Context, d *leaseports.Decision) (changed bool, err error) {
	for _, o := range l.leases {
		table := leaseports.ToLeasedPorts(d.PortTables[o.Name])
		if err := l.preserveUIDs(ctx, o, table); err != nil {
			return false, err
		}
		if l.isUnmanaged(o) || slices.Equal(table, o.Status.Ports) {
			continue
		}
		next := o.DeepCopy()
		if next.Status.Ports = table; len(table) > 0 {
			next.Status.ShownBy = d.ShownBy[o.Name]
		}
		if err := l.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
			return false, fmt.Errorf("writing the ports of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// preserveUIDs keeps the UIDs that a table has, unless a live read shows that a Service was created again under its
// name: the cache may show its predecessor.
func (l *scope) preserveUIDs(ctx context.Context, o *v1alpha1.IPLease, table []v1alpha1.LeasedPort) error {
	for i := range table {
		j := slices.IndexFunc(o.Status.Ports, func(p v1alpha1.LeasedPort) bool {
			return p.Protocol == table[i].Protocol && p.Port == table[i].Port && p.Service == table[i].Service && p.Namespace == table[i].Namespace
		})
		if j < 0 || o.Status.Ports[j].UID == table[i].UID {
			continue
		}
		live := &corev1.Service{}
		key := l.serviceKey(leaseports.ServiceRef{Namespace: table[i].Namespace, Name: table[i].Service})
		err := l.Live.Get(ctx, key, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Service %s, which was made again: %w", key, err)
		}
		if live.UID != table[i].UID {
			table[i].UID = o.Status.Ports[j].UID
		}
	}
	return nil
}

// grantState reports whether a Service is granted all of its ports, and whether they are on record, as the leases were
// read.
func (l *scope) grantState(d *leaseports.Decision, s *leaseports.Service) (granted, recorded bool) {
	granted = d.Reasons[s.UID].Reason == v1alpha1.GrantedReason
	return granted, granted && leaseports.HasRecordedPorts(s, l.leaseStates)
}
