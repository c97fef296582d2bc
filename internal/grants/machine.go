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

// machineLookupInterval is how often the manager reads the Machine of a waiting claim again if that Machine was in no
// failure domain. A user may have set one. Cluster API sets it when it creates the Machine, or once the Machine has
// its addresses.
const machineLookupInterval = time.Minute

// Machine is the result of a lookup of the Machine of a claim.
type Machine struct {
	// Name is empty if the claim has no Machine.
	Name types.NamespacedName
	// FailureDomain is empty if the Machine is in no failure domain.
	FailureDomain string
}

// MachineLookup has the owners that lead to the Machine of a claim, and the result of the last lookup. Only the
// owners never change.
type MachineLookup struct {
	ownerReferences []metav1.OwnerReference
	machine         Machine
	// completed reports whether a lookup has ended. refusal is why the Machine is not known in spite of that, nil if
	// the lookup succeeded.
	completed bool
	refusal   *Refusal
	// startedAt is when the lookup in progress started, zero if none is in progress.
	startedAt time.Time
	// retryAt is when the next lookup is due, zero if none is; retryBackoff is the last backoff after a failed
	// lookup.
	retryAt      time.Time
	retryBackoff time.Duration
}

// NewMachineLookup returns a lookup that has not started yet, for the Machine that the owners of a claim may lead to.
// It returns nil if no owner leads to a Machine.
func NewMachineLookup(owners []metav1.OwnerReference) *MachineLookup {
	if owners = MachineOwners(owners); len(owners) == 0 {
		return nil
	}
	return &MachineLookup{ownerReferences: owners}
}

func (l *MachineLookup) hasSameOwners(other *MachineLookup) bool {
	return l != nil && other != nil && equalOwners(l.ownerReferences, other.ownerReferences)
}

func (l *MachineLookup) isDue(now time.Time) bool {
	return l.startedAt.IsZero() && (!l.completed || (!l.retryAt.IsZero() && !l.retryAt.After(now)))
}

// MachineLookupRequest requests a lookup of the Machine of a claim by the owners of that claim.
type MachineLookupRequest struct {
	UID    types.UID
	Name   types.NamespacedName
	Owners []metav1.OwnerReference
}

// infrastructureGroup is the API group of the infrastructure providers.
const infrastructureGroup = "infrastructure.cluster.x-k8s.io"

// MachineOwners returns those of the owners of an object that may lead to a Machine.
func MachineOwners(refs []metav1.OwnerReference) (out []metav1.OwnerReference) {
	for _, ref := range refs {
		// An object that was created from a template, or for a Cluster, has another owner that leads to a Machine.
		leads := apiGroupFromRef(ref) == infrastructureGroup && !strings.HasSuffix(ref.Kind, "Template") && !strings.HasSuffix(ref.Kind, "Cluster")
		if leads || IsMachine(ref) {
			out = append(out, ref)
		}
	}
	return out
}

// IsMachine reports whether an owner is a Machine of Cluster API.
func IsMachine(ref metav1.OwnerReference) bool {
	return ref.Kind == "Machine" && apiGroupFromRef(ref) == clusterv1.GroupVersion.Group
}

// IsCluster reports whether an owner is a Cluster of Cluster API.
func IsCluster(ref metav1.OwnerReference) bool {
	return ref.Kind == clusterv1.ClusterKind && apiGroupFromRef(ref) == clusterv1.GroupVersion.Group
}

func apiGroupFromRef(ref metav1.OwnerReference) string {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Group
}

// HasZones reports whether the addresses of a claim depend on the failure domain of its Machine.
func (m *PoolState) HasZones() bool { return m.Layout != nil && m.Layout.HasZones() }

// needsMachine reports whether the pool has to know the Machine of a claimant. It does not if the claimant has a
// record, because it keeps that address.
func (m *PoolState) needsMachine(c *Claimant) bool {
	return m.HasZones() && c.MachineLookup != nil && !c.RecordedRange.IsValid()
}

// minMachineLookupDelay is how long after the start of a lookup the pool is reconciled: the results that are known by
// then are enough to go on. After that, the pool is reconciled whenever the lookup has taken twice as long as before.
const minMachineLookupDelay = time.Second

// MaxMachineLookups bounds the concurrent lookups of a pool.
const MaxMachineLookups = 128

// BeginMachineLookups returns the claims whose Machines are to be looked up now, oldest first, up to the limit of
// concurrent lookups. The caller must call EndMachineLookups when these lookups have ended.
func (m *PoolState) BeginMachineLookups(now time.Time) []MachineLookupRequest {
	out := m.dueMachineLookups(now, MaxMachineLookups-m.activeMachineLookups)
	for _, of := range out {
		m.Claimants[of.UID].MachineLookup.startedAt = now
	}
	m.activeMachineLookups += len(out)
	return out
}

// EndMachineLookups records that some lookups have ended. A lookup without a result is due again.
func (m *PoolState) EndMachineLookups(of []MachineLookupRequest) {
	m.activeMachineLookups -= len(of)
	for _, l := range of {
		if c := m.Claimants[l.UID]; c != nil && c.MachineLookup != nil && equalOwners(c.MachineLookup.ownerReferences, l.Owners) {
			c.MachineLookup.startedAt = time.Time{}
		}
	}
}

