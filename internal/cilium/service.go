package cilium

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// The annotations of a Service that Cilium reads, each with its former name.
var (
	ipsAnnotation            = [2]string{"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"}
	sharedAnnotation         = [2]string{"lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}
	crossNamespaceAnnotation = [2]string{"lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"}
)

// ciliumClasses are the classes of the Services that Cilium serves, beside those without a class.
var ciliumClasses = []string{"io.cilium/l2-announcer", "io.cilium/bgp-control-plane"}

// satisfiedCondition is the condition that Cilium sets on a Service.
const satisfiedCondition = "cilium.io/IPAMRequestSatisfied"

// growthCurableReasons are the reasons of that condition that more addresses help with. For others, the Service has
// to be changed.
var growthCurableReasons = []string{"no_pool", "out_of_ips"}

// service is a Service as Cilium reads it.
type service struct {
	elastic.Service

	// sharedNamespaces are the other namespaces that it may share an address with; "*" means all.
	sharedNamespaces []string
	// isTrafficPolicyLocal reports whether its external traffic policy is Local.
	isTrafficPolicyLocal bool
	// unsatisfied is the condition of its current generation by which Cilium reports that something is missing, else
	// nil.
	unsatisfied *metav1.Condition
}

// newService converts a Service of type LoadBalancer.
func newService(s *corev1.Service) service {
	out := service{Service: balancer.NewService(s), isTrafficPolicyLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal}
	out.SharingKey, out.BackendKey = balancer.AnnotationValue(s, sharedAnnotation), labels.Set(s.Spec.Selector).String()
	if across := balancer.AnnotationValue(s, crossNamespaceAnnotation); across != "" {
		out.sharedNamespaces = strings.Split(across, ",")
	}
	texts := []string{s.Spec.LoadBalancerIP}
	texts = append(texts, strings.Split(balancer.AnnotationValue(s, ipsAnnotation), ",")...)
	for _, text := range texts {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err == nil && !slices.Contains(out.RequestedIPs, a.Unmap()) { // Cilium ignores others
			out.RequestedIPs = append(out.RequestedIPs, a.Unmap())
		}
	}
	for i := range s.Status.Conditions {
		c := &s.Status.Conditions[i]
		if c.Type == satisfiedCondition && c.Status == metav1.ConditionFalse && c.ObservedGeneration == s.Generation {
			out.unsatisfied = c
		}
	}
	return out
}

// isServed reports whether Cilium assigns addresses to a Service; class is the class that the ProviderConfig names,
// or empty.
func (s *service) isServed(class string) bool {
	return s.LoadBalancerClass == class || (class == "" && slices.Contains(ciliumClasses, s.LoadBalancerClass))
}

// canShareWith reports whether two Services can have the same address.
func (s *service) canShareWith(other *service) bool {
	return s.SharingKey != "" && s.SharingKey == other.SharingKey && s.isTrafficPolicyLocal == other.isTrafficPolicyLocal &&
		(s.Namespace == other.Namespace || (s.sharesWithNamespace(other.Namespace) && other.sharesWithNamespace(s.Namespace))) &&
		(!s.isTrafficPolicyLocal || (s.BackendKey != "" && s.BackendKey == other.BackendKey)) &&
		!slices.ContainsFunc(s.Ports, func(p elastic.Port) bool { return slices.Contains(other.Ports, p) })
}

func (s *service) sharesWithNamespace(namespace string) bool {
	return slices.Contains(s.sharedNamespaces, namespace) || slices.Contains(s.sharedNamespaces, "*")
}

// missingFamilies returns the families of a Service, each once, for which addresses contains no address. It is for Services
// that request no address by name.
func (s *service) missingFamilies(addresses []netip.Addr) (out []elastic.Family) {
	for _, f := range s.Families {
		if !slices.Contains(out, f) && !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return elastic.AddressFamily(a) == f }) {
			out = append(out, f)
		}
	}
	return out
}
