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

// maxLeases is how many leases a Service names: one of each family.
const maxLeases = 2

// classPrefix begins the load balancer classes of pools.
var classPrefix = v1alpha1.GroupVersion.Group + "/"

// Asked is what a Service asks of leases.
type Asked struct {
	// Namespace is that of the leases.
	Namespace string
	// Leases are those that it names; none: they are made for it, of pools of its class, with the address that it asks for,
	// if any.
	Leases  []string
	Class   string
	Address netip.Addr
	// By is who shows a Service of its class.
	By string
	// Problem says what is wrong with it, empty if nothing.
	Problem string
}

// AskedOf reads what a Service asks for; false: nothing.
func AskedOf(s *corev1.Service) (Asked, bool) {
	class := ptr.Deref(s.Spec.LoadBalancerClass, "")
	ofPools := strings.HasPrefix(class, classPrefix)
	text, names := s.Annotations[v1alpha1.LeaseAnnotation]
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || (!names && !ofPools) {
		return Asked{}, false
	}
	out := Asked{Namespace: s.Namespace, By: v1alpha1.ShownByMetalLB}
	if class == v1alpha1.HostLoadBalancerClass {
		out.By = v1alpha1.ShownByHost
	}
	switch {
	case class != "" && !ofPools:
		out.Problem = fmt.Sprintf("it has spec.loadBalancerClass %s; addresses of leases are for Services without a class, or of one that begins with %s", class, classPrefix)
	case names && s.Spec.LoadBalancerIP != "":
		out.Problem = "it has spec.loadBalancerIP; remove that: the lease says the address"
	case names:
		out.name(text)
	default:
		out.Class = class
		out.ask(s.Spec.LoadBalancerIP)
	}
	return out, true
}

// name reads names of leases.
func (a *Asked) name(text string) {
	own := a.Namespace
	for i, name := range strings.Split(text, ",") {
		namespace, rest, foreign := strings.Cut(strings.TrimSpace(name), "/")
		if !foreign {
			namespace, rest = own, namespace
		}
		if rest == "" || namespace == "" || slices.Contains(a.Leases, rest) || i == maxLeases || (i > 0 && namespace != a.Namespace) {
			a.Namespace, a.Leases = own, nil
			a.Problem = fmt.Sprintf("the annotation %s is %q; it is the name of a lease, or two names of one namespace with a comma between them", v1alpha1.LeaseAnnotation, text)
			return
		}
		a.Namespace, a.Leases = namespace, append(a.Leases, rest)
	}
}

// ask reads the address that a Service asks for.
func (a *Asked) ask(text string) {
	if text == "" {
		return
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		a.Problem = fmt.Sprintf("its spec.loadBalancerIP %q is not an IP address; correct it, or remove it for any address", text)
		return
	}
	a.Address, a.Leases = address.Unmap(), []string{record.NameOf(address.Unmap())}
}

// RefOf names a Service to the leases of a namespace.
func RefOf(s *corev1.Service, namespace string) Ref {
	if s.Namespace == namespace {
		return Ref{Name: s.Name}
	}
	return Ref{s.Namespace, s.Name}
}

// ServiceOf is what a Service asks of the leases of a namespace. One that nobody serves asks for nothing.
func ServiceOf(s *corev1.Service, namespace string) Service {
	out := Service{
		Ref: RefOf(s, namespace), UID: s.UID, Created: s.CreationTimestamp.Time, Deleting: s.DeletionTimestamp != nil,
		RequireBoth: ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyRequireDualStack,
		PreferBoth:  ptr.Deref(s.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack,
		Tried:       triedAddresses(s), Published: Shown(s), Given: givenTo(s),
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, Port{p.Protocol, p.Port})
	}
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Families = append(out.Families, familyOf(a))
		}
	}
	if a, asks := AskedOf(s); asks && a.Namespace == namespace {
		out.Leases, out.Class, out.Address, out.By, out.Problem = a.Leases, a.Class, a.Address, a.By, a.Problem
	}
	return out
}

// TableOf is a table as the status of a lease has it.
func TableOf(table []Holder) []v1alpha1.LeasedPort {
	out := make([]v1alpha1.LeasedPort, 0, len(table))
	for _, h := range table {
		out = append(out, v1alpha1.LeasedPort{Protocol: h.Protocol, Port: h.Number, Service: h.Service.Name, Namespace: h.Service.Namespace, UID: h.UID})
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
			if !slices.Contains(leases[at].Table, Holder{p, s.Ref, s.UID}) {
				return false
			}
		}
	}
	return len(s.Leases) > 0
}
