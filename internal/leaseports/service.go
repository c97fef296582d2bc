package leaseports

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// maxLeasesPerService is the number of leases that a Service may name: one of each family.
const maxLeasesPerService = 2

// loadBalancerClassPrefix is the prefix of the load balancer classes of pools.
var loadBalancerClassPrefix = v1alpha1.GroupVersion.Group + "/"

// ServiceRequest is what a Service requests of leases.
type ServiceRequest struct {
	// Namespace is the namespace of the leases.
	Namespace string
	// LeaseNames are the leases that the Service names. Where it names none, leases are created for it, from pools of
	// its class, with the address that it requests, if any.
	LeaseNames        []string
	LoadBalancerClass string
	Address           netip.Addr
	// ShownBy is the load balancer that shows Services of this class.
	ShownBy string
	// Problem is what is wrong with the request, empty if nothing is.
	Problem string
}

// ParseServiceRequest returns what a Service requests, and whether it requests anything.
func ParseServiceRequest(s *corev1.Service) (ServiceRequest, bool) {
	class := ptr.Deref(s.Spec.LoadBalancerClass, "")
	ofPools := strings.HasPrefix(class, loadBalancerClassPrefix)
	text, names := s.Annotations[v1alpha1.LeaseAnnotation]
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || (!names && !ofPools) {
		return ServiceRequest{}, false
	}
	out := ServiceRequest{Namespace: s.Namespace, ShownBy: v1alpha1.ShownByMetalLB}
	if class == v1alpha1.HostLoadBalancerClass {
		out.ShownBy = v1alpha1.ShownByHost
	}
	switch {
	case class != "" && !ofPools:
		out.Problem = fmt.Sprintf("it has spec.loadBalancerClass %s; addresses of leases are for Services without a class, or of one that begins with %s", class, loadBalancerClassPrefix)
	case names && s.Spec.LoadBalancerIP != "":
		out.Problem = "it has spec.loadBalancerIP; remove that: the lease determines the address"
	case names:
		out.parseLeaseNames(text)
	default:
		out.LoadBalancerClass = class
		out.parseAddress(s.Spec.LoadBalancerIP)
	}
	return out, true
}

// parseLeaseNames parses the names of leases.
func (r *ServiceRequest) parseLeaseNames(text string) {
	own := r.Namespace
	for i, name := range strings.Split(text, ",") {
		namespace, rest, foreign := strings.Cut(strings.TrimSpace(name), "/")
		if !foreign {
			namespace, rest = own, namespace
		}
		if rest == "" || namespace == "" || slices.Contains(r.LeaseNames, rest) || i == maxLeasesPerService || (i > 0 && namespace != r.Namespace) {
			r.Namespace, r.LeaseNames = own, nil
			r.Problem = fmt.Sprintf("the annotation %s is %q; it is the name of a lease, or two names of one namespace with a comma between them", v1alpha1.LeaseAnnotation, text)
			return
		}
		r.Namespace, r.LeaseNames = namespace, append(r.LeaseNames, rest)
	}
}

// parseAddress parses the address that a Service requests.
func (r *ServiceRequest) parseAddress(text string) {
	if text == "" {
		return
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		r.Problem = fmt.Sprintf("its spec.loadBalancerIP %q is not an IP address; correct it, or remove it for any address", text)
		return
	}
	r.Address, r.LeaseNames = address.Unmap(), []string{record.NameForAddress(address.Unmap())}
}

// NewServiceRef returns a reference to a Service, relative to the namespace of the leases.
func NewServiceRef(s *corev1.Service, namespace string) ServiceRef {
	if s.Namespace == namespace {
		return ServiceRef{Name: s.Name}
	}
	return ServiceRef{s.Namespace, s.Name}
}

// NewService converts a Service, with what it requests of the leases of a namespace. A Service that no load balancer
// serves requests nothing.
func NewService(s *corev1.Service, namespace string) Service {
	out := Service{
		ServiceRef: NewServiceRef(s, namespace), UID: s.UID, Created: s.CreationTimestamp.Time, Deleting: s.DeletionTimestamp != nil,
		RequiresDualStack: ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack,
		PrefersDualStack:  ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack,
		TriedAddresses:    parseTriedAddresses(s), PublishedAddresses: ShownAddresses(s), StatusAddresses: statusAddresses(s),
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, Port{p.Protocol, p.Port})
	}
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Families = append(out.Families, addressFamily(a))
		}
	}
	if a, asks := ParseServiceRequest(s); asks && a.Namespace == namespace {
		out.LeaseNames, out.LoadBalancerClass, out.RequestedAddress, out.ShownBy, out.RequestProblem = a.LeaseNames, a.LoadBalancerClass, a.Address, a.ShownBy, a.Problem
	}
	return out
}

// ToLeasedPorts converts a port table into the form that the status of a lease has.
func ToLeasedPorts(table []Holder) []v1alpha1.LeasedPort {
	out := make([]v1alpha1.LeasedPort, 0, len(table))
	for _, h := range table {
		out = append(out, v1alpha1.LeasedPort{Protocol: h.Protocol, Port: h.Number, Service: h.Service.Name, Namespace: h.Service.Namespace, UID: h.UID})
	}
	return out
}

// HasRecordedPorts reports whether all ports of a Service are on record with all of its leases, as they were read: only
// then is it published (P3).
func HasRecordedPorts(s *Service, leases []Lease) bool {
	for _, name := range s.LeaseNames {
		at := slices.IndexFunc(leases, func(l Lease) bool { return l.Name == name })
		if at < 0 {
			return false
		}
		for _, p := range s.Ports {
			if !slices.Contains(leases[at].PortTable, Holder{p, s.ServiceRef, s.UID}) {
				return false
			}
		}
	}
	return len(s.LeaseNames) > 0
}
