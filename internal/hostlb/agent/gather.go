//go:build linux

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

// observeCache reads the cache into the state of the host.
func (a *Agent) observeCache(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := a.Cache.List(ctx, leases, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the IPLeases: %w", err)
	}
	a.leaseKeys = map[types.UID]client.ObjectKey{}
	a.proxy.leases = map[types.UID]*v1alpha1.IPLease{}
	byAddress := map[netip.Addr]hostlb.WantedAddress{}
	for i := range leases.Items {
		o := &leases.Items[i]
		w, wanted, err := a.wantedForLease(ctx, o)
		if err != nil {
			return err
		}
		if !wanted {
			continue
		}
		a.leaseKeys[o.UID], a.proxy.leases[o.UID] = client.ObjectKeyFromObject(o), o
		// Of two leases with one address the one that is being deleted comes first: its address must leave the wire.
		if earlier, twice := byAddress[w.Address]; !twice || (w.LeaseDeleting && !earlier.LeaseDeleting) || (w.LeaseDeleting == earlier.LeaseDeleting && w.LeaseUID < earlier.LeaseUID) {
			byAddress[w.Address] = w
		}
	}
	wanted := make([]hostlb.WantedAddress, 0, len(byAddress))
	for _, w := range byAddress {
		wanted = append(wanted, w)
	}
	slices.SortFunc(wanted, func(x, y hostlb.WantedAddress) int { return x.Address.Compare(y.Address) })
	locks, hosts, err := a.listLocksAndHosts(ctx, wanted)
	if err != nil {
		return err
	}
	a.state.ObserveCache(time.Now(), wanted, locks, hosts)
	return nil
}

// wantedForLease returns the address of a lease that hosts must show, or release. It returns false if hosts do not show
// the lease, or not yet.
func (a *Agent) wantedForLease(ctx context.Context, o *v1alpha1.IPLease) (w hostlb.WantedAddress, wanted bool, err error) {
	address, _ := netip.ParseAddr(o.Status.Address)
	if !address.IsValid() || o.Status.ShownBy != v1alpha1.ShownByHost || o.Status.Network != a.Network || !hasFinalizers(o) {
		return w, false, nil
	}
	w = hostlb.WantedAddress{Address: address, LeaseUID: string(o.UID), LeaseDeleting: o.DeletionTimestamp != nil}
	if w.LeaseDeleting {
		return w, true, nil
	}
	if len(o.Status.Ports) == 0 {
		return w, false, nil
	}
	w.Nodes, err = a.nodesForLease(ctx, o)
	return w, err == nil, err
}

// nodesForLease returns the Nodes with a ready endpoint of every Service of a lease that must be served on its own
// Node; it returns nil if there is no Service of that kind.
func (a *Agent) nodesForLease(ctx context.Context, o *v1alpha1.IPLease) (map[string]bool, error) {
	var out map[string]bool
	for _, s := range a.servicesForLease(ctx, o) {
		if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			continue
		}
		endpoints, err := a.endpointSlicesForService(ctx, s)
		if err != nil {
			return nil, err
		}
		local := hostlb.LocalNodes(s, endpoints)
		if out == nil {
			out = local
			continue
		}
		for name := range out {
			if !local[name] {
				delete(out, name)
			}
		}
	}
	return out, nil
}

// servicesForLease returns the Services that have ports of a lease, as the cache shows them, by UID.
func (a *Agent) servicesForLease(ctx context.Context, o *v1alpha1.IPLease) map[types.UID]*corev1.Service {
	out := map[types.UID]*corev1.Service{}
	for i := range o.Status.Ports {
		p := &o.Status.Ports[i]
		if out[p.UID] != nil {
			continue
		}
		s := &corev1.Service{}
		key := client.ObjectKey{Namespace: o.Namespace, Name: p.Service}
		if p.Namespace != "" {
			key.Namespace = p.Namespace
		}
		if err := a.Cache.Get(ctx, key, s, client.UnsafeDisableDeepCopy); err != nil || s.UID != p.UID {
			continue // it is gone: the manager removes its ports
		}
		out[p.UID] = s
	}
	return out
}

// endpointSlicesForService returns the EndpointSlices of a Service.
func (a *Agent) endpointSlicesForService(ctx context.Context, s *corev1.Service) ([]discoveryv1.EndpointSlice, error) {
	all := &discoveryv1.EndpointSliceList{}
	err := a.Cache.List(ctx, all, client.InNamespace(s.Namespace), client.MatchingFields{ServiceNameIndex: s.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("reading the endpoints of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return all.Items, nil
}

// ServiceNameIndex is the index of the cache that finds EndpointSlices by the name of their Service.
const ServiceNameIndex = "service"

// IndexByService returns the key of an EndpointSlice in that index.
func IndexByService(o client.Object) []string {
	if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
		return []string{name}
	}
	return nil
}
