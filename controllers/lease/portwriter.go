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

// portWriter writes which Service has which port into the leases (P2). A port that leaves a table is proven to be free
// first (P4).
type portWriter struct {
	schedule     *schedule
	observations *observations
	state        *state
	api          *api
	decision     *leaseports.Decision
}

// proveFreePorts checks whether no Service is shown behind the ports in leaving (P4: withdraw before release). It
// returns a function that reports whether that is proven for an entry: a live read now, and one some time ago, show no
// Service of the name, or one that does not request the port and does not show the address.
func (w *portWriter) proveFreePorts(ctx context.Context, leaving map[string][]leaseports.Holder) (func(string, leaseports.Holder) bool, error) {
	proven := map[tableEntry]bool{}
	live := map[leaseports.ServiceRef]*corev1.Service{} // nil if there is none
	for name, all := range leaving {
		for _, h := range all {
			s, known := live[h.Service]
			if !known {
				s = &corev1.Service{}
				err := w.api.Live.Get(ctx, w.state.serviceKey(h.Service), s)
				if apierrors.IsNotFound(err) {
					s, err = nil, nil
				}
				if err != nil {
					return nil, fmt.Errorf("reading Service %s, which had ports of a lease: %w", w.state.serviceKey(h.Service), err)
				}
				live[h.Service] = s
			}
			o := w.state.leasesByName[name]
			if s != nil && w.state.mayShowPort(s, o, h.Port) {
				w.schedule.requeueWithin(recheckInterval) // no watch may enqueue us for this Service any more
			} else if w.observations.confirmedTwice(observation{leaseUID: o.UID, port: h.Port, formerService: h.Service}) {
				proven[tableEntry{name, h}] = true
			}
		}
	}
	return func(name string, h leaseports.Holder) bool { return proven[tableEntry{name, h}] }, nil
}

// writePortTables writes which Service has which port (P2). The API server accepts no two entries of one port, and no
// table that was decided on an older version of the lease.
func (w *portWriter) writePortTables(ctx context.Context) (changed bool, err error) {
	for _, o := range w.state.leases {
		table := leaseports.ToLeasedPorts(w.decision.PortTables[o.Name])
		if err := w.preserveUIDs(ctx, o, table); err != nil {
			return false, err
		}
		if w.state.isUnmanaged(o) || slices.Equal(table, o.Status.Ports) {
			continue
		}
		next := o.DeepCopy()
		if next.Status.Ports = table; len(table) > 0 {
			next.Status.ShownBy = w.decision.ShownBy[o.Name]
		}
		if err := w.api.Client.Status().Patch(ctx, next, guard.NewOptimisticPatch(o)); err != nil {
			return false, fmt.Errorf("writing the ports of IPLease %s/%s: %w", o.Namespace, o.Name, err)
		}
		changed = true
	}
	return changed, nil
}

// preserveUIDs keeps the UIDs that a table has, unless a live read shows that a Service was created again under its
// name: the cache may show its predecessor.
func (w *portWriter) preserveUIDs(ctx context.Context, o *v1alpha1.IPLease, table []v1alpha1.LeasedPort) error {
	for i := range table {
		j := slices.IndexFunc(o.Status.Ports, func(p v1alpha1.LeasedPort) bool {
			return p.Protocol == table[i].Protocol && p.Port == table[i].Port && p.Service == table[i].Service && p.Namespace == table[i].Namespace
		})
		if j < 0 || o.Status.Ports[j].UID == table[i].UID {
			continue
		}
		live := &corev1.Service{}
		key := w.state.serviceKey(leaseports.ServiceRef{Namespace: table[i].Namespace, Name: table[i].Service})
		err := w.api.Live.Get(ctx, key, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading Service %s, which was created again: %w", key, err)
		}
		if live.UID != table[i].UID {
			table[i].UID = o.Status.Ports[j].UID
		}
	}
	return nil
}

// tableEntry names an entry in the port table of a lease.
type tableEntry struct {
	leaseName string
	leaseports.Holder
}
