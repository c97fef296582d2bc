package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Situation is what is known of a Cluster that wants a block.
type Situation struct {
	// Config names the ProviderConfig of the Cluster, in messages.
	Config types.NamespacedName
	// Count of addresses that it is to have, as Size says.
	Count int32
	// Pools of the ProviderConfig, in the order of Order.
	Pools []Pool
	// Standing is the allocation that exists under the Cluster's Name and is the Cluster's, nil if none.
	Standing *Standing
	// Tried is what the tried-pools annotation of the Cluster says.
	Tried []Attempt
}

// Action is what is to be done for a Cluster.
type Action string

const (
	// Done means that the Cluster has what it asked for.
	Done Action = "Done"
	// Wait means that what goes on ends by itself: a pool answers, or a deletion ends.
	Wait Action = "Wait"
	// Try means that an allocation is to be created that asks Decision.Pool.
	Try Action = "Try"
	// Replace means that the standing allocation is to be deleted, to ask Decision.Pool next, or nobody where
	// that is empty. It may have been granted since it was read: the delete carries its resourceVersion. What
	// is next is asked again when it is gone.
	Replace Action = "Replace"
	// Exhausted means that no pool has what the Cluster asks for. An allocation that failed stays: the
	// allocator serves it when its pool changes. When another pool does, Next has another answer.
	Exhausted Action = "Exhausted"
)

// Decision is what to do, and what the NetworkReady condition says meanwhile.
type Decision struct {
	// Action to take.
	Action Action
	// Pool to ask, where Action is Try or Replace.
	Pool v1alpha1.PoolReference
	// Count of addresses to ask for, where Action is Try or Replace.
	Count int32
	// Tried is what the tried-pools annotation of the Cluster is to say from now on. It is written before the
	// action is taken: otherwise a crash between the two would begin again with the first pool.
	Tried []Attempt
	// Reason and Message of the NetworkReady condition.
	Reason, Message string
}

// Next decides which pool a Cluster's block comes from.
//
// Each pool in turn is asked with an allocation, and only its failure makes the next one's turn: what a pool reports as
// available may be in pieces, or gone. Pools that are missing or closed are passed over; if they open later, before the
// Cluster is served, it is their turn then. Pools that settle are waited for. When all have failed, the Cluster goes
// back to the first and waits. From there it moves to the first pool that reports a free block that is large enough,
// and home again if that was wrong. A pool that refused for another reason than room is asked once. It moves only when
// a failure or a pool's report gives a reason to, so that nothing is written while nothing changes.
//
// A block that was given stays, whatever became of the settings since; so does what a person made. A block that was not
// given yet is asked for anew if its size is no longer what the Cluster is to have.
func Next(s Situation) Decision {
	at := s.Standing
	switch {
	case at != nil && at.Deleting:
		return Decision{Action: Wait, Tried: s.Tried, Reason: v1alpha1.ReconcilingReason, Message: "the earlier allocation is being released"}
	case at != nil && at.Phase == v1alpha1.AllocationAllocated:
		return Decision{Action: Done, Reason: v1alpha1.ReadyReason, Message: at.Message}
	case at != nil && at.Manual:
		return at.wait(nil)
	case at != nil && s.Count <= 0:
		return Decision{Action: Replace, Reason: v1alpha1.ReconcilingReason, Message: "the earlier allocation is not wanted any more"}
	case s.Count <= 0:
		return Decision{Action: Done, Reason: v1alpha1.ReadyReason, Message: "the Cluster begins without load-balancer addresses, because its initial size is 0"}
	case len(s.Pools) == 0:
		return Decision{Action: Exhausted, Reason: v1alpha1.ValidationFailedReason, Message: noPools}
	}
	return newFailover(s).decide()
}

// failover is a situation in which a pool must be chosen.
type failover struct {
	Situation
	at    *Pool     // that is asked for what is wanted; nil if none is, or none of the list
	tried []Attempt // that failed, of pools of the list, and count for what is wanted
	grows bool      // it is a block on demand
	known []Attempt // to be remembered: those, and in Grow what failed with more
}

func newFailover(s Situation) *failover {
	f := &failover{Situation: s}
	for _, a := range s.Tried {
		if f.find(a.Pool) != nil && a.Count == s.Count {
			f.tried = record(f.tried, a)
		}
	}
	f.ask()
	f.known = f.tried
	return f
}

// ask notes which pool is asked, and what it has answered.
func (f *failover) ask() {
	if f.Standing == nil || f.Standing.Count != f.Count {
		return
	}
	f.at = f.find(withKind(f.Standing.Pool))
	if f.at != nil && f.Standing.Phase == v1alpha1.AllocationFailed {
		f.tried = record(f.tried, Attempt{Pool: f.at.Ref, Count: f.Count, Reason: f.Standing.Reason})
	}
}

func (f *failover) decide() Decision {
	if d, found := f.next(); found {
		return d
	}
	return f.home()
}

// next finds the pool that is to be asked, or waited for. If none is, every pool that grants anything was
// asked and had nothing.
func (f *failover) next() (Decision, bool) {
	pending := f.at != nil && f.Standing.Phase != v1alpha1.AllocationFailed
	if pending && f.at.Grants() {
		return f.Standing.wait(f.known), true
	}
	if p := f.first(func(p Pool) bool { return p.Grants() && f.attempt(p) == nil }); p != nil {
		return f.try(p), true
	}
	room := func(p Pool) bool { return f.hadNoRoom(p) && p.room(f.Count) }
	if !pending && f.at != nil && room(*f.at) {
		return f.Standing.wait(f.known), true
	}
	if p := f.first(room); p != nil {
		return f.try(p), true
	}
	return Decision{}, false
}

// home goes back to the first pool, to wait there.
func (f *failover) home() Decision {
	if p := f.first(func(p Pool) bool { return p.Grants() && f.hadNoRoom(p) }); p != nil && p != f.at {
		return f.try(p)
	}
	return f.exhausted()
}

// try asks a pool, when the name of the allocation is free.
func (f *failover) try(p *Pool) Decision {
	d := Decision{Action: Try, Pool: p.Ref, Count: f.Count, Tried: f.known, Reason: v1alpha1.ReconcilingReason, Message: "asking " + describe(p.Ref)}
	if f.Standing != nil {
		d.Action = Replace
	}
	return d
}

// first finds the first pool, in order, of which ok is true.
func (f *failover) first(ok func(Pool) bool) *Pool {
	i := slices.IndexFunc(f.Pools, ok)
	if i < 0 {
		return nil
	}
	return &f.Pools[i]
}

func (f *failover) find(ref v1alpha1.PoolReference) *Pool {
	return f.first(func(p Pool) bool { return p.Ref == ref })
}

// attempt is what a pool answered, nil if it was not asked.
func (f *failover) attempt(p Pool) *Attempt {
	i := slices.IndexFunc(f.tried, func(a Attempt) bool { return a.Pool == p.Ref })
	if i < 0 {
		return nil
	}
	return &f.tried[i]
}

// hadNoRoom reports whether a pool was asked and failed for want of room.
func (f *failover) hadNoRoom(p Pool) bool {
	a := f.attempt(p)
	return a != nil && !a.refused()
}
