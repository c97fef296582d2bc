package leaseports

import (
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
	// Key is what those have in common that may share the addresses.
	Key string
}

// Annotations are those of a Service that is to be published so; the zero one: not at all. Nil: it has them. What somebody
// else wrote there is set right while the Service names a lease, and left alone where we have not written.
func (p Published) Annotations(s *corev1.Service) map[string]*string {
	want := map[string]*string{ipsAnnotation: nil, sharedAnnotation: nil, v1alpha1.LeasedAddressesAnnotation: nil}
	if len(p.Addresses) > 0 {
		var texts []string
		for _, a := range p.Addresses {
			texts = append(texts, a.String())
		}
		text, key := strings.Join(texts, ","), p.Key
		want[ipsAnnotation], want[sharedAnnotation], want[v1alpha1.LeasedAddressesAnnotation] = &text, &key, &text
	} else if _, ours := s.Annotations[v1alpha1.LeasedAddressesAnnotation]; !ours {
		return nil
	}
	for name, value := range want {
		is, has := s.Annotations[name]
		if has != (value != nil) || (has && is != *value) {
			return want
		}
	}
	return nil
}

// Shows reports whether a Service shows an address: it was published with it, or its status has it.
func Shows(s *corev1.Service, a netip.Addr) bool {
	return slices.Contains(strings.Split(s.Annotations[v1alpha1.LeasedAddressesAnnotation], ","), a.String()) || has(s, a)
}

func has(s *corev1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		is, err := netip.ParseAddr(in.IP)
		return err == nil && is.Unmap() == a
	})
}

// OnlyLeft reports whether a Service has an address in its status, and nothing asks MetalLB for it any more.
func OnlyLeft(s *corev1.Service, a netip.Addr) bool {
	for _, name := range []string{
		v1alpha1.LeasedAddressesAnnotation, ipsAnnotation, "metallb.universe.tf/loadBalancerIPs", "metallb.io/address-pool", "metallb.universe.tf/address-pool",
	} {
		if _, asks := s.Annotations[name]; asks {
			return false
		}
	}
	return has(s, a) && s.Spec.LoadBalancerIP == ""
}
