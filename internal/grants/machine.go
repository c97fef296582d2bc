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

// minMachineLookupDelay is how long after the start of a lookup the pool is reconciled: the results that are known by
// then are enough to go on. After that, the pool is reconciled whenever the lookup has taken twice as long as before.
const minMachineLookupDelay = time.Second

// MaxMachineLookups bounds the concurrent lookups of a pool.
const MaxMachineLookups = 128

func equalOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool { return a.UID == b.UID })
}

// failureDomain returns the failure domain of the Machine of a claimant. It is empty if the Machine is in none, or if
// there is no Machine.
func (c *Claimant) failureDomain() string {
	if c.MachineLookup == nil {
		return ""
	}
	return c.MachineLookup.machine.FailureDomain
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
