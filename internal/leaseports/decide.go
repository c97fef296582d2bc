// Package leaseports decides which leases the manager creates for Services, which Service has which port of a lease,
// and which condition each Service gets. It is pure: it reads and writes nothing.
//
// It decides on the leases of one namespace together with the Services that name them. A Service that has a port keeps
// it; otherwise the older Service goes first. A Service gets all of its ports, of all of its leases, or none.
package leaseports

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// Port is a protocol and a port number of an address.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Number) }

func comparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

// ServiceRef names a Service. Namespace is empty if it is the namespace of the leases.
type ServiceRef struct{ Namespace, Name string }

func (r ServiceRef) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

func (r ServiceRef) compareTo(o ServiceRef) int {
	return cmp.Or(cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// Service is a Service of type LoadBalancer.
type Service struct {
	ServiceRef

	UID     types.UID
	Created time.Time
	Ports   []Port
	// LeaseNames are the leases that the Service names, or that are created for it; empty if it requests none.
	LeaseNames []string
	// LoadBalancerClass is the class of the pools from which leases are created for the Service, empty if none are;
	// RequestedAddress is the address that it requests then, not valid if any address will do.
	LoadBalancerClass string
	RequestedAddress  netip.Addr
	// ShownBy is the load balancer that shows the Service: v1alpha1.ShownByMetalLB or v1alpha1.ShownByHost.
	ShownBy string
	// NamespaceLabels are the labels of the Service's namespace, if that is not the namespace of the leases.
	NamespaceLabels labels.Set
	// Families are the IP families of its cluster addresses, 4 and 6; RequiresDualStack reports whether it must not be
	// published with an address of one family alone; PrefersDualStack reports whether MetalLB also gives it an address
	// of the other family, if its pool has any.
	Families                            []int
	RequiresDualStack, PrefersDualStack bool
	// HasReadyEndpoint reports whether the Service has a ready endpoint; ReportedIdle reports whether its condition
	// shows that it had none for too long.
	HasReadyEndpoint, ReportedIdle bool
	// RequestProblem is what is wrong with the request of the Service, empty if nothing is; WaitReason is why it has no
	// lease yet.
	RequestProblem string
	WaitReason     Reason
	// NotServedMessage states that the manager does not serve the Service, and how to have it served; empty if the
	// manager serves it. A Service that is not served gets nothing, and keeps what it has.
	NotServedMessage string
	// LeaseCreateError is why the API server refuses a lease that the manager creates for the Service, empty if it does
	// not.
	LeaseCreateError string
	// Deleting reports whether the Service is being deleted: it keeps what it has until it is gone.
	Deleting bool
	// PublishedAddresses are the addresses that the Service is published with; StatusAddresses are those in its status.
	PublishedAddresses, StatusAddresses []netip.Addr
	// TriedAddresses are the addresses of leases that were created for the Service and for which a foreign machine
	// answers.
	TriedAddresses []netip.Addr
}

// Holder is the Service that has a port.
type Holder struct {
	Port

	Service ServiceRef
	UID     types.UID
}

// Lease is a lease of the namespace.
type Lease struct {
	Name            string
	UID             types.UID
	ResourceVersion string
	Created         time.Time
	Pool            v1alpha1.PoolReference
	// Address is the address of the lease, not valid if it has none. Refusal is then why it has none, from its
	// condition Ready; zero if no controller has reported it.
	Address netip.Addr
	Refusal Reason
	// Deleting reports whether the lease is being deleted: no Service gets a port of it any more. HasAddressRecord
	// reports whether an address was granted to it, which its status may not show yet.
	Deleting, HasAddressRecord bool
	// MadeForServices reports whether the manager created the lease for Services. OnlyService is then the only Service
	// that may use it, empty if any Service that requests the address may. TriedPools are the attempts at pools that
	// had no address for it.
	MadeForServices bool
	OnlyService     string
	TriedPools      []tenancy.PoolAttempt
	// NamespaceSelector selects the other namespaces whose Services may use the lease, nil if none may; SelectorText is
	// its canonical text; SelectorError is why it is not valid.
	NamespaceSelector           labels.Selector
	SelectorText, SelectorError string
	// ShownBy is the load balancer that shows the lease, empty if none does yet; ShownByMetalLB reports whether the
	// lease is in the IPAddressPool of MetalLB, or about to be.
	ShownBy        string
	ShownByMetalLB bool
	// AddressInUse reports whether a foreign machine, to which the address was not granted, answers for it.
	AddressInUse bool
	// IdleSince is since when none of the lease's Services has a ready endpoint; zero if one has, or if that is
	// unknown.
	IdleSince time.Time
	// DeclaredPorts are the ports that Services may have, each with the Service that it is reserved for, the zero
	// ServiceRef for any; nil if every Service may have every port.
	DeclaredPorts map[Port]ServiceRef
	// PortTable lists which Service has which port; UsurpedPorts are the ports that a Service shows without having them
	// on record, each with that Service.
	PortTable    []Holder
	UsurpedPorts map[Port]ServiceRef
}

// Reason is the reason and the message that a Service gets in its condition v1alpha1.LeaseSatisfiedCondition.
type Reason struct{ Reason, Message string }

// Decision is the desired state of the leases of a namespace and of their Services.
type Decision struct {
	// PortTables are the desired holders of the ports, by lease, ordered by port; ShownBy is the load balancer for each
	// lease with a port that a Service has.
	PortTables map[string][]Holder
	ShownBy    map[string]string
	// ExcludedLeases are leases that must stay out of the IPAddressPool of the others, as MetalLB would give their
	// address to a Service in addition to its own.
	ExcludedLeases map[string]bool
	// Reasons maps the UID of each Service that requests a lease to the condition that it gets.
	Reasons map[types.UID]Reason
	// ReleasingPorts are the table entries, by lease, whose Service has no right to the port any more. They stay until
	// no Service is shown behind the port.
	ReleasingPorts map[string][]Holder
}

// DecidePorts decides on the ports of all leases of a namespace. free reports whether it is proven that no Service is
// shown behind the port of an entry.
func DecidePorts(leases []Lease, services []Service, free func(lease string, h Holder) bool) Decision {
	d := portDecider{leasesByName: map[string]*Lease{}, servicesByRef: map[ServiceRef]*Service{}, portHolders: map[string]map[Port]Holder{}, olderTwins: map[string]string{}, shownLeases: map[poolGroup]string{}, singleFamilyUsers: map[poolGroup]*Service{}}
	d.decision = Decision{PortTables: map[string][]Holder{}, ShownBy: map[string]string{}, ExcludedLeases: map[string]bool{}, Reasons: map[types.UID]Reason{}, ReleasingPorts: map[string][]Holder{}}
	for i := range leases {
		l := &leases[i]
		d.leases, d.leasesByName[l.Name], d.portHolders[l.Name], d.decision.ShownBy[l.Name] = append(d.leases, l), l, map[Port]Holder{}, l.ShownBy
	}
	slices.SortFunc(d.leases, func(a, b *Lease) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	first := map[netip.Addr]string{}
	for _, l := range d.leases {
		if older, ok := first[l.Address]; ok && l.Address.IsValid() {
			d.olderTwins[l.Name] = older
		} else {
			first[l.Address] = l.Name
		}
		if l.ShownByMetalLB {
			d.recordShownLease(l)
		}
	}
	ordered := slices.Clone(services)
	slices.SortFunc(ordered, func(a, b Service) int { return a.compareByAge(&b) })
	for i := range ordered {
		d.servicesByRef[ordered[i].ServiceRef] = &ordered[i]
	}
	for _, l := range d.leases {
		d.keepHolders(l, free)
	}
	// The second pass makes the message of a refused Service cover all granted ports, whatever the order of the
	// decisions.
	for range 2 {
		for i := range ordered {
			if s := &ordered[i]; s.hasRequest() && d.decision.Reasons[s.UID].Reason != v1alpha1.GrantedReason {
				d.decision.Reasons[s.UID] = d.grantPorts(s)
			}
		}
	}
	for _, l := range d.leases {
		if !l.ShownByMetalLB && l.Address.IsValid() && d.singleFamilyUsers[l.otherFamilyGroup()] != nil {
			d.decision.ExcludedLeases[l.Name] = true
		}
	}
	for name, taken := range d.portHolders {
		for _, h := range taken {
			d.decision.PortTables[name] = append(d.decision.PortTables[name], h)
		}
		slices.SortFunc(d.decision.PortTables[name], func(a, b Holder) int { return comparePorts(a.Port, b.Port) })
	}
	return d.decision
}

// compareByAge orders Services by age: the older one first.
func (s *Service) compareByAge(o *Service) int {
	return cmp.Or(s.Created.Compare(o.Created), s.compareTo(o.ServiceRef))
}

// hasRequest reports whether a Service requests a lease.
func (s *Service) hasRequest() bool {
	return len(s.LeaseNames) > 0 || s.NotServedMessage != "" || s.RequestProblem != "" || s.WaitReason != Reason{}
}

// poolGroup identifies the leases of one family that are in one IPAddressPool.
type poolGroup struct {
	selector string
	family   int
}

func (l *Lease) poolGroup() poolGroup { return poolGroup{l.SelectorText, addressFamily(l.Address)} }

// otherFamilyGroup returns the group of the leases of the other family in the same IPAddressPool.
func (l *Lease) otherFamilyGroup() poolGroup {
	return poolGroup{l.SelectorText, 4 + 6 - addressFamily(l.Address)}
}

type portDecider struct {
	leases        []*Lease
	leasesByName  map[string]*Lease
	servicesByRef map[ServiceRef]*Service
	portHolders   map[string]map[Port]Holder
	// olderTwins maps each lease whose address an older lease also has to that older lease.
	olderTwins map[string]string
	// shownLeases is one lease of each group that is in MetalLB's pool, or about to be; singleFamilyUsers is the oldest
	// Service that has a lease of the group and that MetalLB would also give an address of the other family.
	shownLeases       map[poolGroup]string
	singleFamilyUsers map[poolGroup]*Service
	decision          Decision
}

// recordShownLease records that the lease is in MetalLB's pool.
func (d *portDecider) recordShownLease(l *Lease) {
	if g := l.poolGroup(); l.Address.IsValid() && (d.shownLeases[g] == "" || l.Name < d.shownLeases[g]) {
		d.shownLeases[g] = l.Name
	}
}

// recordLeaseUse records that a Service uses a lease.
func (d *portDecider) recordLeaseUse(l *Lease, s *Service) {
	if s.ShownBy != v1alpha1.ShownByMetalLB {
		return
	}
	d.recordShownLease(l)
	if first := d.singleFamilyUsers[l.poolGroup()]; l.Address.IsValid() && s.PrefersDualStack && len(s.LeaseNames) == 1 && (first == nil || s.compareByAge(first) < 0) {
		d.singleFamilyUsers[l.poolGroup()] = s
	}
}

// keepHolders keeps the entries in the table of a lease to whose port the Service still has a right, and those whose
// port is not proven to be free. A Service that was created again under its name keeps the ports of its predecessor.
func (d *portDecider) keepHolders(l *Lease, free func(lease string, h Holder) bool) {
	for _, h := range l.PortTable {
		s := d.servicesByRef[h.Service]
		switch {
		case s != nil && slices.Contains(s.LeaseNames, l.Name) && slices.Contains(s.Ports, h.Port) && l.AllowsPort(h.Port, s) && !l.Deleting:
			h.UID = s.UID
			d.recordLeaseUse(l, s)
		case free(l.Name, h):
			continue
		default:
			d.decision.ReleasingPorts[l.Name] = append(d.decision.ReleasingPorts[l.Name], h)
		}
		d.portHolders[l.Name][h.Port] = h
	}
}

// AllowsPort reports whether a Service may have a port of the lease, provided that no other Service has it.
func (l *Lease) AllowsPort(p Port, s *Service) bool {
	if !l.AllowsService(s) {
		return false
	}
	if l.DeclaredPorts == nil {
		return true
	}
	to, declared := l.DeclaredPorts[p]
	return declared && (to == ServiceRef{} || to == s.ServiceRef)
}

// AllowsService reports whether a Service may use the lease at all.
func (l *Lease) AllowsService(s *Service) bool {
	if l.MadeForServices && l.OnlyService != "" && (l.OnlyService != s.Name || s.Namespace != "") {
		return false
	}
	return s.Namespace == "" || (l.NamespaceSelector != nil && l.NamespaceSelector.Matches(s.NamespaceLabels))
}

// grantPorts grants a Service all of its ports, or none, and returns the reason.
func (d *portDecider) grantPorts(s *Service) Reason {
	switch {
	case s.NotServedMessage != "":
		return Reason{v1alpha1.NotServedReason, s.NotServedMessage}
	case s.RequestProblem != "":
		return newUnfitReason("%s", s.RequestProblem)
	case s.WaitReason != Reason{}:
		return s.WaitReason
	}
	var families []int
	for _, name := range s.LeaseNames {
		if refusal := d.refusalForLease(name, s); refusal != nil {
			return *refusal
		}
		families = append(families, addressFamily(d.leasesByName[name].Address))
	}
	if refusal := d.refusalForFamilies(s, families); refusal != nil {
		return *refusal
	}
	var texts []string
	for _, name := range s.LeaseNames {
		for _, p := range s.Ports {
			d.portHolders[name][p] = Holder{p, s.ServiceRef, s.UID}
		}
		d.decision.ShownBy[name] = s.ShownBy
		d.recordLeaseUse(d.leasesByName[name], s)
		texts = append(texts, d.leasesByName[name].Address.String())
	}
	return Reason{v1alpha1.GrantedReason, fmt.Sprintf("has %s of %s", formatPorts(s), strings.Join(texts, " and "))}
}

func formatPorts(s *Service) string {
	var texts []string
	for _, p := range s.Ports {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// refusalForLease returns why a Service does not get its ports of a lease, or nil if it may have them.
func (d *portDecider) refusalForLease(name string, s *Service) *Reason {
	l := d.leasesByName[name]
	if refusal := d.refusalForUse(l, name, s); refusal != nil {
		return refusal
	}
	more := 0
	for _, p := range s.Ports {
		if !l.AllowsPort(p, s) {
			return &Reason{v1alpha1.NotDeclaredReason, fmt.Sprintf("spec.ports of IPLease %s has no %s for this Service; add it there, or use another port", name, p)}
		}
		if h, ok := d.portHolders[name][p]; ok && h.Service != s.ServiceRef {
			return &Reason{v1alpha1.PortTakenReason, fmt.Sprintf("%s %s is already allocated to Service %s; choose another port or lease", l.Address, p, h.Service)}
		} else if !ok {
			more++
		}
		if by, ok := l.UsurpedPorts[p]; ok && by != s.ServiceRef && !slices.Contains(s.StatusAddresses, l.Address) {
			return &Reason{v1alpha1.PortTakenReason, fmt.Sprintf("%s %s is shown by Service %s, to which it was not given; it is taken from that one first. If that lasts, delete that Service", l.Address, p, by)}
		}
	}
	if len(d.portHolders[name])+more > v1alpha1.MaxLeasedPorts {
		return &Reason{v1alpha1.PortTakenReason, fmt.Sprintf("IPLease %s has %d ports in use, and can have no more than %d; use another lease", name, len(d.portHolders[name]), v1alpha1.MaxLeasedPorts)}
	}
	return nil
}

// These suffixes end the message about a lease that is pending.
const (
	beingMadeSuffix    = " is being made"
	noAddressYetSuffix = " has no address yet; its condition Ready states the reason"
)

// IsLeasePending reports whether the condition of a Service shows that its lease is pending: nothing is wrong so far.
func IsLeasePending(reason, message string) bool {
	return reason == v1alpha1.LeaseNotReadyReason && (strings.HasSuffix(message, beingMadeSuffix) || strings.HasSuffix(message, noAddressYetSuffix))
}

// refusalForUse returns why a Service may not use a lease, or nil if it may.
func (d *portDecider) refusalForUse(l *Lease, name string, s *Service) *Reason {
	switch {
	case s.Namespace != "" && (l == nil || !l.AllowsService(s)): // the leases of another namespace are not disclosed
		return &Reason{v1alpha1.NotAllowedReason, fmt.Sprintf("there is no IPLease %s that Services of namespace %s may use; its spec.namespaceSelector has to select that", name, s.Namespace)}
	case l == nil && s.LeaseCreateError != "":
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s cannot be made: %s", name, s.LeaseCreateError)}
	case l == nil && s.LoadBalancerClass != "":
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s%s", name, beingMadeSuffix)}
	case l == nil:
		return &Reason{v1alpha1.LeaseNotFoundReason, fmt.Sprintf("there is no IPLease %s in this namespace; create it, or correct the annotation %s", name, v1alpha1.LeaseAnnotation)}
	case !l.AllowsService(s):
		return &Reason{v1alpha1.NotAllowedReason, fmt.Sprintf("IPLease %s was made for Service %s, and is that one's alone; make a lease that both may name", name, l.OnlyService)}
	case l.Deleting && l.MadeForServices && s.LoadBalancerClass != "":
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s is being deleted; it is recreated when it is gone", name)}
	case l.Deleting:
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s is being deleted; name another", name)}
	case !l.Address.IsValid() && l.Refusal.Reason != "":
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s has no address: %s: %s", name, l.Refusal.Reason, l.Refusal.Message)}
	case !l.Address.IsValid():
		return &Reason{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s%s", name, noAddressYetSuffix)}
	case l.SelectorError != "":
		return ptr.To(newUnfitReason("spec.namespaceSelector of IPLease %s is not valid: %s", name, l.SelectorError))
	case d.olderTwins[name] != "":
		return ptr.To(newUnfitReason("IPLease %s has the address of IPLease %s, which is older, from another pool; name that one, or correct the pools", name, d.olderTwins[name]))
	case d.decision.ShownBy[name] != "" && d.decision.ShownBy[name] != s.ShownBy:
		return ptr.To(newUnfitReason("IPLease %s is shown by %s, and this Service would be by %s; name another lease, or give the Service the spec.loadBalancerClass that goes with it", name, d.decision.ShownBy[name], s.ShownBy))
	}
	return nil
}

func newUnfitReason(format string, args ...any) Reason {
	return Reason{v1alpha1.LeaseUnfitReason, fmt.Sprintf(format, args...)}
}

// refusalForFamilies returns why a Service cannot use addresses of these families, or nil if it can.
func (d *portDecider) refusalForFamilies(s *Service, families []int) *Reason {
	for i, f := range families {
		switch {
		case !slices.Contains(s.Families, f):
			return ptr.To(newUnfitReason("IPLease %s has an IPv%d address, and the Service has none of that family; name a lease of another family", s.LeaseNames[i], f))
		case slices.Contains(families[:i], f):
			return ptr.To(newUnfitReason("the leases %s are of one family; name one of each, or one", strings.Join(s.LeaseNames, " and ")))
		case s.ShownBy == v1alpha1.ShownByMetalLB && d.leasesByName[s.LeaseNames[i]].SelectorText != d.leasesByName[s.LeaseNames[0]].SelectorText: // MetalLB takes both from one IPAddressPool
			return ptr.To(newUnfitReason("the leases %s have different namespaceSelectors; give both the same", strings.Join(s.LeaseNames, " and ")))
		}
	}
	switch {
	case len(families) == len(s.Families):
	case s.RequiresDualStack:
		return ptr.To(newUnfitReason("the Service requires both families, and has a lease of one; name one of each"))
	case s.ShownBy == v1alpha1.ShownByMetalLB:
		return ptr.To(newUnfitReason("the Service has addresses of both families, and a lease of one; MetalLB gives it both or none: name a lease of each, or set ipFamilyPolicy SingleStack"))
	}
	return d.refusalForDualStack(s)
}

// refusalForDualStack returns why a Service may not have a lease because MetalLB would assign more than was granted: a
// Service that prefers two families, and has a lease of one, gets any address of the other family of its pool,
// whichever Service has the ports of that address. The Service or lease that was first keeps its place. It returns nil
// if nothing conflicts.
func (d *portDecider) refusalForDualStack(s *Service) *Reason {
	if s.ShownBy != v1alpha1.ShownByMetalLB {
		return nil
	}
	for _, name := range s.LeaseNames {
		l := d.leasesByName[name]
		if first := d.singleFamilyUsers[l.otherFamilyGroup()]; first != nil && first.ServiceRef != s.ServiceRef && !l.ShownByMetalLB {
			return ptr.To(newUnfitReason("Service %s prefers two families and has a lease of one, so MetalLB would give it the address of IPLease %s too; give that Service a lease of each, or ipFamilyPolicy SingleStack", first.ServiceRef, name))
		}
		if other := d.shownLeases[l.otherFamilyGroup()]; s.PrefersDualStack && len(s.LeaseNames) == 1 && other != "" {
			return ptr.To(newUnfitReason("the Service prefers two families and has a lease of one, so MetalLB would give it the address of IPLease %s too; name a lease of each, or set ipFamilyPolicy SingleStack", other))
		}
	}
	return nil
}

func addressFamily(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
