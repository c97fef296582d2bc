package balancer

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// NewService describes a Service of type LoadBalancer, as far as all load balancers read it in the same way.
func NewService(s *corev1.Service) elastic.Service {
	out := elastic.Service{
		Namespace: s.Namespace, Name: s.Name, Created: s.CreationTimestamp.Time, Labels: s.Labels,
		LoadBalancerClass: ptr.Deref(s.Spec.LoadBalancerClass, ""),
	}
	switch ptr.Deref(s.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack) {
	case corev1.IPFamilyPolicyPreferDualStack:
		out.FamilyPolicy = elastic.PreferDualStack
	case corev1.IPFamilyPolicyRequireDualStack:
		out.FamilyPolicy = elastic.RequireDualStack
	default:
		out.FamilyPolicy = elastic.SingleStack
	}
	clusterIPs := s.Spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{s.Spec.ClusterIP}
	}
	for _, text := range clusterIPs[:min(len(clusterIPs), 2)] { // at most one for each family
		if a, err := netip.ParseAddr(text); err == nil { // "None" and "" have no family
			out.Families = append(out.Families, elastic.AddressFamily(a.Unmap()))
		}
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, elastic.Port{Protocol: string(p.Protocol), Number: p.Port})
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out.Addresses = append(out.Addresses, a.Unmap())
		}
	}
	return out
}

// AnnotationValue returns the value of an annotation by its current name, else by its former name.
func AnnotationValue(s *corev1.Service, names [2]string) string {
	if v, ok := s.Annotations[names[0]]; ok {
		return v
	}
	return s.Annotations[names[1]]
}
