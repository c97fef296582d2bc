package balancer

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// ServiceOf describes a Service of type LoadBalancer, as far as every load balancer reads it in the same way.
func ServiceOf(s *corev1.Service) elastic.Service {
	out := elastic.Service{
		Namespace: s.Namespace, Name: s.Name, Created: s.CreationTimestamp.Time, Labels: s.Labels,
		Class: ptr.Deref(s.Spec.LoadBalancerClass, ""),
	}
	switch ptr.Deref(s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack) {
	case corev1.IPFamilyPolicyPreferDualStack:
		out.Stack = elastic.PreferDualStack
	case corev1.IPFamilyPolicyRequireDualStack:
		out.Stack = elastic.RequireDualStack
	default:
		out.Stack = elastic.SingleStack
	}
	clusterIPs := s.Spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{s.Spec.ClusterIP}
	}
	for _, text := range clusterIPs[:min(len(clusterIPs), 2)] { // there is one for each family, at most
		if a, err := netip.ParseAddr(text); err == nil { // "None" and nothing have no family
			out.Families = append(out.Families, elastic.FamilyOf(a.Unmap()))
		}
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, elastic.Port{Protocol: string(p.Protocol), Number: p.Port})
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out.Has = append(out.Has, a.Unmap())
		}
	}
	return out
}

// Annotation reads an annotation by its name, else by its former one.
func Annotation(s *corev1.Service, names [2]string) string {
	if v, ok := s.Annotations[names[0]]; ok {
		return v
	}
	return s.Annotations[names[1]]
}
