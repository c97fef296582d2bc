package tenancy

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// AllocationRequest is the state of a Cluster that needs a block.
type AllocationRequest struct {
	// Config names the ProviderConfig of the Cluster, for messages.
	Config types.NamespacedName
	// Count is the number of addresses that the Cluster needs, as ComputeInitialSize returns it.
	Count int32
	// Pools are the pools of the ProviderConfig, in the order of OrderPoolRefs.
	Pools []Pool
	// Current is the allocation that exists under the Cluster's block name and belongs to the Cluster, nil if there
	// is none.
	Current *CurrentAllocation
	// Attempts is the parsed tried-pools annotation of the Cluster.
	Attempts []PoolAttempt
}

// Action is what the controller does for a Cluster.
type Action string

const (
	// ActionDone means that the Cluster has what it asked for.
	ActionDone Action = "Done"
	// ActionWait means that something in progress ends by itself: a pool decides, or a deletion completes.
	ActionWait Action = "Wait"
	// ActionCreate means that the controller creates an allocation of Decision.Pool.
	ActionCreate Action = "Try"
	// ActionReplace means that the controller deletes the current allocation, to ask Decision.Pool next, or no pool
	// if that is empty. The allocation may have been granted since it was read: the delete carries its
	// resourceVersion. The next step is decided again when the allocation is gone.
	ActionReplace Action = "Replace"
	// ActionExhausted means that no pool has what the Cluster asks for. An allocation that failed stays: the
	// allocator serves it when its pool changes. When another pool has room, the next decision differs.
	ActionExhausted Action = "Exhausted"
)

// Decision is the next action, and the NetworkReady condition until then.
type Decision struct {
	// Action is the action to take.
	Action Action
	// Pool is the pool to ask, if Action is ActionCreate or ActionReplace.
	Pool v1alpha1.PoolReference
	// Count is the number of addresses to ask for, if Action is ActionCreate or ActionReplace.
	Count int32
	// Attempts is the new value of the tried-pools annotation of the Cluster. It is written before the action is
	// taken: otherwise a crash between the two would begin again with the first pool.
	Attempts []PoolAttempt
	// Reason and Message are those of the NetworkReady condition.
	Reason, Message string
}

// DecideInitialBlock decides which pool the first block of a Cluster comes from.
//
// Pools are asked one after the other by an allocation, and only its failure moves on to the next pool: what a pool
// reports as available may be fragmented, or already taken. Missing and closed pools are skipped; if one opens before
// the Cluster is served, it is asked then. Settling pools are waited for. When all have failed, the Cluster returns
// to the first pool and waits there. It moves from there to the first pool that reports a large enough free block,
// and returns if that report was wrong. A pool that refused for a reason other than room is asked once. The Cluster
// moves only on a failure or a report of a pool, so that nothing is written while nothing changes.
//
// A granted block stays, whatever happens to the settings later; so does one that a user created. A block that is not
// granted yet is requested again if the desired size of the Cluster has changed.
func DecideInitialBlock(s AllocationRequest) Decision {
	at := s.Current
	switch {
	case at != nil && at.Deleting:
		return Decision{Action: ActionWait, Attempts: s.Attempts, Reason: v1alpha1.ReconcilingReason, Message: "the earlier allocation is being released"}
	case at != nil && at.Phase == v1alpha1.AllocationAllocated:
		return Decision{Action: ActionDone, Reason: v1alpha1.ReadyReason, Message: at.Message}
	case at != nil && at.Manual:
		return at.waitDecision(nil)
	case at != nil && s.Count <= 0:
		return Decision{Action: ActionReplace, Reason: v1alpha1.ReconcilingReason, Message: "the earlier allocation is no longer needed"}
	case s.Count <= 0:
		return Decision{Action: ActionDone, Reason: v1alpha1.ReadyReason, Message: "the Cluster begins without load-balancer addresses, because its initial size is 0"}
	case len(s.Pools) == 0:
		return Decision{Action: ActionExhausted, Reason: v1alpha1.ValidationFailedReason, Message: noPoolsMessage}
	}
	return newPoolFailover(s).decideAction()
}

