package elastic

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Family is an IP family.
type Family int

// The IP families. Their values are indexes into arrays with one element per family.
const (
	IPv4 Family = iota
	IPv6
)

// String implements fmt.Stringer.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// AddressFamily returns the family of an address.
func AddressFamily(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// IPFamilyPolicy is the ipFamilyPolicy of a Service.
type IPFamilyPolicy int

const (
	// SingleStack requests one address.
	SingleStack IPFamilyPolicy = iota
	// PreferDualStack requests two addresses and accepts one.
	PreferDualStack
	// RequireDualStack accepts two addresses or none.
	RequireDualStack
)

// Port is a port that a Service listens on.
type Port struct {
	// Protocol is spelled as in Kubernetes: TCP, UDP or SCTP.
	Protocol string
	Number   int32
}

// Service is the part of a Service of type LoadBalancer that decisions here depend on.
type Service struct {
	Namespace, Name string
	Created         time.Time
	Labels          map[string]string
	// LoadBalancerClass is spec.loadBalancerClass.
	LoadBalancerClass string
	// Families are the families of its cluster IPs, in their order. Without any, no address can be chosen.
	Families     []Family
	FamilyPolicy IPFamilyPolicy
	Ports        []Port
	// SharingKey allows it to share an address with other Services of the same key and other ports.
	SharingKey string
	// BackendKey must be equal, too, for sharing: the pod selector of a Service whose external traffic policy is
	// Local, empty for others.
	BackendKey string
	// RequestedIPs are the addresses that it requests. RequestProblem states why its request cannot be parsed.
	RequestedIPs   []netip.Addr
	RequestProblem string
	// RequestedPool is the name of the pool that it requests.
	RequestedPool string
	// Addresses are the addresses of its status.
	Addresses []netip.Addr
}

// Key returns namespace/name.
func (s *Service) Key() string { return s.Namespace + "/" + s.Name }

func (s *Service) isDualStack() bool { return len(s.Families) > 1 }

// sortByAge sorts Services in the order in which they are served here: by creation time, namespace and name.
func sortByAge(services []Service) []*Service {
	out := make([]*Service, len(services))
	for i := range services {
		out[i] = &services[i]
	}
	slices.SortFunc(out, func(a, b *Service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
