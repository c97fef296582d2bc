package elastic

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Family is an IP family.
type Family int

// The IP families. Values index what is counted for each.
const (
	IPv4 Family = iota
	IPv6
)

func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// DualStack is what a Service of two families asks for.
type DualStack int

const (
	// SingleStack asks for one address.
	SingleStack DualStack = iota
	// PreferDualStack asks for two addresses and takes one.
	PreferDualStack
	// RequireDualStack takes two addresses or none.
	RequireDualStack
)

// Port is a port that a Service listens on.
type Port struct {
	// Protocol as Kubernetes spells it: TCP, UDP or SCTP.
	Protocol string
	Number   int32
}

// Service is what matters here of a Service of type LoadBalancer.
type Service struct {
	Namespace, Name string
	Created         time.Time
	Labels          map[string]string
	// Class is spec.loadBalancerClass.
	Class string
	// Families are those of its cluster IPs, the first one first. Without any, no address can be chosen.
	Families []Family
	Stack    DualStack
	Ports    []Port
	// SharingKey allows it to share an address with others of the same key and other ports.
	SharingKey string
	// BackendKey must be equal too: the pod selector of a Service whose external traffic policy is Local,
	// empty for others.
	BackendKey string
	// WantsIPs are the addresses it asks for by name. WantsError says why what it asks for cannot be read.
	WantsIPs   []netip.Addr
	WantsError string
	// WantsPool is the pool it asks for by name.
	WantsPool string
	// Has are the addresses of its status.
	Has []netip.Addr
}

// Key is namespace/name.
func (s *Service) Key() string { return s.Namespace + "/" + s.Name }

func (s *Service) dual() bool { return len(s.Families) > 1 }

// oldest sorts Services in the order in which they are served here: by creation, then by namespace and name.
func oldest(services []Service) []*Service {
	out := make([]*Service, len(services))
	for i := range services {
		out[i] = &services[i]
	}
	slices.SortFunc(out, func(a, b *Service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