// poolFailover is the state of one choice of a pool.
type poolFailover struct {
	AllocationRequest
	currentPool      *Pool         // pool of the list that is asked for the current count, nil if there is none
	failedAttempts   []PoolAttempt // failed attempts at pools of the list that apply to the current count
	isGrowth         bool          // whether the block is added on demand
	recordedAttempts []PoolAttempt // attempts to record: failedAttempts, and for growth also those with larger counts
}

func newPoolFailover(s AllocationRequest) *poolFailover {
	f := &poolFailover{AllocationRequest: s}
	for _, a := range s.Attempts {
		if f.findPool(a.Pool) != nil && a.Count == s.Count {
			f.failedAttempts = WithAttempt(f.failedAttempts, a)
		}
	}
	f.addCurrentAttempt()
	f.recordedAttempts = f.failedAttempts
	return f
}

// addCurrentAttempt records which pool is being asked and, if its allocation has failed, the attempt.
func (f *poolFailover) addCurrentAttempt() {
	if f.Current == nil || f.Current.Count != f.Count {
		return
	}
	f.currentPool = f.findPool(withDefaultKind(f.Current.Pool))
	if f.currentPool != nil && f.Current.Phase == v1alpha1.AllocationFailed {
		f.failedAttempts = WithAttempt(f.failedAttempts, PoolAttempt{Pool: f.currentPool.Ref, Count: f.Count, Reason: f.Current.Reason})
	}
}

func (f *poolFailover) decideAction() Decision {
	if d, found := f.nextPool(); found {
		return d
	}
	return f.returnToFirstPool()
}

// nextPool returns the decision to ask or to wait for a pool. The result is false if every pool that may grant was
// asked and had no room.
func (f *poolFailover) nextPool() (Decision, bool) {
	pending := f.currentPool != nil && f.Current.Phase != v1alpha1.AllocationFailed
	if pending && f.currentPool.MayGrant() {
		return f.Current.waitDecision(f.recordedAttempts), true
	}
	if p := f.firstPool(func(p Pool) bool { return p.MayGrant() && f.attemptForPool(p) == nil }); p != nil {
		return f.tryPool(p), true
	}
	room := func(p Pool) bool { return f.hadNoRoom(p) && p.hasRoomFor(f.Count) }
	if !pending && f.currentPool != nil && room(*f.currentPool) {
		return f.Current.waitDecision(f.recordedAttempts), true
	}
	if p := f.firstPool(room); p != nil {
		return f.tryPool(p), true
	}
	return Decision{}, false
}

// returnToFirstPool returns to the first pool, to wait there.
func (f *poolFailover) returnToFirstPool() Decision {
	if p := f.firstPool(func(p Pool) bool { return p.MayGrant() && f.hadNoRoom(p) }); p != nil && p != f.currentPool {
		return f.tryPool(p)
	}
	return f.exhaustedDecision()
}

// tryPool returns the decision to ask a pool. An existing allocation is replaced first, to free its name.
func (f *poolFailover) tryPool(p *Pool) Decision {
	d := Decision{Action: ActionCreate, Pool: p.Ref, Count: f.Count, Attempts: f.recordedAttempts, Reason: v1alpha1.ReconcilingReason, Message: "asking " + describePool(p.Ref)}
	if f.Current != nil {
		d.Action = ActionReplace
	}
	return d
}

// firstPool returns the first pool, in order, for which ok returns true, nil if there is none.
func (f *poolFailover) firstPool(ok func(Pool) bool) *Pool {
	i := slices.IndexFunc(f.Pools, ok)
	if i < 0 {
		return nil
	}
	return &f.Pools[i]
}

func (f *poolFailover) findPool(ref v1alpha1.PoolReference) *Pool {
	return f.firstPool(func(p Pool) bool { return p.Ref == ref })
}

// attemptForPool returns the failed attempt at a pool, nil if there is none.
func (f *poolFailover) attemptForPool(p Pool) *PoolAttempt {
	i := slices.IndexFunc(f.failedAttempts, func(a PoolAttempt) bool { return a.Pool == p.Ref })
	if i < 0 {
		return nil
	}
	return &f.failedAttempts[i]
}

// hadNoRoom reports whether a pool was asked and failed for lack of room.
func (f *poolFailover) hadNoRoom(p Pool) bool {
	a := f.attemptForPool(p)
	return a != nil && !a.isRefusal()
}
