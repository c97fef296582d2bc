// Package leaseports decides which Service has which port of a lease, and what a Service is told. It reads and writes
// nothing.
//
// The leases and the Services of one namespace are decided on together. Who has a port keeps it; else the older Service
// goes first. A Service gets all of its ports, of all of its leases, or none.
package leaseports

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// Service is a Service of type LoadBalancer of the namespace.
type Service struct {
	Name    string
	UID     types.UID
	Created time.Time
	Ports   []Port
	// Leases are those that it names; none: it asks for nothing.
	Leases []string
	// Families are those of its cluster addresses, 4 and 6; RequireBoth: it is not to be published with one of two.
	Families    []int
	RequireBoth bool
	// Problem says what is wrong with what it asks for, empty if nothing.
	Problem string
	// Deleting: it keeps what it has until it is gone.
	Deleting bool
}

// Holder is the Service that has a port.
type Holder struct {
	Port
	Service string
	UID     types.UID
}

// Lease is a lease of the namespace.
type Lease struct {
	Name string
	// Address is the one that it has; not valid: none.
	Address netip.Addr
	// Deleting: nobody gets anything of it any more.
	Deleting bool
	// Declared are the ports that Services may have, each with the name of the Service that it is for, empty for any; nil:
	// any port for any Service.
	Declared map[Port]string
	// Table is who has which port.
	Table []Holder
}

// Verdict is what a Service is told: a reason of v1alpha1.LeaseSatisfiedCondition.
type Verdict struct{ Reason, Message string }

// Decision is what is to be.
type Decision struct {
	// Tables are who is to have which port, by lease, ordered by port.
	Tables map[string][]Holder
	// Verdicts are what each Service is told that names a lease, by its UID.
	Verdicts map[types.UID]Verdict
	// Leaving are entries of tables whose Service has no right to them any more. They stay until nobody is shown behind
	// the port.
	Leaving map[string][]Holder
}

// Decide decides on the ports of all leases of a namespace. Free reports whether it is proven that nobody is shown behind
// the port of an entry.
func Decide(leases []Lease, services []Service, free func(lease string, h Holder) bool) Decision {
	d := decider{byName: map[string]*Lease{}, services: map[string]*Service{}, taken: map[string]map[Port]Holder{}}
	d.out = Decision{Tables: map[string][]Holder{}, Verdicts: map[types.UID]Verdict{}, Leaving: map[string][]Holder{}}
	for i := range leases {
		d.byName[leases[i].Name] = &leases[i]
		d.taken[leases[i].Name] = map[Port]Holder{}
	}
	ordered := slices.Clone(services)
	slices.SortFunc(ordered, func(a, b Service) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for i := range ordered {
		d.services[ordered[i].Name] = &ordered[i]
	}
	for i := range leases {
		d.keep(&leases[i], free)
	}
	// Once more: who is refused is told of all that has a port, whoever was decided on first.
	for range 2 {
		for i := range ordered {
			if s := &ordered[i]; (len(s.Leases) > 0 || s.Problem != "") && d.out.Verdicts[s.UID].Reason != v1alpha1.GrantedReason {
				d.out.Verdicts[s.UID] = d.grant(s)
			}
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

type decider struct {
	byName   map[string]*Lease
	services map[string]*Service
	taken    map[string]map[Port]Holder
	out      Decision
}

// keep takes over what is in the table of a lease: what its Service still has a right to, and what is not proven to be
// free. A Service that was made again under its name has the ports of the one before.
func (d *decider) keep(l *Lease, free func(lease string, h Holder) bool) {
	for _, h := range l.Table {
		s := d.services[h.Service]
		switch {
		case s != nil && slices.Contains(s.Leases, l.Name) && slices.Contains(s.Ports, h.Port) && l.Gives(h.Port, s.Name) && !l.Deleting:
			h.UID = s.UID
		case free(l.Name, h):
			continue
		default:
			d.out.Leaving[l.Name] = append(d.out.Leaving[l.Name], h)
		}
		d.taken[l.Name][h.Port] = h
	}
}

// Gives reports whether a Service may have a port of the lease, if nobody has it.
func (l *Lease) Gives(p Port, service string) bool {
	if l.Declared == nil {
		return true
	}
	to, declared := l.Declared[p]
	return declared && (to == "" || to == service)
}

// grant gives a Service all of its ports, or none.
func (d *decider) grant(s *Service) Verdict {
	if s.Problem != "" {
		return Verdict{v1alpha1.LeaseUnfitReason, s.Problem}
	}
	var families []int
	for _, name := range s.Leases {
		if no := d.refusal(name, s); no != nil {
			return *no
		}
		families = append(families, familyOf(d.byName[name].Address))
	}
	if no := unfit(s, families); no != "" {
		return Verdict{v1alpha1.LeaseUnfitReason, no}
	}
	var texts []string
	for _, name := range s.Leases {
		for _, p := range s.Ports {
			d.taken[name][p] = Holder{p, s.Name, s.UID}
		}
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
	switch {
	case l == nil:
		return &Verdict{v1alpha1.LeaseNotFoundReason, fmt.Sprintf("there is no IPLease %s in this namespace; create it, or correct the annotation %s", name, v1alpha1.LeaseAnnotation)}
	case l.Deleting:
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s is being deleted; name another", name)}
	case !l.Address.IsValid():
		return &Verdict{v1alpha1.LeaseNotReadyReason, fmt.Sprintf("IPLease %s has no address yet; its condition Ready says why", name)}
	}
	more := 0
	for _, p := range s.Ports {
		if !l.Gives(p, s.Name) {
			return &Verdict{v1alpha1.NotDeclaredReason, fmt.Sprintf("spec.ports of IPLease %s has no %s for this Service; add it there, or use another port", name, p)}
		}
		if h, is := d.taken[name][p]; is && h.Service != s.Name {
			return &Verdict{v1alpha1.PortTakenReason, fmt.Sprintf("%s %s is already allocated to Service %s; choose another port or lease", l.Address, p, h.Service)}
		} else if !is {
			more++
		}
	}
	if len(d.taken[name])+more > v1alpha1.MaxLeasedPorts {
		return &Verdict{v1alpha1.PortTakenReason, fmt.Sprintf("IPLease %s has %d ports in use, and can have no more than %d; use another lease", name, len(d.taken[name]), v1alpha1.MaxLeasedPorts)}
	}
	return nil
}

// unfit tells why addresses of these families are none for a Service, empty if they are.
func unfit(s *Service, families []int) string {
	for i, f := range families {
		switch {
		case !slices.Contains(s.Families, f):
			return fmt.Sprintf("IPLease %s has an IPv%d address, and the Service has none of that family; name a lease of another family", s.Leases[i], f)
		case slices.Contains(families[:i], f):
			return fmt.Sprintf("the leases %s are of one family; name one of each, or one", strings.Join(s.Leases, " and "))
		}
	}
	if s.RequireBoth && len(families) < len(s.Families) {
		return "the Service requires both families, and names a lease of one; name one of each"
	}
	return ""
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}
