// Package leaseports decides which leases are made for Services, which Service has which port of a lease, and what a
// Service is told. It reads and writes nothing.
//
// The leases of one namespace, and the Services that name them, are decided on together. Who has a port keeps it; else the
// older Service goes first. A Service gets all of its ports, of all of its leases, or none.
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
)

// Port is a port of an address.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

func (p Port) String() string { return fmt.Sprintf("%s/%d", p.Protocol, p.Number) }

func compare(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

// Ref names a Service. Its namespace is empty where that is the one of the leases.
type Ref struct{ Namespace, Name string }

func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

func (r Ref) compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Namespace, o.Namespace), cmp.Compare(r.Name, o.Name))
}

// Service is a Service of type LoadBalancer.
type Service struct {
	Ref

	UID     types.UID
	Created time.Time
	Ports   []Port
	// Leases are those that it names, or that are made for it; none: it asks for nothing.
	Leases []string
	// Class is the load balancer class of pools that leases are made of for it, empty if none are; Address, the one that it
	// asks for then, not valid if any will do.
	Class   string
	Address netip.Addr
	// By is who would show it.
	By string
	// NamespaceLabels are those of its namespace, where that is not the one of the leases.
	NamespaceLabels labels.Set
	// Families are those of its cluster addresses, 4 and 6; RequireBoth: it is not to be published with one of two;
	// PreferBoth: MetalLB gives it one of the other family, if its pool has any.
	Families                []int
	RequireBoth, PreferBoth bool
	// Ready: it has a ready endpoint. ToldIdle: it was told that it had none for too long.
	Ready, ToldIdle bool
	// Problem says what is wrong with what it asks for, empty if nothing; Waits, why it has no lease yet.
	Problem string
	Waits   Verdict
	// Off says that the manager does not serve it, and how it would, empty if it does: it gets nothing, and keeps what it has.
	Off string
	// NotMade says why the API server takes no lease that is to be made for it, empty if it does.
	NotMade string
	// Deleting: it keeps what it has until it is gone.
	Deleting bool
	// Published are the addresses that it is published with; Given, those that its status has.
	Published, Given []netip.Addr
	// Tried are the addresses that were made for it, and that somebody else answers for.
	Tried []netip.Addr
}

// Holder is the Service that has a port.
type Holder struct {
	Port

	Service Ref
	UID     types.UID
}

// Lease is a lease of the namespace.
type Lease struct {
	Name    string
	UID     types.UID
	Version string
	Created time.Time
	Pool    v1alpha1.PoolReference
	// Address is the one that it has; not valid: none. Refused says then why, empty if nobody has said it.
	Address netip.Addr
	Refused Verdict
	// Deleting: nobody gets anything of it any more. Recorded: an address was given to it, which the status may not show yet.
	Deleting, Recorded bool
	// Made: the manager has made it for Services; For is the only one that may use it then, empty: any that asks for the
	// address. Tried are the pools that had nothing for it, and how they were.
	Made  bool
	For   string
	Tried map[v1alpha1.PoolReference]string
	// Others selects the other namespaces whose Services may use it, nil: none may; Selector is how it is written, and Invalid
	// what is wrong with that.
	Others            labels.Selector
	Selector, Invalid string
	// By is who shows it, empty: nobody yet; Shown: it is in MetalLB's pool, or about to be.
	By    string
	Shown bool
	// UsedByOthers: somebody answers for its address whom nobody gave it.
	UsedByOthers bool
	// IdleSince is since when none of its Services has a ready endpoint; zero: one has, or nobody knows.
	IdleSince time.Time
	// Declared are the ports that Services may have, each with the Service that it is for, the zero Ref for any; nil: any
	// port for any Service.
	Declared map[Port]Ref
	// Table is who has which port. Usurped are ports that Services show which have them not.
	Table   []Holder
	Usurped map[Port]Ref
}

// Verdict is what a Service is told: a reason of v1alpha1.LeaseSatisfiedCondition.
type Verdict struct{ Reason, Message string }

// Decision is what is to be.
type Decision struct {
	// Tables are who is to have which port, by lease, ordered by port; By, who is to show the leases of which somebody has
	// one.
	Tables map[string][]Holder
	By     map[string]string
	// Apart are leases that are not to be in the pool of the others, as a Service would get their address with its own.
	Apart map[string]bool
	// Verdicts are what each Service is told that names a lease, by its UID.
	Verdicts map[types.UID]Verdict
	// Leaving are entries of tables whose Service has no right to them any more. They stay until nobody is shown behind
	// the port.
	Leaving map[string][]Holder
}

