package leaseports

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// NewIngress returns the load balancer status of a Service that hosts show: its addresses, each with all of the
// Service's ports and the errors that wrong has for them.
func NewIngress(s *Service, addresses []netip.Addr, wrong map[netip.Addr]map[Port]string) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, a := range addresses {
		in := corev1.LoadBalancerIngress{IP: a.String()}
		for _, p := range s.Ports {
			status := corev1.PortStatus{Port: p.Number, Protocol: p.Protocol}
			if why := wrong[a][p]; why != "" {
				status.Error = ptr.To(why)
			}
			in.Ports = append(in.Ports, status)
		}
		out = append(out, in)
	}
	return out
}

// IsSameIngress reports whether two load balancer statuses are equal. No IPMode equals VIP, as the API server sets the
// mode of an address that has none.
func IsSameIngress(a, b []corev1.LoadBalancerIngress) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.LoadBalancerIngress) bool {
		return x.IP == y.IP && x.Hostname == y.Hostname && ipMode(x) == ipMode(y) && slices.EqualFunc(x.Ports, y.Ports, func(p, q corev1.PortStatus) bool {
			return p.Port == q.Port && p.Protocol == q.Protocol && ptr.Equal(p.Error, q.Error)
		})
	})
}

func ipMode(in corev1.LoadBalancerIngress) corev1.LoadBalancerIPMode {
	return ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP)
}

// StatusPortErrors returns the ports that the status of a Service has for an address, each with its error, empty if the
// port has none.
func StatusPortErrors(s *corev1.Service, a netip.Addr) map[Port]string {
	out := map[Port]string{}
	for _, in := range ingressForAddress(s, a) {
		for _, p := range in.Ports {
			out[Port{p.Protocol, p.Port}] = ptr.Deref(p.Error, "")
		}
	}
	return out
}

// StatusHasPort reports whether the status of a Service has a port of an address, whatever the Service requests now.
func StatusHasPort(s *corev1.Service, a netip.Addr, port Port) bool {
	return slices.ContainsFunc(ingressForAddress(s, a), func(in corev1.LoadBalancerIngress) bool {
		return slices.ContainsFunc(in.Ports, func(p corev1.PortStatus) bool { return port == Port{p.Protocol, p.Port} })
	})
}

// ingressForAddress returns the entries for an address in the status of a Service.
func ingressForAddress(s *corev1.Service, a netip.Addr) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, in := range s.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(in.IP); err == nil && address.Unmap() == a {
			out = append(out, in)
		}
	}
	return out
}
