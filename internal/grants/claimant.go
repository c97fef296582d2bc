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
)

// NameOf is the namespace and the name of an owner.
func NameOf(o ledger.Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// ConditionsField is the name of the conditions in a status.
const ConditionsField = "conditions"

// MaxAnnotation is what is remembered of an annotation that says an address, a prefix or a range: more than the longest
// of them has. Users write annotations of up to 256 KiB.
const MaxAnnotation = 128

// Annotation returns what is remembered of an annotation, in memory of its own.
func Annotation(o Object, name string) string {
	text := o.GetAnnotations()[name]
	return strings.Clone(text[:min(len(text), MaxAnnotation)])
}

// Claimant is what the allocator remembers of an object that asks a pool for addresses: enough to decide and to write
// without reading it again.
type Claimant struct {
	Kind    Kind
	Owner   ledger.Owner
	Created time.Time
	Version string
	// Others are its finalizers but ours.
	Others []string
	// Status is nil for the many whose status says nothing yet, or Ready and nothing else.
	Status     *ShownStatus
	RecordText string
	Record     netipx.IPRange
	// Shown is the range that its status says it has, for a kind whose status says that.
	Shown netipx.IPRange
	// Cluster names its Cluster, if it has one.
	Cluster types.NamespacedName
	// Child is the carved pool that it is a block for, nil if it is none.
	Child      *pools.Key
	WatchLabel string
	// Mirrored: it names the pool of the in-cluster provider that its pool mirrors.
	Mirrored bool
	// HasFinalizer: our finalizer is on it.
	HasFinalizer bool
	Paused       bool
	Deleting     bool
	Moved        bool
	// InUse: the finalizer of a consumer is on it, which uses the addresses as long.
	InUse bool
	// UsedByOthers: somebody answers for its address whom nobody gave it (P7).
	UsedByOthers bool
	// Pause is what pauses it, as was found last, and PauseTold what its status says of that; empty: nothing.
	Pause, PauseTold string
	// StatusDone: the status says all that there is to say of what it has.
	StatusDone bool
	// HadAddress: the status says that it has something, Ready or not.
	HadAddress bool
	// Own is what only its kind remembers.
	Own any

	// Told is what its status says of what it is for, its Cluster or pool; found what was found last.
	Told, Found Sighting
	// OrphanSince is when a live read first showed that what it is for does not exist.
	OrphanSince time.Time
	// counted: it counts towards the quota of its Cluster, or of its namespace.
	counted bool
	// waits: it has a grant, and may not be served now.
	waits bool
	// Busy: a job works on the claimant.
	Busy bool
	// Failures counts errors in a row; nothing is tried before RetryAt.
	Failures int
	RetryAt  time.Time
	// Machine is what leads to its Machine, and what was found of that. Nil: nothing does, or it does not matter any more, as
	// what it was given, it keeps.
	Machine *MachineLook
	// Lost is what was attached to it and was forced away: the next one is like it, whatever the spec says now.
	Lost *Attached
}

// ShownStatus is what the status of a claimant says: its conditions.
type ShownStatus struct {
	Conditions []metav1.Condition
	// Refusal is the reason and message of Ready=False, so that nothing is said twice.
	Refusal Refusal
}

// ClaimantOf returns what is remembered of an object of any kind.
func ClaimantOf(k Kind, o Object, own any) *Claimant {
	out := &Claimant{
		Kind:       k,
		Owner:      ledger.Owner{Kind: k.Traits().Name, Namespace: Intern(o.GetNamespace()), Name: o.GetName(), UID: o.GetUID()},
		Created:    o.GetCreationTimestamp().Time,
		Version:    o.GetResourceVersion(),
		RecordText: Annotation(o, v1alpha1.AddressAnnotation),
		WatchLabel: Intern(o.GetLabels()[clusterv1.WatchLabel]),
		Deleting:   o.GetDeletionTimestamp() != nil,
		Moved:      ending.IsMoved(o),
		Own:        own,
	}
	out.HasFinalizer, out.Others = split(o.GetFinalizers(), k.Traits().Finalizer)
	return out
}

// MayBeTried reports whether a job for the claimant may begin: none is under way, and what failed last has waited.
func (c *Claimant) MayBeTried(now time.Time) bool { return !c.Busy && !c.RetryAt.After(now) }

// OwnerCluster is the UID of the Cluster that alone owns a claimant, whose address so is one of the Cluster itself; empty:
// none does.
func (c *Claimant) OwnerCluster() types.UID {
	if own, may := c.Own.(interface{ OwnerCluster() types.UID }); may {
		return own.OwnerCluster()
	}
	return ""
}

// ShownRefusal is the refusal that the claimant's status shows, the zero one if none.
func (c *Claimant) ShownRefusal() Refusal {
	if c.Status == nil {
		return Refusal{}
	}
	return c.Status.Refusal
}

// Object is an empty object with the kind and the name of a claimant.
func (c *Claimant) Object() Object {
	return Named(c.Kind.Object(), c.Owner.Namespace, c.Owner.Name)
}

// Subject is the object of a claimant, for events.
func (c *Claimant) Subject() Object {
	out := c.Object()
	out.SetUID(c.Owner.UID)
	out.SetResourceVersion(c.Version)
	return out
}

// Named gives an object a namespace and a name, and returns it.
func Named(o Object, namespace, name string) Object {
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// HasRecord reports whether the claimant has a record of a manager's: it is written together with our
// finalizer. Users can write the annotation too.
func (c *Claimant) HasRecord() bool { return c.Record.IsValid() && c.HasFinalizer }

// Intern returns an equal string that is kept once: thousands of claims have few namespaces.
func Intern(s string) string { return unique.Make(s).Value() }

// split reports whether our finalizer is among those of an object, and returns the rest.
func split(finalizers []string, ours string) (has bool, others []string) {
	for _, f := range finalizers {
		if f == ours {
			has = true
		} else {
			others = append(others, f)
		}
	}
	return has, others
}

// HandsOutPrefixes reports whether the pool hands out prefixes instead of addresses.
func (m *Memory) HandsOutPrefixes() bool {
	if m.Layout.Is6() {
		return m.Layout.UnitBits() < 128
	}
	return m.Layout.UnitBits() < 32
}

// RecordOf is the text of a record: an address, or a prefix where the pool hands out prefixes.
func (m *Memory) RecordOf(r netipx.IPRange) string {
	if m.Layout != nil && m.Layout.UnitBits() < r.From().BitLen() {
		return poolutil.FormatRange(r)
	}
	return r.From().String()
}

// ParseRecord reads an address or a prefix.
func ParseRecord(s string) (netipx.IPRange, bool) {
	if s == "" || strings.Contains(s, "-") {
		return netipx.IPRange{}, false
	}
	r, err := poolutil.ParseRange(s)
	return r, err == nil
}
