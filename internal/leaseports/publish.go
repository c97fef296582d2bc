package leaseports

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// These annotations make MetalLB give a Service addresses, and let several Services share one.
const (
	ipsAnnotation    = "metallb.io/loadBalancerIPs"
	sharedAnnotation = "metallb.io/allow-shared-ip"
)

// Publication is what a Service is published with.
type Publication struct {
	Addresses []netip.Addr
	// SharingKey is the same for all Services that may share the addresses; IsShared reports whether another Service
	// has ports of one of them.
	SharingKey string
	IsShared   bool
}

// ApplyToService returns the Service as it must be published, or nil if it is so already. The zero Publication means
// that it must not be published. While the Service has a lease, values that others wrote into our annotations are
// overwritten; without a lease, annotations that we have not written are left alone. The label is always removed then:
// no Service without a lease may have it.
//
// A Service has the sharing key from the first time on that it shares an address: whenever MetalLB places a Service
// with a key, it reconciles all of its Services and writes each of them.
func (p Publication) ApplyToService(s *corev1.Service) *corev1.Service {
	next := s.DeepCopy()
	if len(p.Addresses) > 0 {
		var texts []string
		for _, a := range p.Addresses {
			texts = append(texts, a.String())
		}
		text := strings.Join(texts, ",")
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[v1alpha1.LeasedAddressesAnnotation] = text
		if p.IsShared {
			next.Annotations[sharedAnnotation] = p.SharingKey
		} else if next.Annotations[sharedAnnotation] != p.SharingKey {
			delete(next.Annotations, sharedAnnotation)
		}
		if delete(next.Annotations, ipsAnnotation); s.Spec.LoadBalancerIP == "" { // MetalLB refuses a Service that has both
			next.Annotations[ipsAnnotation] = text
		}
		if next.Labels == nil {
			next.Labels = map[string]string{}
		}
		next.Labels[v1alpha1.LeasedLabel] = "true"
	} else {
		if _, ok := s.Annotations[v1alpha1.LeasedAddressesAnnotation]; ok {
			for _, name := range []string{ipsAnnotation, sharedAnnotation, v1alpha1.LeasedAddressesAnnotation} {
				delete(next.Annotations, name)
			}
		}
		delete(next.Labels, v1alpha1.LeasedLabel) // whatever wrote it: for MetalLB it marks a Service that has a lease
	}
	if maps.Equal(next.Annotations, s.Annotations) && maps.Equal(next.Labels, s.Labels) {
		return nil
	}
	return next
}

// ShownAddresses returns the addresses that a Service shows: those that it was published with, and those in its status.
func ShownAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	for text := range strings.SplitSeq(s.Annotations[v1alpha1.LeasedAddressesAnnotation], ",") {
		add(text)
	}
	for _, a := range statusAddresses(s) {
		add(a.String())
	}
	return out
}

// statusAddresses returns the addresses in the status of a Service.
func statusAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// FindUsurpedPorts returns the ports of a lease that a Service shows, but that were not granted to it. leases is the
// namespace of the leases.
func FindUsurpedPorts(s *corev1.Service, l *Lease, leases string) []Port {
	if !slices.Contains(statusAddresses(s), l.Address) {
		return nil
	}
	service := NewService(s, leases)
	return slices.DeleteFunc(service.Ports, func(p Port) bool {
		return slices.ContainsFunc(l.PortTable, func(h Holder) bool { return h.Port == p && h.Service == service.ServiceRef })
	})
}

// ShowsAddress reports whether a Service shows an address.
func ShowsAddress(s *corev1.Service, a netip.Addr) bool { return slices.Contains(ShownAddresses(s), a) }

// HasOnlyStatusAddress reports whether a Service has an address in its status, and nothing requests it from MetalLB any
// more.
func HasOnlyStatusAddress(s *corev1.Service, a netip.Addr) bool {
	for _, name := range []string{
		v1alpha1.LeasedAddressesAnnotation, ipsAnnotation, "metallb.universe.tf/loadBalancerIPs", "metallb.io/address-pool", "metallb.universe.tf/address-pool",
	} {
		if _, asks := s.Annotations[name]; asks {
			return false
		}
	}
	return len(ingressForAddress(s, a)) > 0 && s.Spec.LoadBalancerIP == ""
}
