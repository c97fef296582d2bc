package grants

import (
	"strings"
	"time"
	"unique"

	"go4.org/netipx"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// NamespacedNameFromOwner returns the namespace and the name of an owner.
func NamespacedNameFromOwner(o ledger.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// ConditionsField is the name of the field of a status that has the conditions.
const ConditionsField = "conditions"

// MaxAnnotationLength is how many bytes the allocator keeps of an annotation that has an address, a prefix or a
// range: more than the longest of them has. Users can write annotations of up to 256 KiB.
const MaxAnnotationLength = 128

// TruncatedAnnotation returns the first MaxAnnotationLength bytes of an annotation, in memory of their own.
func TruncatedAnnotation(o Object, name string) string {
	text := o.GetAnnotations()[name]
	return strings.Clone(text[:min(len(text), MaxAnnotationLength)])
}

// Claimant is the state that the allocator keeps of an object that requests addresses from a pool. It suffices to
// decide on the object and to write it without reading it again.
type Claimant struct {
	Kind            ClaimantKind
	Owner           ledger.Owner
	Created         time.Time
	ResourceVersion string
	// OtherFinalizers are the finalizers of the object except ours.
	OtherFinalizers []string
	// Status is nil for most claimants: those without conditions in their status, and those that have nothing but
	// Ready.
	Status           *PublishedStatus
	RecordAnnotation string
	RecordedRange    netipx.IPRange
	// PublishedRange is the range in the status of the object, for kinds whose status has one.
	PublishedRange netipx.IPRange
	// Cluster is the namespace and the name of the Cluster of the claimant, empty if it has none.
	Cluster types.NamespacedName
	// ChildPool is the carved pool that the claimant is a block of, nil if it is not a block of one.
	ChildPool  *pools.Key
	WatchLabel string
	// UsesMirroredPool reports whether the claimant names the pool of the in-cluster provider that its pool mirrors.
	UsesMirroredPool bool
	// HasFinalizer reports whether our finalizer is on the object.
	HasFinalizer bool
	Paused       bool
	Deleting     bool
	Moved        bool
	// InUse reports whether the finalizer of a consumer is on the object, which uses the addresses as long as it is
	// there.
	InUse bool
	// UsedByOthers reports whether a foreign machine answers for the address of the claimant (P7).
	UsedByOthers bool
	// PauseMessage describes what paused the claimant when it was last checked, and PublishedPauseMessage is the
	// message about a pause in its status. Both are empty if there is none.
	PauseMessage, PublishedPauseMessage string
	// StatusComplete reports whether the status has everything that it should have for the addresses of the claimant.
	StatusComplete bool
	// StatusHasAddress reports whether the status has an address, whether or not the claimant is Ready.
	StatusHasAddress bool
	// KindData is the state that only the kind of the claimant reads.
	KindData any

	// PublishedOwnerSeen is the state of the owner, a Cluster or a carved pool, in the status of the claimant.
	// ObservedOwnerSeen is the state that was last observed.
	PublishedOwnerSeen, ObservedOwnerSeen OwnerSeen
	// OwnerMissingSince is when a live read first showed that the owner does not exist.
	OwnerMissingSince time.Time
	// countedInQuota reports whether the claimant counts towards the quota of its Cluster or of its namespace.
	countedInQuota bool
	// servingBlocked reports whether the claimant has a grant but may not be served now.
	servingBlocked bool
	// Retry is the progress of the jobs for the claimant.
	term.Retry
	// MachineLookup has the owners that lead to the Machine of the claimant, and the result of the lookup. It is nil
	// if no owner leads to a Machine, or if the Machine does not matter any more, because the claimant keeps the
	// address that it has.
	MachineLookup *MachineLookup
	// LostAddress is the address object of the claimant that was removed by force. The next one is created like it,
	// whatever the spec has now.
	LostAddress *Address
}

// PublishedStatus is the part of the status of a claimant that the allocator keeps: its conditions.
type PublishedStatus struct {
	Conditions []metav1.Condition
	// Refusal has the reason and the message of the condition Ready if that is False, so that no refusal is written
	// twice.
	Refusal Refusal
}

// NewClaimant returns the state of an object of any kind. own is the state that only that kind reads.
func NewClaimant(k ClaimantKind, o Object, own any) *Claimant {
	out := &Claimant{
		Kind:             k,
		Owner:            ledger.Owner{Kind: k.Traits().Name, Namespace: InternString(o.GetNamespace()), Name: o.GetName(), UID: o.GetUID()},
		Created:          o.GetCreationTimestamp().Time,
		ResourceVersion:  o.GetResourceVersion(),
		RecordAnnotation: TruncatedAnnotation(o, v1alpha1.AddressAnnotation),
		WatchLabel:       InternString(o.GetLabels()[clusterv1.WatchLabel]),
		Deleting:         o.GetDeletionTimestamp() != nil,
		Moved:            ending.IsMoved(o),
		KindData:         own,
	}
	out.HasFinalizer, out.OtherFinalizers = splitFinalizers(o.GetFinalizers(), k.Traits().Finalizer)
	return out
}

// OwnerCluster returns the UID of the Cluster that is the only owner of a claimant, so that its address is an address
// of the Cluster itself. It is empty if there is no such Cluster.
func (c *Claimant) OwnerCluster() types.UID {
	if own, may := c.KindData.(interface{ OwnerCluster() types.UID }); may {
		return own.OwnerCluster()
	}
	return ""
}

// PublishedRefusal returns the refusal in the status of the claimant, or the zero Refusal if there is none.
func (c *Claimant) PublishedRefusal() Refusal {
	if c.Status == nil {
		return Refusal{}
	}
	return c.Status.Refusal
}

// NewObject returns an empty object of the kind and the name of the claimant.
func (c *Claimant) NewObject() Object {
	return WithName(c.Kind.NewObject(), c.Owner.Namespace, c.Owner.Name)
}

// EventObject returns the object of the claimant that events refer to.
func (c *Claimant) EventObject() Object {
	out := c.NewObject()
	out.SetUID(c.Owner.UID)
	out.SetResourceVersion(c.ResourceVersion)
	return out
}

// WithName sets the namespace and the name of an object, and returns it.
func WithName(o Object, namespace, name string) Object {
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// HasRecord reports whether the claimant has a record that a manager wrote, which is always written together with our
// finalizer. Users can write the annotation alone.
func (c *Claimant) HasRecord() bool { return c.RecordedRange.IsValid() && c.HasFinalizer }

// InternString returns an equal string that shares its memory with all equal ones: thousands of claims have few
// namespaces.
func InternString(s string) string { return unique.Make(s).Value() }

// splitFinalizers reports whether our finalizer is among the finalizers of an object, and returns the others.
func splitFinalizers(finalizers []string, own string) (found bool, others []string) {
	for _, f := range finalizers {
		if f == own {
			found = true
		} else {
			others = append(others, f)
		}
	}
	return found, others
}

// ParseRecord parses an address or a prefix. It reports false for anything else, including a range.
func ParseRecord(s string) (netipx.IPRange, bool) {
	if s == "" || strings.Contains(s, "-") {
		return netipx.IPRange{}, false
	}
	r, err := poolutil.ParseRange(s)
	return r, err == nil
}

// TakenRanges returns the ranges that are taken because of a claimant: the range on record, otherwise the one in its
// status.
func (c *Claimant) TakenRanges() (record, shown netipx.IPRange) {
	if c.HasRecord() {
		return c.RecordedRange, netipx.IPRange{}
	}
	return netipx.IPRange{}, c.PublishedRange
}

// CurrentRange returns the range that a claimant has: the one on record, otherwise the one in its status.
func (c *Claimant) CurrentRange() netipx.IPRange {
	if c.HasRecord() {
		return c.RecordedRange
	}
	return c.PublishedRange
}

// SetRecordedRange records the range that the claimant has on record with our finalizer.
func (c *Claimant) SetRecordedRange(r netipx.IPRange) { c.RecordedRange = r }

// isOlderClaimant defines the order in which claimants are served: by creation time, then by namespace and name.
func isOlderClaimant(a, b *Claimant) bool {
	if !a.Created.Equal(b.Created) {
		return a.Created.Before(b.Created)
	}
	if a.Owner.Namespace != b.Owner.Namespace {
		return a.Owner.Namespace < b.Owner.Namespace
	}
	if a.Owner.Name != b.Owner.Name {
		return a.Owner.Name < b.Owner.Name
	}
	return a.Owner.UID < b.Owner.UID
}

// failureDomain returns the failure domain of the Machine of a claimant. It is empty if the Machine is in none, or if
// there is no Machine.
func (c *Claimant) failureDomain() string {
	if c.MachineLookup == nil {
		return ""
	}
	return c.MachineLookup.machine.FailureDomain
}
