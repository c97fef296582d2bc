package grants

import (
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an object of the API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is what differs between the kinds of objects that ask a pool for addresses. Its methods are pure: they read a
// pool that is locked, change nothing, and return what is to be done.
type Kind interface {
	Resource
	// Traits are what is true of all claimants of the kind.
	Traits() *Traits
	// Of returns what is remembered of an object of the kind.
	Of(o Object) *Claimant
	// Keep carries over what the API server does not hold from what was remembered of a claimant before.
	Keep(c, old *Claimant)

	// Holds are the ranges that count as taken because of a claimant, besides its grant: what is on record with it, and
	// what its status shows.
	Holds(m *Memory, c *Claimant) (record, shown netipx.IPRange)
	// Need says what is to be done for a claimant that lives.
	Need(m *Memory, c *Claimant) Need
	// Confirmed reports whether what a claimant was granted is on record with it (R6).
	Confirmed(m *Memory, c *Claimant) bool
	// Releasable is what the end of a claimant makes free.
	Releasable(m *Memory, c *Claimant) netipx.IPRange

	// Designated finds what is meant for a claimant. Nothing at all: any that fits.
	Designated(m *Memory, c *Claimant) (netipx.IPRange, *Refusal)
	// Shape is what a claimant asks for where nothing is meant for it.
	Shape(m *Memory, c *Claimant) Shape
	// NoRoom says that nothing is free that a claimant would take.
	NoRoom(m *Memory, c *Claimant) *Refusal

	// Serve returns the next request that brings a claimant forward which has a grant, or something already.
	Serve(m *Memory, c *Claimant, t *Attempt) Step
	// Release returns the next request that gives up what a deleted claimant has.
	Release(m *Memory, c *Claimant, t *Attempt) Step
	// Refuse writes into the status of a claimant why it gets nothing.
	Refuse(c *Claimant, no Refusal) Step

	// Use says what a claimant has its addresses for, and since when.
	Use(c *Claimant) (Use, time.Time)
}

// Sighter is a kind whose claimants end with what they are for, and say whether that was seen.
type Sighter interface {
	Kind
	// Sighted is the condition that says so; nil: there is nothing to say.
	Sighted(c *Claimant, says Sighting) *metav1.Condition
}

// Traits are what is true of all claimants of a kind.
type Traits struct {
	// Name is the kind of the objects, as it stands in status.allocator.inFlight.
	Name string
	// Finalizer is ours on them.
	Finalizer string
	// Attaches: what they are granted becomes an object of the same name (R1).
	Attaches Attacher
	// Counted: they count towards the quota of their Cluster; PerNamespace: towards what the pool gives their namespace.
	// Pinned: preAllocations name them.
	Counted, PerNamespace, Pinned bool
	// NeedsCluster: nothing is granted before their Cluster exists. EndsWithOwner: they are deleted when that, or
	// the pool that they are for, is gone.
	NeedsCluster, EndsWithOwner bool
	// TellsOverlap: their status says who else has some of their addresses.
	TellsOverlap bool
}

// Shape is what a claimant asks for: addresses in a row, or a prefix. The zero one is whatever one claimant of the pool
// gets.
type Shape struct {
	Count        int64
	PrefixLength int
}

// Attacher is what differs between the kinds of objects that show what a claimant was granted.
type Attacher interface {
	Resource
	// Kind is that of the objects, Finalizer ours on them.
	Kind() string
	Finalizer() string
	// Of returns what is remembered of an object.
	Of(o Object) *Attached
	// TakesUp reports whether a claimant takes up an object of its name that nobody made for it.
	TakesUp(m *Memory, c *Claimant, a *Attached) bool
	// Taken says that an object of another pool has the name of a claimant.
	Taken(o Object) *Refusal
}

// Need is what is to be done for a claimant.
type Need int

const (
	// NeedNothing is of a claimant that has all it wants.
	NeedNothing Need = iota
	// NeedGrant is of one that waits for addresses.
	NeedGrant
	// NeedWrite is of one for which something is to be written.
	NeedWrite
	// NeedRelease is of one that is deleted, and has something.
	NeedRelease
)

// Need says what is to be done for a claimant.
func (m *Memory) Need(c *Claimant) Need {
	a := m.AttachedTo(c)
	switch {
	case c.Moved:
		return NeedNothing
	case !c.Deleting:
		return c.Kind.Need(m, c)
	case c.HasFinalizer, a != nil && a.ClaimantUID == c.Owner.UID, m.Grants[c.Owner.UID] != nil:
		return NeedRelease
	}
	return NeedNothing
}

// kindOf is the kind of that name: the first one, if none has it.
func (m *Memory) kindOf(name string) Kind {
	for _, k := range m.kinds {
		if k.Traits().Name == name {
			return k
		}
	}
	return m.kinds[0]
}
