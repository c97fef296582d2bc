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

// The annotations of a Service that MetalLB reads, each with the one it had before.
var (
	poolAnnotation   = [2]string{"metallb.io/address-pool", "metallb.universe.tf/address-pool"}
	ipsAnnotation    = [2]string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs"}
	sharedAnnotation = [2]string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"}
)

// ServiceOf describes a Service of type LoadBalancer as MetalLB reads it.
func ServiceOf(s *corev1.Service) elastic.Service {
	out := balancer.ServiceOf(s)
	out.SharingKey, out.WantsPool = balancer.Annotation(s, sharedAnnotation), balancer.Annotation(s, poolAnnotation)
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.BackendKey = labels.Set(s.Spec.Selector).String()
	}
	out.WantsIPs, out.WantsError = wanted(s)
	return out
}

// wanted reads the addresses that a Service asks for by name.
func wanted(s *corev1.Service) (addrs []netip.Addr, why string) {
	text, field := balancer.Annotation(s, ipsAnnotation), s.Spec.LoadBalancerIP
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
		return []netip.Addr{addrOf(a)}, ""
	}
	for _, part := range strings.Split(text, ",") {
		a := net.ParseIP(strings.TrimSpace(part))
		if a == nil {
			return nil, fmt.Sprintf("it asks for %q, which is not an IP address", part)
		}
		addrs = append(addrs, addrOf(a))
	}
	if len(addrs) > 2 || (len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4()) {
		return nil, fmt.Sprintf("it asks for %s; at most one address of each IP family is possible", text)
	}
	return addrs, ""
}
