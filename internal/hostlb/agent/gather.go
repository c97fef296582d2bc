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
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

// held reports whether a lease is held by who gives it its address, and by who has it shown: it is not given back before both
// let it go.
func held(o *v1alpha1.IPLease) bool {
	return controllerutil.ContainsFinalizer(o, v1alpha1.IPLeaseFinalizer) && controllerutil.ContainsFinalizer(o, v1alpha1.LeaseShownFinalizer)
}

// gather reads what the cache has, and gives it to the memory.
func (a *Agent) gather(ctx context.Context) error {
	leases := &v1alpha1.IPLeaseList{}
	if err := a.Cache.List(ctx, leases, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("reading the IPLeases: %w", err)
	}
	a.keys = map[types.UID]client.ObjectKey{}
	a.proxy.leases = map[types.UID]*v1alpha1.IPLease{}
	byAddress := map[netip.Addr]hostlb.Wanted{}
	for i := range leases.Items {
		o := &leases.Items[i]
		w, is, err := a.wantedOf(ctx, o)
		if err != nil {
			return err
		}
		if !is {
			continue
		}
		a.keys[o.UID], a.proxy.leases[o.UID] = client.ObjectKeyFromObject(o), o
		// Of two with one address the one that is being deleted is first: it has to be off the wire.
		if was, twice := byAddress[w.Address]; !twice || (w.Ends && !was.Ends) || (w.Ends == was.Ends && w.Lease < was.Lease) {
			byAddress[w.Address] = w
		}
	}
	wanted := make([]hostlb.Wanted, 0, len(byAddress))
	for _, w := range byAddress {
		wanted = append(wanted, w)
	}
	slices.SortFunc(wanted, func(x, y hostlb.Wanted) int { return x.Address.Compare(y.Address) })
	locks, hosts, err := a.readLocks(ctx, wanted)
	if err != nil {
		return err
	}
	a.memory.Read(time.Now(), wanted, locks, hosts)
	return nil
}

// wantedOf is what is to be shown of a lease, or to be given up; false: it is none of a host's, or not yet.
func (a *Agent) wantedOf(ctx context.Context, o *v1alpha1.IPLease) (w hostlb.Wanted, is bool, err error) {
	address, _ := netip.ParseAddr(o.Status.Address)
	if !address.IsValid() || o.Status.ShownBy != v1alpha1.ShownByHost || o.Status.Network != a.Network || !held(o) {
		return w, false, nil
	}
	w = hostlb.Wanted{Address: address, Lease: string(o.UID), Ends: o.DeletionTimestamp != nil}
	if w.Ends {
		return w, true, nil
	}
	if len(o.Status.Ports) == 0 {
		return w, false, nil
	}
	w.Nodes, err = a.nodesOf(ctx, o)
	return w, err == nil, err
}

// nodesOf are the Nodes with a ready endpoint of every Service of a lease that is to be served by its own Node; nil: none is.
func (a *Agent) nodesOf(ctx context.Context, o *v1alpha1.IPLease) (map[string]bool, error) {
	var out map[string]bool
	for _, s := range a.servicesOf(ctx, o) {
		if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			continue
		}
		endpoints, err := a.endpointsOf(ctx, s)
		if err != nil {
			return nil, err
		}
		has := hostlb.LocalNodes(s, endpoints)
		if out == nil {
			out = has
			continue
		}
		for name := range out {
			if !has[name] {
				delete(out, name)
			}
		}
	}
	return out, nil
}

// servicesOf are those that have ports of a lease, as the cache has them.
func (a *Agent) servicesOf(ctx context.Context, o *v1alpha1.IPLease) map[types.UID]*corev1.Service {
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
			continue // it is gone: the manager takes its ports away
		}
		out[p.UID] = s
	}
	return out
}

// endpointsOf are the endpoints of a Service.
func (a *Agent) endpointsOf(ctx context.Context, s *corev1.Service) ([]discoveryv1.EndpointSlice, error) {
	all := &discoveryv1.EndpointSliceList{}
	err := a.Cache.List(ctx, all, client.InNamespace(s.Namespace), client.MatchingFields{ServiceIndex: s.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("reading the endpoints of Service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return all.Items, nil
}

// ServiceIndex is the index of the cache by which endpoints are found: the Service that they are of.
const ServiceIndex = "service"

// OfService is its key.
func OfService(o client.Object) []string {
	if name := o.GetLabels()[discoveryv1.LabelServiceName]; name != "" {
		return []string{name}
	}
	return nil
}
