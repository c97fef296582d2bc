package metallb

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// The annotations of a Service that MetalLB reads, each with the one it had before.
var (
	poolAnnotation   = [2]string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"}
	ipsAnnotation    = [2]string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"}
	sharedAnnotation = [2]string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"}
)

// ServiceOf describes a Service of type LoadBalancer as MetalLB reads it.
func ServiceOf(s *corev1.Service) elastic.Service {
	out := elastic.Service{
		Namespace: s.Namespace, Name: s.Name, Created: s.CreationTimestamp.Time, Labels: s.Labels,
		Class:      ptr.Deref(s.Spec.LoadBalancerClass, ""),
		SharingKey: annotation(s, sharedAnnotation),
		WantsPool:  annotation(s, poolAnnotation),
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
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.BackendKey = labels.Set(s.Spec.Selector).String()
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out.Has = append(out.Has, a.Unmap())
		}
	}
	out.WantsIPs, out.WantsError = wanted(s)
	return out
}

// wanted reads the addresses that a Service asks for by name.
func wanted(s *corev1.Service) (addrs []netip.Addr, why string) {
	text, field := annotation(s, ipsAnnotation), s.Spec.LoadBalancerIP
	switch {
	case text == "" && field == "":
		return nil, ""
	case text != "" && field != "":
		return nil, fmt.Sprintf("it has both spec.loadBalancerIP and the annotation %s; remove one", ipsAnnotation[0])
	case text == "":
		text = field
	}
	for _, part := range strings.Split(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Sprintf("it asks for %q, which is not an IP address", part)
		}
		addrs = append(addrs, a.Unmap())
	}
	if len(addrs) > 2 || (len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4()) {
		return nil, fmt.Sprintf("it asks for %s; at most one address of each IP family is possible", text)
	}
	return addrs, ""
}

// annotation reads an annotation by its name, else by its former one.
func annotation(s *corev1.Service, names [2]string) string {
	if v, ok := s.Annotations[names[0]]; ok {
		return v
	}
	return s.Annotations[names[1]]
}
