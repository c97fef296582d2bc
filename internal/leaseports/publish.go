package leaseports

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// The annotations by which MetalLB gives a Service addresses, and has several share one.
const (
	ipsAnnotation    = "metallb.io/loadBalancerIPs"
	sharedAnnotation = "metallb.io/allow-shared-ip"
)

// Published is what a Service is published with.
type Published struct {
	Addresses []netip.Addr
	// Key is what those have in common that may share the addresses. Shared: another Service has ports of one of them.
	Key    string
	Shared bool
}

// Of returns a Service as it is to be published; the zero one: not at all. Nil: it is so already. What somebody else wrote in
// our places is set right while the Service has a lease, and left alone where we have not written, but for the label: that is on
// no Service without a lease.
//
// A Service has the key from the first time on that it shares: whenever MetalLB places one with a key, it looks at all
// Services that it has, and writes each.
func (p Published) Of(s *corev1.Service) *corev1.Service {
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
		if p.Shared {
			next.Annotations[sharedAnnotation] = p.Key
		} else if next.Annotations[sharedAnnotation] != p.Key {
			delete(next.Annotations, sharedAnnotation)
		}
		if delete(next.Annotations, ipsAnnotation); s.Spec.LoadBalancerIP == "" { // MetalLB refuses who says it twice
			next.Annotations[ipsAnnotation] = text
		}
		if next.Labels == nil {
			next.Labels = map[string]string{}
		}
		next.Labels[v1alpha1.LeasedLabel] = "true"
	} else {
		if _, ours := s.Annotations[v1alpha1.LeasedAddressesAnnotation]; ours {
			for _, name := range []string{ipsAnnotation, sharedAnnotation, v1alpha1.LeasedAddressesAnnotation} {
				delete(next.Annotations, name)
			}
		}
		delete(next.Labels, v1alpha1.LeasedLabel) // whatever wrote it: it says to MetalLB that the Service has a lease
	}
	if maps.Equal(next.Annotations, s.Annotations) && maps.Equal(next.Labels, s.Labels) {
		return nil
	}
	return next
}

// Shown are the addresses that a Service shows: it was published with them, or its status has them.
func Shown(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	for text := range strings.SplitSeq(s.Annotations[v1alpha1.LeasedAddressesAnnotation], ",") {
		add(text)
	}
	for _, a := range givenTo(s) {
		add(a.String())
	}
	return out
}

// givenTo are the addresses that the status of a Service has.
func givenTo(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// Usurped are the ports of a lease that a Service shows, and was not given.
func Usurped(s *corev1.Service, l *Lease, leases string) []Port {
	if !slices.Contains(givenTo(s), l.Address) {
		return nil
	}
	is := ServiceOf(s, leases)
	return slices.DeleteFunc(is.Ports, func(p Port) bool {
		return slices.ContainsFunc(l.Table, func(h Holder) bool { return h.Port == p && h.Service == is.Ref })
	})
}

// Shows reports whether a Service shows an address.
func Shows(s *corev1.Service, a netip.Addr) bool { return slices.Contains(Shown(s), a) }

// OnlyLeft reports whether a Service has an address in its status, and nothing asks MetalLB for it any more.
func OnlyLeft(s *corev1.Service, a netip.Addr) bool {
	for _, name := range []string{
		v1alpha1.LeasedAddressesAnnotation, ipsAnnotation, "metallb.universe.tf/loadBalancerIPs", "metallb.io/address-pool", "metallb.universe.tf/address-pool",
	} {
		if _, asks := s.Annotations[name]; asks {
			return false
		}
	}
	return len(ingressOf(s, a)) > 0 && s.Spec.LoadBalancerIP == ""
}
