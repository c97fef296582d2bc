package grants

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// lookAgain is when the Machine of a claim is read again that waits, and whose Machine was in no failure domain: a user may
// have given it one. Cluster API gives it one when it makes the Machine, or once that has its addresses.
const lookAgain = time.Minute

// Machine is the Machine of a claim, as it was found.
type Machine struct {
	// Name is empty where the claim has none.
	Name types.NamespacedName
	// FailureDomain is empty where the Machine is in none.
	FailureDomain string
}

// MachineLook is what leads to the Machine of a claim, and what a look for it has found. Only the owners never change.
type MachineLook struct {
	owners []metav1.OwnerReference
	found  Machine
	// looked: a lookup has ended; problem is why it is not known all the same.
	looked  bool
	problem *Refusal
	// begun is when the lookup began that is under way; zero: none is.
	begun time.Time
	// again is when it is looked for again, if that is to be; pause is how long the last one was after a problem.
	again time.Time
	pause time.Duration
}

// LookFor is a look that is still to be, for the Machine that some of the owners of a claim may lead to; nil: none does.
func LookFor(owners []metav1.OwnerReference) *MachineLook {
	if owners = MachineOwners(owners); len(owners) == 0 {
		return nil
	}
	return &MachineLook{owners: owners}
}

func (l *MachineLook) sameOwners(other *MachineLook) bool {
	return l != nil && other != nil && sameOwners(l.owners, other.owners)
}

func (l *MachineLook) isDue(now time.Time) bool {
	return l.begun.IsZero() && (!l.looked || (!l.again.IsZero() && !l.again.After(now)))
}

// Lookup is a claim whose Machine is to be found, by its owners.
type Lookup struct {
	UID    types.UID
	Name   types.NamespacedName
	Owners []metav1.OwnerReference
}

// infrastructure is the group of the kinds of infrastructure providers.
const infrastructure = "infrastructure.cluster.x-k8s.io"

// MachineOwners are those of the owners of an object that may lead to a Machine.
func MachineOwners(refs []metav1.OwnerReference) (out []metav1.OwnerReference) {
	for _, ref := range refs {
		// What is made from a template, or for a Cluster, has another owner that leads to a Machine.
		leads := groupOf(ref) == infrastructure && !strings.HasSuffix(ref.Kind, "Template") && !strings.HasSuffix(ref.Kind, "Cluster")
		if leads || IsMachine(ref) {
			out = append(out, ref)
		}
	}
	return out
}

// IsMachine reports whether an owner is a Machine of Cluster API.
func IsMachine(ref metav1.OwnerReference) bool {
	return ref.Kind == "Machine" && groupOf(ref) == clusterv1.GroupVersion.Group
}

// IsCluster reports whether an owner is a Cluster of Cluster API.
func IsCluster(ref metav1.OwnerReference) bool {
	return ref.Kind == clusterv1.ClusterKind && groupOf(ref) == clusterv1.GroupVersion.Group
}

func groupOf(ref metav1.OwnerReference) string {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Group
}

// HasZones reports whether it matters where the Machine of a claim is.
func (m *Memory) HasZones() bool { return m.Layout != nil && m.Layout.HasZones() }

// byMachine reports whether it matters for a claimant where its Machine is: what it has, it keeps.
func (m *Memory) byMachine(c *Claimant) bool {
	return m.HasZones() && c.Machine != nil && !c.Record.IsValid()
}

// lookedAt is when a pool is looked at again of which a Machine is being looked for: what is known by then is enough to go on
// with. After that it is looked at whenever that has taken twice as long.
const lookedAt = time.Second

// MaxLookups bounds the lookups of a pool that are under way at once.
const MaxLookups = 128

// BeginLookups returns the claims whose Machines are to be found now, the oldest first, as many as may be looked for at once.
// EndLookups is to be called when that is over.
func (m *Memory) BeginLookups(now time.Time) []Lookup {
	out := m.lookups(now, MaxLookups-m.looking)
	for _, of := range out {
		m.Claimants[of.UID].Machine.begun = now
	}
	m.looking += len(out)
	return out
}

// EndLookups notes that the lookups of some claims have ended. Those that were not found are due again.
func (m *Memory) EndLookups(of []Lookup) {
	m.looking -= len(of)
	for _, l := range of {
		if c := m.Claimants[l.UID]; c != nil && c.Machine != nil && sameOwners(c.Machine.owners, l.Owners) {
			c.Machine.begun = time.Time{}
		}
	}
}

