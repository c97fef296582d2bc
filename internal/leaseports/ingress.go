package leaseports

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Ingress is what the status of a Service says that hosts show: its addresses, each with all of its ports, and with what is
// wrong with one of them.
func Ingress(s *Service, addresses []netip.Addr, wrong map[netip.Addr]map[Port]string) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, a := range addresses {
		in := corev1.LoadBalancerIngress{IP: a.String()}
		for _, p := range s.Ports {
			is := corev1.PortStatus{Port: p.Number, Protocol: p.Protocol}
			if why := wrong[a][p]; why != "" {
				is.Error = ptr.To(why)
			}
			in.Ports = append(in.Ports, is)
		}
		out = append(out, in)
	}
	return out
}

// SameIngress reports whether two say the same. The API server writes the mode of an address that has none.
func SameIngress(a, b []corev1.LoadBalancerIngress) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.LoadBalancerIngress) bool {
		return x.IP == y.IP && x.Hostname == y.Hostname && modeOf(x) == modeOf(y) && slices.EqualFunc(x.Ports, y.Ports, func(p, q corev1.PortStatus) bool {
			return p.Port == q.Port && p.Protocol == q.Protocol && ptr.Equal(p.Error, q.Error)
		})
	})
}

func modeOf(in corev1.LoadBalancerIngress) corev1.LoadBalancerIPMode {
	return ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP)
}

// ErrorsIn are the ports of an address of which the status of a Service says that something is wrong with them.
func ErrorsIn(s *corev1.Service, a netip.Addr) map[Port]string {
	out := map[Port]string{}
	for _, in := range ingressOf(s, a) {
		for _, p := range in.Ports {
			out[Port{p.Protocol, p.Port}] = ptr.Deref(p.Error, "")
		}
	}
	return out
}

// ShowsPort reports whether the status of a Service has a port of an address, whatever the Service asks for now.
func ShowsPort(s *corev1.Service, a netip.Addr, port Port) bool {
	return slices.ContainsFunc(ingressOf(s, a), func(in corev1.LoadBalancerIngress) bool {
		return slices.ContainsFunc(in.Ports, func(p corev1.PortStatus) bool { return port == Port{p.Protocol, p.Port} })
	})
}

// ingressOf is what the status of a Service says of an address.
func ingressOf(s *corev1.Service, a netip.Addr) []corev1.LoadBalancerIngress {
	var out []corev1.LoadBalancerIngress
	for _, in := range s.Status.LoadBalancer.Ingress {
		if is, err := netip.ParseAddr(in.IP); err == nil && is.Unmap() == a {
			out = append(out, in)
		}
	}
	return out
}
