package grants

import (
	"sync"
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an object of the API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// ClaimantKind is the behavior that differs between the kinds of objects that request addresses from a pool. Its
// methods are pure: they read the state of a locked pool, change nothing, and return what to do.
type ClaimantKind interface {
	ResourceKind
	// Traits returns the properties that all claimants of the kind have in common.
	Traits() *KindTraits
	// NewClaimant returns the state of an object of the kind.
	NewClaimant(o Object) *Claimant
	// CarryOverState copies the state that the API server does not store from the previous state of a claimant.
	CarryOverState(c, old *Claimant)

	// TakenRanges returns the ranges that are taken because of a claimant, apart from its grant: record is the range
	// on record with it, and shown is the range in its status.
	TakenRanges(m *Inventory, c *Claimant) (record, shown netipx.IPRange)
	// NeedFor returns what has to be done for a claimant that is not being deleted.
	NeedFor(m *Inventory, c *Claimant) Need
	// IsConfirmed reports whether the grant of a claimant is on record with it (R6).
	IsConfirmed(m *Inventory, c *Claimant) bool
	// ReleasableRange returns the range that becomes free with the end of a claimant.
	ReleasableRange(m *Inventory, c *Claimant) netipx.IPRange

	// DesignatedRange returns the range that is meant for a claimant, or why the claimant cannot have it. With
	// neither, any range that fits will do.
	DesignatedRange(m *Inventory, c *Claimant) (netipx.IPRange, *Refusal)
	// RequestedShape returns the shape of the range that a claimant requests if no range is meant for it.
	RequestedShape(m *Inventory, c *Claimant) RangeShape
	// ExhaustedRefusal returns the refusal for a claimant that finds no free range that fits.
	ExhaustedRefusal(m *Inventory, c *Claimant) *Refusal

	// NextServeStep returns the next step for a claimant that has a grant, or a range already.
	NextServeStep(m *Inventory, c *Claimant, t *Attempt) Step
	// NextReleaseStep returns the next step that releases the range of a deleted claimant.
	NextReleaseStep(m *Inventory, c *Claimant, t *Attempt) Step
	// RefusalStep returns the step that writes a refusal into the status of a claimant.
	RefusalStep(c *Claimant, refusal Refusal) Step

	// RangeUse returns what a claimant uses its addresses for, and since when.
	RangeUse(c *Claimant) (RangeUse, time.Time)
}

// OwnerTrackingKind is a kind whose claimants end with their owner, and whose status shows whether that owner was
// seen.
type OwnerTrackingKind interface {
	ClaimantKind
	// OwnerSeenCondition returns the condition that shows a state of the owner, or nil if there is nothing to show.
	OwnerSeenCondition(c *Claimant, seen OwnerSeen) *metav1.Condition
}

// KindTraits are the properties that all claimants of a kind have in common.
type KindTraits struct {
	// Name is the kind of the objects, as in status.allocator.inFlight.
	Name string
	// Finalizer is the finalizer that the manager puts on the objects.
	Finalizer string
	// AddressKind is the kind of the address object that each grant of a claimant becomes, which has the name of the
	// claimant (R1). It is nil for a kind that publishes its range in its own status.
	AddressKind AddressKind
	// CountsTowardsQuota reports whether the claimants count towards the quota of their Cluster; HasNamespaceQuota
	// reports whether they count towards the quota of their namespace in the pool; AllowsPreAllocation reports
	// whether spec.preAllocations apply to them.
	CountsTowardsQuota, HasNamespaceQuota, AllowsPreAllocation bool
	// NeedsCluster reports whether nothing is granted before the Cluster of a claimant exists; DeletedWithOwner
	// reports whether a claimant is deleted when its owner, a Cluster or a carved pool, is gone.
	NeedsCluster, DeletedWithOwner bool
	// ReportsOverlap reports whether the status of a claimant names another owner of some of its addresses.
	ReportsOverlap bool
}

// RangeShape is the shape of the range that a claimant requests: a number of consecutive addresses, or a prefix. The
// zero value is one unit of the pool.
type RangeShape struct {
	Count        int64
	PrefixLength int
}

// AddressKind is the behavior that differs between the kinds of address objects.
type AddressKind interface {
	ResourceKind
	// KindName returns the kind of the objects, and Finalizer returns our finalizer on them.
	KindName() string
	Finalizer() string
	// NewAddress returns the state of an object.
	NewAddress(o Object) *Address
	// CanAdoptManual reports whether a claimant may adopt an object of its name that no controller created for it.
	CanAdoptManual(m *Inventory, c *Claimant, a *Address) bool
	// NameTakenRefusal returns the refusal for a claimant whose name an object of another pool has.
	NameTakenRefusal(o Object) *Refusal
}

// Need is the kind of work that a claimant needs.
type Need int

const (
	// NeedNothing means that the claimant has everything.
	NeedNothing Need = iota
	// NeedGrant means that the claimant waits for a grant.
	NeedGrant
	// NeedWrite means that something has to be written for the claimant.
	NeedWrite
	// NeedRelease means that the claimant is being deleted and has something to release.
	NeedRelease
)

// ResourceKind is a kind of objects that name a pool: claimants, or their address objects.
type ResourceKind interface {
	// NewObject returns an empty object of the kind.
	NewObject() Object
	// PoolKeyFor returns the pool that an object names. The key has no kind if the object names a kind of pool that
	// is not ours. It reports false if the object is of another kind.
	PoolKeyFor(o Object) (pools.Key, bool)
	// SetPoolRef makes an object name a pool.
	SetPoolRef(o Object, pool pools.Key)
	// UsesMirroredPool reports whether an object names a pool of the in-cluster provider, and so is served by its
	// mirror.
	UsesMirroredPool(o Object) bool
}

// ListedObjects are the objects of one pool in a consistent list. The lists of several kinds add to it concurrently.
type ListedObjects struct {
	mu        sync.Mutex
	Claimants []*Claimant
	Addresses []*Address
	Blocks    []*Block
}

// AddBlock adds a block of the pool.
func (l *ListedObjects) AddBlock(b *Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Blocks = append(l.Blocks, b)
}

// AddObject adds an object of a kind.
func (l *ListedObjects) AddObject(r ResourceKind, o Object) {
	switch k := r.(type) {
	case ClaimantKind:
		c := k.NewClaimant(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Claimants = append(l.Claimants, c)
	case AddressKind:
		a := k.NewAddress(o)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.Addresses = append(l.Addresses, a)
	}
}