// lookups are the claims whose Machines are to be found now, the oldest first, at most so many.
func (m *Memory) lookups(now time.Time, most int) (out []Lookup) {
	if !m.HasZones() || most <= 0 {
		return nil
	}
	m.Pending.Scan(func(c *Claimant) bool {
		if m.byMachine(c) && c.Machine.isDue(now) {
			out = append(out, Lookup{c.Owner.UID, NameOf(c.Owner), c.Machine.owners})
		}
		return len(out) < most
	})
	return out
}

// NextLookup is how long until a Machine is to be looked for again, or what was found meanwhile to be looked at; 0: none is.
// What is due while as many are looked for as may be waits for their end, which has the pool looked at.
func (m *Memory) NextLookup(now time.Time) (wait time.Duration) {
	if !m.HasZones() {
		return 0
	}
	full := m.looking >= MaxLookups
	m.Pending.Scan(func(c *Claimant) bool {
		switch l := c.Machine; {
		case !m.byMachine(c):
		case !l.begun.IsZero():
			wait = Sooner(wait, max(now.Sub(l.begun), lookedAt))
		case l.isDue(now) && full:
		case !l.looked:
			wait = Sooner(wait, time.Millisecond)
		case !l.again.IsZero():
			wait = Sooner(wait, max(l.again.Sub(now), time.Millisecond))
		}
		return true
	})
	return wait
}

// NoteMachine notes what was found of the Machine of a claim, or why it is not known.
func (m *Memory) NoteMachine(of Lookup, found Machine, problem *Refusal, now time.Time) {
	c := m.Claimants[of.UID]
	if c == nil || c.Machine == nil || !sameOwners(c.Machine.owners, of.Owners) {
		return
	}
	look := &MachineLook{owners: c.Machine.owners, found: found, looked: true, problem: problem}
	switch {
	case problem != nil:
		look.pause = term.NextPause(c.Machine.pause)
		look.again = term.Later(now, look.pause)
	case found.Name.Name != "" && found.FailureDomain == "":
		look.again = term.Later(now, lookAgain)
	}
	c.Machine = look
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID })
}

// OnMachine decides on a claimant by what is known of its Machine.
func (m *Memory) OnMachine(c *Claimant) Ruling {
	switch {
	case !m.byMachine(c):
		return Ruling{}
	case !c.Machine.looked:
		return Ruling{Waits: true, Silent: true} // it is being looked for
	}
	return Ruling{Refused: c.Machine.problem}
}

// failureDomainOf is where the Machine of a claimant is; empty: in none, or it has no Machine.
func (c *Claimant) failureDomainOf() string {
	if c.Machine == nil {
		return ""
	}
	return c.Machine.found.FailureDomain
}

// zonesOf are the zones of the pool that a claimant may have something of.
func (m *Memory) zonesOf(c *Claimant) []int {
	if !m.HasZones() {
		return []int{0}
	}
	zones, _ := m.Layout.ZonesOf(c.failureDomainOf())
	return zones
}

// order is how the ledger hands out what is free.
func (m *Memory) order() ledger.Order {
	out := ledger.Order{ByRelease: m.byRelease()}
	if m.HasZones() {
		out.Zones = m.Layout.Zones()
	}
	return out
}

// withoutZone says that no subnet serves the failure domain of a claimant; nil: some do.
func (m *Memory) withoutZone(c *Claimant) *Refusal {
	if len(m.zonesOf(c)) > 0 {
		return nil
	}
	return Failed("%s has no subnet for failure domain %s, in which Machine %s is; add the failure domain to failureDomains of one of its spec.subnets",
		m.Key, c.Machine.found.FailureDomain, c.Machine.found.Name)
}

// noneInZones says that nothing is free that a claimant may have for its failure domain.
func (m *Memory) noneInZones(c *Claimant) *Refusal {
	domain := c.failureDomainOf()
	if domain == "" {
		return exhausted("%s has no free address for claims without a failure domain: those outside of the subnets that name failureDomains are allocated, reserved or resting, or there are none; "+
			"add addresses, or set the failureDomain of the machines in their control plane or MachineDeployment%s", m.Key, m.restNote())
	}
	_, subnets := m.Layout.ZonesOf(domain)
	return exhausted("%s has no free address for failure domain %s: those in %s are allocated, reserved or resting, or there are none; add addresses there, or a subnet for the failure domain, or delete machines or claims%s",
		m.Key, domain, listed(subnets), m.restNote())
}

func listed(subnets []netip.Prefix) string {
	var out []string
	for _, s := range subnets {
		out = append(out, s.String())
	}
	return strings.Join(out, ", ")
}

func exhausted(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.Message(fmt.Sprintf(format, args...))}
}