// Decide decides on the ports of all leases of a namespace. Free reports whether it is proven that nobody is shown behind
// the port of an entry.
func Decide(leases []Lease, services []Service, free func(lease string, h Holder) bool) Decision {
	d := decider{byName: map[string]*Lease{}, services: map[Ref]*Service{}, taken: map[string]map[Port]Holder{}, twins: map[string]string{}, shown: map[group]string{}, lonely: map[group]*Service{}}
	d.out = Decision{Tables: map[string][]Holder{}, By: map[string]string{}, Apart: map[string]bool{}, Verdicts: map[types.UID]Verdict{}, Leaving: map[string][]Holder{}}
	for i := range leases {
		l := &leases[i]
		d.leases, d.byName[l.Name], d.taken[l.Name], d.out.By[l.Name] = append(d.leases, l), l, map[Port]Holder{}, l.By
	}
	slices.SortFunc(d.leases, func(a, b *Lease) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	first := map[netip.Addr]string{}
	for _, l := range d.leases {
		if older, is := first[l.Address]; is && l.Address.IsValid() {
			d.twins[l.Name] = older
		} else {
			first[l.Address] = l.Name
		}
		if l.Shown {
			d.show(l)
		}
	}
	ordered := slices.Clone(services)
	slices.SortFunc(ordered, func(a, b Service) int { return a.compare(&b) })
	for i := range ordered {
		d.services[ordered[i].Ref] = &ordered[i]
	}
	for _, l := range d.leases {
		d.keep(l, free)
	}
	// Once more: who is refused is told of all that has a port, whoever was decided on first.
	for range 2 {
		for i := range ordered {
			if s := &ordered[i]; s.asks() && d.out.Verdicts[s.UID].Reason != v1alpha1.GrantedReason {
				d.out.Verdicts[s.UID] = d.grant(s)
			}
		}
	}
	for _, l := range d.leases {
		if !l.Shown && l.Address.IsValid() && d.lonely[l.others()] != nil {
			d.out.Apart[l.Name] = true
		}
	}
	for name, taken := range d.taken {
		for _, h := range taken {
			d.out.Tables[name] = append(d.out.Tables[name], h)
		}
		slices.SortFunc(d.out.Tables[name], func(a, b Holder) int { return compare(a.Port, b.Port) })
	}
	return d.out
}

// compare orders Services: the older one first.
func (s *Service) compare(o *Service) int {
	return cmp.Or(s.Created.Compare(o.Created), s.Ref.compare(o.Ref))
}

// asks reports whether a Service asks for anything.
func (s *Service) asks() bool {
	return len(s.Leases) > 0 || s.Off != "" || s.Problem != "" || s.Waits != Verdict{}
}

// group is the leases of one family that are in one IPAddressPool.
type group struct {
	selector string
	family   int
}

func (l *Lease) group() group { return group{l.Selector, familyOf(l.Address)} }

// others are the leases of the other family of the pool.
func (l *Lease) others() group { return group{l.Selector, 4 + 6 - familyOf(l.Address)} }

type decider struct {
	leases   []*Lease
	byName   map[string]*Lease
	services map[Ref]*Service
	taken    map[string]map[Port]Holder
	// twins are the leases whose address an older one has too, with that.
	twins map[string]string
	// shown is a lease of each group that MetalLB has, or is about to; lonely, the oldest Service that has one of the group
	// and would be given one of the other family too.
	shown  map[group]string
	lonely map[group]*Service
	out    Decision
}

// show notes that MetalLB has a lease.
func (d *decider) show(l *Lease) {
	if g := l.group(); l.Address.IsValid() && (d.shown[g] == "" || l.Name < d.shown[g]) {
		d.shown[g] = l.Name
	}
}

// give notes that a Service has a lease.
func (d *decider) give(l *Lease, s *Service) {
	if s.By != v1alpha1.ShownByMetalLB {
		return
	}
	d.show(l)
	if first := d.lonely[l.group()]; l.Address.IsValid() && s.PreferBoth && len(s.Leases) == 1 && (first == nil || s.compare(first) < 0) {
		d.lonely[l.group()] = s
	}
}

// keep takes over what is in the table of a lease: what its Service still has a right to, and what is not proven to be
// free. A Service that was made again under its name has the ports of the one before.
func (d *decider) keep(l *Lease, free func(lease string, h Holder) bool) {
	for _, h := range l.Table {
		s := d.services[h.Service]
		switch {
		case s != nil && slices.Contains(s.Leases, l.Name) && slices.Contains(s.Ports, h.Port) && l.Gives(h.Port, s) && !l.Deleting:
			h.UID = s.UID
			d.give(l, s)
		case free(l.Name, h):
			continue
		default:
			d.out.Leaving[l.Name] = append(d.out.Leaving[l.Name], h)
		}
		d.taken[l.Name][h.Port] = h
	}
}

// Gives reports whether a Service may have a port of the lease, if nobody has it.
func (l *Lease) Gives(p Port, s *Service) bool {
	if !l.Allows(s) {
		return false
	}
	if l.Declared == nil {
		return true
	}
	to, declared := l.Declared[p]
	return declared && (to == Ref{} || to == s.Ref)
}

// Allows reports whether a Service may use the lease at all.
func (l *Lease) Allows(s *Service) bool {
	if l.Made && l.For != "" && (l.For != s.Name || s.Namespace != "") {
		return false
	}
	return s.Namespace == "" || (l.Others != nil && l.Others.Matches(s.NamespaceLabels))
}

// grant gives a Service all of its ports, or none.
func (d *decider) grant(s *Service) Verdict {
	switch {
	case s.Off != "":
		return Verdict{v1alpha1.NotServedReason, s.Off}
	case s.Problem != "":
		return unfit("%s", s.Problem)
	case s.Waits != Verdict{}:
		return s.Waits
	}
	var families []int
	for _, name := range s.Leases {
		if no := d.refusal(name, s); no != nil {
			return *no
		}
		families = append(families, familyOf(d.byName[name].Address))
	}
	if no := d.unfitting(s, families); no != nil {
		return *no
	}
	var texts []string
	for _, name := range s.Leases {
		for _, p := range s.Ports {
			d.taken[name][p] = Holder{p, s.Ref, s.UID}
		}
		d.out.By[name] = s.By
		d.give(d.byName[name], s)
		texts = append(texts, d.byName[name].Address.String())
	}
	return Verdict{v1alpha1.GrantedReason, fmt.Sprintf("has %s of %s", portsOf(s), strings.Join(texts, " and "))}
}

func portsOf(s *Service) string {
	var texts []string
	for _, p := range s.Ports {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// refusal tells why a Service gets its ports of a lease not; nil: it may.
func (d *decider) refusal(name string, s *Service) *Verdict {
	l := d.byName[name]
	if no := d.notUsable(l, name, s); no != nil {
		return no
	}
	more := 0
	for _, p := range s.Ports {
		if !l.Gives(p, s) {
			return &Verdict{v1alpha1.NotDeclaredReason, fmt.Sprintf("spec.ports of IPLease %s has no %s for this Service; add it there, or use another port", name, p)}
		}
		if h, is := d.taken[name][p]; is && h.Service != s.Ref {
			return &Verdict{v1alpha1.PortTakenReason, fmt.Sprintf("%s %s is already allocated to Service %s; choose another port or lease", l.Address, p, h.Service)}
		} else if !is {
			more++
		}
		if by, is := l.Usurped[p]; is && by != s.Ref && !slices.Contains(s.Given, l.Address) {
			return &Verdict{v1alpha1.PortTakenReason, fmt.Sprintf("%s %s is shown by Service %s, to which it was not given; it is taken from that one first. If that lasts, delete that Service", l.Address, p, by)}
		}
	}
	if len(d.taken[name])+more > v1alpha1.MaxLeasedPorts {
		return &Verdict{v1alpha1.PortTakenReason, fmt.Sprintf("IPLease %s has %d ports in use, and can have no more than %d; use another lease", name, len(d.taken[name]), v1alpha1.MaxLeasedPorts)}
	}
	return nil
}

// What is said of a lease that is on its way.
const (
	beingMade    = " is being made"
	noAddressYet = " has no address yet; its condition Ready says why"
)

// Comes reports whether what a Service is told says of its lease that it is on its way: nothing is wrong so far.
func Comes(reason, message string) bool {
	return reason == v1alpha1.LeaseNotReadyReason && (strings.HasSuffix(message, beingMade) || strings.HasSuffix(message, noAddressYet))
}

// notUsable tells why a Service gets nothing of a lease; nil: it may.
func (d *decider) notUsable(l *Lease, name string, s *Service) *Verdict {
	switch {
	case s.Namespace != "" && (l == nil || !l.Allows(s)): // what another namespace has is not told
		return &Verdict{v1alpha1.NotAllowedReason, fmt.Sprintf("there is no IPLease %s that Services of namespace %s may use; its spec.namespaceSelector has to select that", name, s.Namespace)}
	case l == nil && s.NotMade != "":
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s cannot be made: %s", name, s.NotMade)}
	case l == nil && s.Class != "":
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s%s", name, beingMade)}
	case l == nil:
		return &Verdict{v1alpha1.LeaseNotFoundReason, fmt.Sprintf("there is no IPLease %s in this namespace; create it, or correct the annotation %s", name, v1alpha1.LeaseAnnotation)}
	case !l.Allows(s):
		return &Verdict{v1alpha1.NotAllowedReason, fmt.Sprintf("IPLease %s was made for Service %s, and is that one's alone; make a lease that both may name", name, l.For)}
	case l.Deleting && l.Made && s.Class != "":
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s is being deleted; it is made anew when it is gone", name)}
	case l.Deleting:
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s is being deleted; name another", name)}
	case !l.Address.IsValid() && l.Refused.Reason != "":
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s has no address: %s: %s", name, l.Refused.Reason, l.Refused.Message)}
	case !l.Address.IsValid():
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s%s", name, noAddressYet)}
	case l.Invalid != "":
		return ptr.To(unfit("spec.namespaceSelector of IPLease %s is not valid: %s", name, l.Invalid))
	case d.twins[name] != "":
		return ptr.To(unfit("IPLease %s has the address of IPLease %s, which is older, from another pool; name that one, or correct the pools", name, d.twins[name]))
	case d.out.By[name] != "" && d.out.By[name] != s.By:
		return ptr.To(unfit("IPLease %s is shown by %s, and this Service would be by %s; name another lease, or give the Service the spec.loadBalancerClass that goes with it", name, d.out.By[name], s.By))
	}
	return nil
}

func unfit(format string, args ...any) Verdict {
	return Verdict{v1alpha1.LeaseUnfitReason, fmt.Sprintf(format, args...)}
}

// unfitting tells why addresses of these families are none for a Service; nil: they are.
func (d *decider) unfitting(s *Service, families []int) *Verdict {
	for i, f := range families {
		switch {
		case !slices.Contains(s.Families, f):
			return ptr.To(unfit("IPLease %s has an IPv%d address, and the Service has none of that family; name a lease of another family", s.Leases[i], f))
		case slices.Contains(families[:i], f):
			return ptr.To(unfit("the leases %s are of one family; name one of each, or one", strings.Join(s.Leases, " and ")))
		case s.By == v1alpha1.ShownByMetalLB && d.byName[s.Leases[i]].Selector != d.byName[s.Leases[0]].Selector: // MetalLB takes both from one IPAddressPool
			return ptr.To(unfit("the leases %s have different namespaceSelectors; give both the same", strings.Join(s.Leases, " and ")))
		}
	}
	switch {
	case len(families) == len(s.Families):
	case s.RequireBoth:
		return ptr.To(unfit("the Service requires both families, and has a lease of one; name one of each"))
	case s.By == v1alpha1.ShownByMetalLB:
		return ptr.To(unfit("the Service has addresses of both families, and a lease of one; MetalLB gives it both or none: name a lease of each, or set ipFamilyPolicy SingleStack"))
	}
	return d.mixing(s)
}

// mixing tells why a Service gets no lease that MetalLB would give more than is said: one that prefers two families, and has
// a lease of one, gets any address of the other family of its pool, whosever ports that has. Who is first stands; nil: none
// does.
func (d *decider) mixing(s *Service) *Verdict {
	if s.By != v1alpha1.ShownByMetalLB {
		return nil
	}
	for _, name := range s.Leases {
		l := d.byName[name]
		if first := d.lonely[l.others()]; first != nil && first.Ref != s.Ref && !l.Shown {
			return ptr.To(unfit("Service %s prefers two families and has a lease of one, so MetalLB would give it the address of IPLease %s too; give that Service a lease of each, or ipFamilyPolicy SingleStack", first.Ref, name))
		}
		if other := d.shown[l.others()]; s.PreferBoth && len(s.Leases) == 1 && other != "" {
			return ptr.To(unfit("the Service prefers two families and has a lease of one, so MetalLB would give it the address of IPLease %s too; name a lease of each, or set ipFamilyPolicy SingleStack", other))
		}
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
