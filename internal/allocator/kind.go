package allocator

import (
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Object is an object of the API server.
type Object interface {
	metav1.Object
	runtime.Object
}

// kind is what differs between the kinds of objects that ask a pool for addresses. Its methods are pure: they read a
// pool that is locked, change nothing, and return what is to be done.
type kind interface {
	// traits are what is true of all claimants of the kind.
	traits() *traits
	// object is an empty object of the kind.
	object() Object
	// poolOf returns the pool that an object names: one without a kind, if that is none of ours. False: the object is
	// of another kind.
	poolOf(o Object) (pools.Key, bool)
	// of returns what is remembered of an object of the kind.
	of(o Object) *claimant
	// keep carries over what the API server does not hold from what was remembered of a claimant before.
	keep(c, old *claimant)

	// holds are the ranges that count as taken because of a claimant, besides its grant: what is on record with it, and
	// what its status shows.
	holds(p *memory, c *claimant) (record, shown netipx.IPRange)
	// need says what is to be done for a claimant that lives.
	need(p *memory, c *claimant) need
	// confirmed reports whether what a claimant was granted is on record with it (R6).
	confirmed(p *memory, c *claimant) bool
	// releasable is what the end of a claimant makes free.
	releasable(p *memory, c *claimant) netipx.IPRange

	// designated finds what is meant for a claimant. Nothing at all: any that fits.
	designated(p *memory, c *claimant) (netipx.IPRange, *refusal)
	// size is the number of addresses in a row that a claimant asks for; 0: whatever one claimant of the pool gets.
	size(p *memory, c *claimant) int64
	// noRoom says that nothing is free that a claimant would take.
	noRoom(p *memory, c *claimant) *refusal

	// serve returns the next request that brings a claimant forward which has a grant, or something already.
	serve(p *memory, c *claimant, t *attempt) step
	// release returns the next request that gives up what a deleted claimant has.
	release(p *memory, c *claimant, t *attempt) step
	// refuse writes into the status of a claimant why it gets nothing.
	refuse(c *claimant, no refusal) step

	// use says what a claimant has its addresses for, and since when.
	use(c *claimant) (Use, time.Time)
}

// traits are what is true of all claimants of a kind.
type traits struct {
	// name is the kind of the objects, as it stands in status.allocator.inFlight.
	name string
	// finalizer is ours on them.
	finalizer string
	// attaches: what they are granted becomes an object of the same name (R1).
	attaches attacher
	// counted: they count towards the quota of their Cluster. pinned: preAllocations name them.
	counted, pinned bool
	// needsCluster: nothing is granted before their Cluster exists. endsWithCluster: they are deleted when it is gone.
	needsCluster, endsWithCluster bool
	// tellsOverlap: their status says who else has some of their addresses.
	tellsOverlap bool
}

// attacher is what differs between the kinds of objects that show what a claimant was granted.
type attacher interface {
	// kind is that of the objects, finalizer ours on them.
	kind() string
	finalizer() string
	object() Object
	// poolOf returns the pool that an object names: one without a kind, if that is none of ours. False: the object is
	// of another kind.
	poolOf(o Object) (pools.Key, bool)
	// of returns what is remembered of an object.
	of(o Object) *attached
	// takesUp reports whether a claimant takes up an object of its name that nobody made for it.
	takesUp(p *memory, c *claimant, a *attached) bool
	// taken says that an object of another pool has the name of a claimant.
	taken(o Object) *refusal
}

// need is what is to be done for a claimant.
type need int

const (
	// needNothing: it has all it wants.
	needNothing need = iota
	// needGrant: it waits for addresses.
	needGrant
	// needWrite: something is to be written for it.
	needWrite
	// needRelease: it is deleted, and has something.
	needRelease
)

// need says what is to be done for a claimant.
func (p *memory) need(c *claimant) need {
	a := p.attachedTo(c)
	switch {
	case c.moved:
		return needNothing
	case !c.deleting:
		return c.kind.need(p, c)
	case c.hasFinalizer, a != nil && a.claimantUID == c.owner.UID, p.grants[c.owner.UID] != nil:
		return needRelease
	}
	return needNothing
}

// kindOf is the kind of that name: the first one, if none has it.
func (p *memory) kindOf(name string) kind {
	for _, k := range p.kinds {
		if k.traits().name == name {
			return k
		}
	}
	return p.kinds[0]
}
