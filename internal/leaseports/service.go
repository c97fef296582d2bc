package leaseports

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// maxLeases is how many leases a Service names: one of each family.
const maxLeases = 2

// ServiceOf is what a Service asks for. One that MetalLB does not serve asks for nothing.
func ServiceOf(s *corev1.Service) Service {
	out := Service{
		Name: s.Name, UID: s.UID, Created: s.CreationTimestamp.Time, Deleting: s.DeletionTimestamp != nil,
		RequireBoth: ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack,
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, Port{p.Protocol, p.Port})
	}
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Families = append(out.Families, familyOf(a))
		}
	}
	text, asks := s.Annotations[v1alpha1.LeaseAnnotation]
	if !asks || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return out
	}
	if s.Spec.LoadBalancerClass != nil {
		out.Problem = fmt.Sprintf("it has spec.loadBalancerClass %s; MetalLB gives addresses of leases to Services without a class", *s.Spec.LoadBalancerClass)
		return out
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		switch {
		case name == "" || slices.Contains(out.Leases, name) || len(out.Leases) == maxLeases:
			out.Problem = fmt.Sprintf("the annotation %s is %q; it is the name of a lease, or two names with a comma between them", v1alpha1.LeaseAnnotation, text)
		case s.Spec.LoadBalancerIP != "":
			out.Problem = "it has spec.loadBalancerIP; remove that: the lease says the address"
		}
		if out.Problem != "" {
			out.Leases = nil
			break
		}
		out.Leases = append(out.Leases, name)
	}
	return out
}

// LeaseOf is what is known of a lease.
func LeaseOf(l *v1alpha1.IPLease) Lease {
	out := Lease{Name: l.Name, Deleting: l.DeletionTimestamp != nil}
	if a, err := netip.ParseAddr(l.Status.Address); err == nil {
		out.Address = a
	}
	if len(l.Spec.Ports) > 0 {
		out.Declared = map[Port]string{}
	}
	for _, p := range l.Spec.Ports {
		out.Declared[Port{p.Protocol, p.Port}] = p.Service
	}
	for _, h := range l.Status.Ports {
		out.Table = append(out.Table, Holder{Port{h.Protocol, h.Port}, h.Service, h.UID})
	}
	return out
}

// TableOf is a table as the status of a lease has it.
func TableOf(table []Holder) []v1alpha1.LeasedPort {
	out := make([]v1alpha1.LeasedPort, 0, len(table))
	for _, h := range table {
		out = append(out, v1alpha1.LeasedPort{Protocol: h.Protocol, Port: h.Number, Service: h.Service, UID: h.UID})
	}
	return out
}

// Recorded reports whether all ports of a Service are on record with all of its leases, as they were read: only then it is
// published.
func Recorded(s *Service, leases []Lease) bool {
	for _, name := range s.Leases {
		at := slices.IndexFunc(leases, func(l Lease) bool { return l.Name == name })
		if at < 0 {
			return false
		}
		for _, p := range s.Ports {
			if !slices.Contains(leases[at].Table, Holder{p, s.Name, s.UID}) {
				return false
			}
		}
	}
	return len(s.Leases) > 0
}