// dueMachineLookups returns the claims whose Machines are to be looked up now, oldest first, at most the given
// number.
func (m *PoolState) dueMachineLookups(now time.Time, most int) (out []MachineLookupRequest) {
	if !m.HasZones() || most <= 0 {
		return nil
	}
	m.PendingClaimants.Scan(func(c *Claimant) bool {
		if m.needsMachine(c) && c.MachineLookup.isDue(now) {
			out = append(out, MachineLookupRequest{c.Owner.UID, NamespacedNameFromOwner(c.Owner), c.MachineLookup.ownerReferences})
		}
		return len(out) < most
	})
	return out
}

// NextMachineLookupDelay returns how long until the next lookup is due, or until the results of the lookups in
// progress should be used; 0 means never. A lookup that is due while the maximum is in progress waits for the end of
// another one, which enqueues the pool.
func (m *PoolState) NextMachineLookupDelay(now time.Time) (wait time.Duration) {
	if !m.HasZones() {
		return 0
	}
	full := m.activeMachineLookups >= MaxMachineLookups
	m.PendingClaimants.Scan(func(c *Claimant) bool {
		switch l := c.MachineLookup; {
		case !m.needsMachine(c):
		case !l.startedAt.IsZero():
			wait = MinWait(wait, max(now.Sub(l.startedAt), minMachineLookupDelay))
		case l.isDue(now) && full:
		case !l.completed:
			wait = MinWait(wait, time.Millisecond)
		case !l.retryAt.IsZero():
			wait = MinWait(wait, max(l.retryAt.Sub(now), time.Millisecond))
		}
		return true
	})
	return wait
}

// RecordMachine records the result of a lookup: the Machine, or why it is not known.
func (m *PoolState) RecordMachine(of MachineLookupRequest, found Machine, problem *Refusal, now time.Time) {
	c := m.Claimants[of.UID]
	if c == nil || c.MachineLookup == nil || !equalOwners(c.MachineLookup.ownerReferences, of.Owners) {
		return
	}
	lookup := &MachineLookup{ownerReferences: c.MachineLookup.ownerReferences, machine: found, completed: true, refusal: problem}
	switch {
	case problem != nil:
		lookup.retryBackoff = term.NextRetryPause(c.MachineLookup.retryBackoff)
		lookup.retryAt = term.RetryTimeAfter(now, lookup.retryBackoff)
	case found.Name.Name != "" && found.FailureDomain == "":
		lookup.retryAt = term.RetryTimeAfter(now, machineLookupInterval)
	}
	c.MachineLookup = lookup
}

func equalOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID })
}

// AdmitByMachine decides on a claimant by the result of its Machine lookup.
func (m *PoolState) AdmitByMachine(c *Claimant) AdmissionResult {
	switch {
	case !m.needsMachine(c):
		return AdmissionResult{}
	case !c.MachineLookup.completed:
		return AdmissionResult{Wait: true, Quiet: true} // the lookup is in progress
	}
	return AdmissionResult{Refusal: c.MachineLookup.refusal}
}

// failureDomain returns the failure domain of the Machine of a claimant. It is empty if the Machine is in none, or if
// there is no Machine.
func (c *Claimant) failureDomain() string {
	if c.MachineLookup == nil {
		return ""
	}
	return c.MachineLookup.machine.FailureDomain
}

// zonesForClaimant returns the zones of the pool from which a claimant may get addresses.
func (m *PoolState) zonesForClaimant(c *Claimant) []int {
	if !m.HasZones() {
		return []int{0}
	}
	zones, _ := m.Layout.ZonesForFailureDomain(c.failureDomain())
	return zones
}

// allocationOrder returns the order in which the ledger allocates free addresses.
func (m *PoolState) allocationOrder() ledger.AllocationOrder {
	out := ledger.AllocationOrder{LeastRecentlyUsed: m.usesReleaseOrder()}
	if m.HasZones() {
		out.Zones = m.Layout.ZoneRanges()
	}
	return out
}

// noSubnetRefusal returns the refusal for a claimant whose failure domain no subnet of the pool serves. It is nil if
// a subnet does.
func (m *PoolState) noSubnetRefusal(c *Claimant) *Refusal {
	if len(m.zonesForClaimant(c)) > 0 {
		return nil
	}
	return AllocationFailed("%s has no subnet for failure domain %s, in which Machine %s is; add the failure domain to failureDomains of one of its spec.subnets",
		m.Key, c.MachineLookup.machine.FailureDomain, c.MachineLookup.machine.Name)
}

// zoneExhaustedRefusal returns the refusal for a claimant for whose failure domain no address is free.
func (m *PoolState) zoneExhaustedRefusal(c *Claimant) *Refusal {
	domain := c.failureDomain()
	if domain == "" {
		return poolExhausted("%s has no free address for claims without a failure domain: those outside of the subnets that name failureDomains are allocated, reserved or resting, or there are none; "+
			"add addresses, or set the failureDomain of the machines in their control plane or MachineDeployment%s", m.Key, m.reuseGraceNote())
	}
	_, subnets := m.Layout.ZonesForFailureDomain(domain)
	return poolExhausted("%s has no free address for failure domain %s: those in %s are allocated, reserved or resting, or there are none; add addresses there, or a subnet for the failure domain, or delete machines or claims%s",
		m.Key, domain, formatPrefixes(subnets), m.reuseGraceNote())
}

func formatPrefixes(subnets []netip.Prefix) string {
	var out []string
	for _, s := range subnets {
		out = append(out, s.String())
	}
	return strings.Join(out, ", ")
}

func poolExhausted(format string, args ...any) *Refusal {
	return &Refusal{Reason: ipamv1.IPAddressClaimReadyPoolExhaustedReason, Message: text.SanitizeMessage(fmt.Sprintf(format, args...))}
}
