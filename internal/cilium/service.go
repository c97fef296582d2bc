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

// The annotations of a Service that Cilium reads, each with the one it had before.
var (
	ipsAnnotation    = [2]string{"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"}
	sharedAnnotation = [2]string{"lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}
	acrossAnnotation = [2]string{"lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"}
)

// Classes of the Services that Cilium serves, beside those without one.
var classes = []string{"io.cilium/l2-announcer", "io.cilium/bgp-control-plane"}

// satisfiedCondition is what Cilium says of a Service.
const satisfiedCondition = "cilium.io/IPAMRequestSatisfied"

// Reasons of it that more addresses help with. Of others the Service has to be changed.
var curable = []string{"no_pool", "out_of_ips"}

// service is a Service as Cilium reads it.
type service struct {
	elastic.Service

	// across are the other namespaces that it shares an address with; "*": any.
	across []string
	// local: its external traffic policy.
	local bool
	// lacks is what Cilium says of it, as it is now, where it says that it lacks something.
	lacks *metav1.Condition
}

// serviceOf describes a Service of type LoadBalancer.
func serviceOf(s *corev1.Service) service {
	out := service{Service: balancer.ServiceOf(s), local: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal}
	out.SharingKey, out.BackendKey = balancer.Annotation(s, sharedAnnotation), labels.Set(s.Spec.Selector).String()
	if across := balancer.Annotation(s, acrossAnnotation); across != "" {
		out.across = strings.Split(across, ",")
	}
	texts := []string{s.Spec.LoadBalancerIP}
	texts = append(texts, strings.Split(balancer.Annotation(s, ipsAnnotation), ",")...)
	for _, text := range texts {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err == nil && !slices.Contains(out.WantsIPs, a.Unmap()) { // Cilium looks at no other one
			out.WantsIPs = append(out.WantsIPs, a.Unmap())
		}
	}
	for i := range s.Status.Conditions {
		c := &s.Status.Conditions[i]
		if c.Type == satisfiedCondition && c.Status == metav1.ConditionFalse && c.ObservedGeneration == s.Generation {
			out.lacks = c
		}
	}
	return out
}

// served reports whether Cilium gives a Service addresses, where the ProviderConfig names a class, or none.
func (s *service) served(class string) bool {
	return s.Class == class || (class == "" && slices.Contains(classes, s.Class))
}

// shares reports whether two Services can have one address.
func (s *service) shares(other *service) bool {
	return s.SharingKey != "" && s.SharingKey == other.SharingKey && s.local == other.local &&
		(s.Namespace == other.Namespace || (s.reaches(other.Namespace) && other.reaches(s.Namespace))) &&
		(!s.local || (s.BackendKey != "" && s.BackendKey == other.BackendKey)) &&
		!slices.ContainsFunc(s.Ports, func(p elastic.Port) bool { return slices.Contains(other.Ports, p) })
}

func (s *service) reaches(namespace string) bool {
	return slices.Contains(s.across, namespace) || slices.Contains(s.across, "*")
}

// wants are the families of the addresses that a Service asks for, but not by name, and lacks.
func (s *service) wants(has []netip.Addr) (out []elastic.Family) {
	for _, f := range s.Families {
		if !slices.Contains(out, f) && !slices.ContainsFunc(has, func(a netip.Addr) bool { return elastic.FamilyOf(a) == f }) {
			out = append(out, f)
		}
	}
	return out
}
