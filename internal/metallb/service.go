package metallb

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// The annotations of a Service that MetalLB reads, each with its former name.
var (
	poolAnnotation   = [2]string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"}
	ipsAnnotation    = [2]string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"}
	sharedAnnotation = [2]string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"}
)

// NewService converts a Service of type LoadBalancer as MetalLB reads it.
func NewService(s *corev1.Service) elastic.Service {
	out := balancer.NewService(s)
	out.SharingKey, out.RequestedPool = balancer.AnnotationValue(s, sharedAnnotation), balancer.AnnotationValue(s, poolAnnotation)
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.BackendKey = labels.Set(s.Spec.Selector).String()
	}
	out.RequestedIPs, out.RequestProblem = parseRequestedIPs(s)
	return out
}

// parseRequestedIPs returns the addresses that a Service requests. why states why they cannot be parsed.
func parseRequestedIPs(s *corev1.Service) (addrs []netip.Addr, why string) {
	text, field := balancer.AnnotationValue(s, ipsAnnotation), s.Spec.LoadBalancerIP
	switch {
	case text == "" && field == "":
		return nil, ""
	case text != "" && field != "":
		return nil, fmt.Sprintf("it has both spec.loadBalancerIP and the annotation %s; remove one", ipsAnnotation[0])
	case text == "": // one address, without a space
		a := net.ParseIP(field)
		if a == nil {
			return nil, fmt.Sprintf("it asks for %q in spec.loadBalancerIP, which is not an IP address", field)
		}
		return []netip.Addr{toAddr(a)}, ""
	}
	for _, part := range strings.Split(text, ",") {
		a := net.ParseIP(strings.TrimSpace(part))
		if a == nil {
			return nil, fmt.Sprintf("it asks for %q, which is not an IP address", part)
		}
		addrs = append(addrs, toAddr(a))
	}
	if len(addrs) > 2 || (len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4()) {
		return nil, fmt.Sprintf("it asks for %s; at most one address of each IP family is possible", text)
	}
	return addrs, ""
}
