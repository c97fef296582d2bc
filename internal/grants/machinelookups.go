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

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// MachineLookups decides which Machines are to be read for the claimants of a pool whose subnets have failure
// domains, and records what was found.
type MachineLookups struct {
	// active is the number of Machine lookups in progress.
	active int

	claimants *Claimants
	space     *Space
	queues    *Queues
}

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

// needsMachine reports whether the pool has to know the Machine of a claimant. It does not if the claimant has a
// record, because it keeps that address.
func (ls *MachineLookups) needsMachine(c *Claimant) bool {
	return ls.space.HasZones() && c.MachineLookup != nil && !c.RecordedRange.IsValid()
}

// minMachineLookupDelay is how long after the start of a lookup the pool is reconciled: the results that are known by
// then are enough to go on. After that, the pool is reconciled whenever the lookup has taken twice as long as before.
const minMachineLookupDelay = time.Second

// MaxMachineLookups bounds the concurrent lookups of a pool.
const MaxMachineLookups = 128

// BeginMachineLookups returns the claims whose Machines are to be looked up now, oldest first, up to the limit of
// concurrent lookups. The caller must call EndMachineLookups when these lookups have ended.
func (ls *MachineLookups) BeginMachineLookups(now time.Time) []MachineLookupRequest {
	out := ls.dueMachineLookups(now, MaxMachineLookups-ls.active)
	for _, of := range out {
		ls.claimants.ByUID[of.UID].MachineLookup.startedAt = now
	}
	ls.active += len(out)
	return out
}

// EndMachineLookups records that some lookups have ended. A lookup without a result is due again.
func (ls *MachineLookups) EndMachineLookups(of []MachineLookupRequest) {
	ls.active -= len(of)
	for _, l := range of {
		if c := ls.claimants.ByUID[l.UID]; c != nil && c.MachineLookup != nil && equalOwners(c.MachineLookup.ownerReferences, l.Owners) {
			c.MachineLookup.startedAt = time.Time{}
		}
	}
}

// dueMachineLookups returns the claims whose Machines are to be looked up now, oldest first, at most the given
// number.
func (ls *MachineLookups) dueMachineLookups(now time.Time, most int) (out []MachineLookupRequest) {
	if !ls.space.HasZones() || most <= 0 {
		return nil
	}
	ls.queues.Waiting.Scan(func(c *Claimant) bool {
		if ls.needsMachine(c) && c.MachineLookup.isDue(now) {
			out = append(out, MachineLookupRequest{c.Owner.UID, NamespacedNameFromOwner(c.Owner), c.MachineLookup.ownerReferences})
		}
		return len(out) < most
	})
	return out
}

// NextMachineLookupDelay returns how long until the next lookup is due, or until the results of the lookups in
// progress should be used; 0 means never. A lookup that is due while the maximum is in progress waits for the end of
// another one, which enqueues the pool.
func (ls *MachineLookups) NextMachineLookupDelay(now time.Time) (wait time.Duration) {
	if !ls.space.HasZones() {
		return 0
	}
	full := ls.active >= MaxMachineLookups
	ls.queues.Waiting.Scan(func(c *Claimant) bool {
		switch l := c.MachineLookup; {
		case !ls.needsMachine(c):
		case !l.startedAt.IsZero():
			wait = term.MinWait(wait, max(now.Sub(l.startedAt), minMachineLookupDelay))
		case l.isDue(now) && full:
		case !l.completed:
			wait = term.MinWait(wait, time.Millisecond)
		case !l.retryAt.IsZero():
			wait = term.MinWait(wait, max(l.retryAt.Sub(now), time.Millisecond))
		}
		return true
	})
	return wait
}

// RecordMachine records the result of a lookup: the Machine, or why it is not known.
func (ls *MachineLookups) RecordMachine(of MachineLookupRequest, found Machine, problem *Refusal, now time.Time) {
	c := ls.claimants.ByUID[of.UID]
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
func (ls *MachineLookups) AdmitByMachine(c *Claimant) AdmissionResult {
	switch {
	case !ls.needsMachine(c):
		return AdmissionResult{}
	case !c.MachineLookup.completed:
		return AdmissionResult{Wait: true, Quiet: true} // the lookup is in progress
	}
	return AdmissionResult{Refusal: c.MachineLookup.refusal}
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
