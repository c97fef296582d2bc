package grants

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Moves has what clusterctl is deleting here after it has moved it to another management cluster, until that is gone,
// and when the manager next removes our finalizers.
type Moves struct {
	// movingClaimants are the claimants that clusterctl is moving to another cluster now.
	movingClaimants map[types.UID]*Claimant
	// movingAddresses are the IPAddresses that clusterctl is moving. unfinishedMoves has the retry state of the end
	// of each move, for both.
	movingAddresses map[types.UID]*Address
	unfinishedMoves map[types.UID]*term.Retry

	claimants *Claimants
	base      *BasePool
	addresses *Addresses
	space     *Space
}

// UnfinishedMoves are the objects from which the manager should remove our finalizers now. Wait is how long until the
// next ones are due.
type UnfinishedMoves struct {
	Claimants []types.UID
	Addresses []*Address
	Wait      time.Duration
}

// UnfinishedMoves returns the objects that clusterctl has left behind in a move, at most room of them. Each is
// returned again after a while, because the removal of its finalizers may fail.
func (ms *Moves) UnfinishedMoves(now time.Time, room int) (out UnfinishedMoves) {
	if len(ms.movingClaimants)+len(ms.movingAddresses) == 0 {
		clear(ms.unfinishedMoves)
		return out
	}
	held := ms.recordedHeldRanges()
	due := func(uid types.UID) bool {
		left := ms.unfinishedMoves[uid]
		if left == nil {
			left = &term.Retry{RetryAt: now.Add(ending.MoveGracePeriod)}
			ms.unfinishedMoves[uid] = left
		}
		isDue := !left.RetryAt.After(now)
		switch {
		case isDue && room <= 0:
			return false // the end of a job enqueues the pool
		case isDue:
			room--
			left.RetryAt = term.RetryTimeAfter(now, ending.MoveGracePeriod)
		}
		out.Wait = term.MinWait(out.Wait, left.RetryAt.Sub(now))
		return isDue
	}
	for uid, c := range ms.movingClaimants {
		if c.canFinishMove(held) && c.IsDue(now) && due(uid) {
			out.Claimants = append(out.Claimants, uid)
		}
	}
	for uid, a := range ms.movingAddresses {
		if a.HasFinalizer && (!a.IP.IsValid() || held.containsRange(ms.space.Ledger.UnitRange(a.IP))) && due(uid) {
			out.Addresses = append(out.Addresses, a)
		}
	}
	for uid := range ms.unfinishedMoves {
		if ms.movingClaimants[uid] == nil && ms.movingAddresses[uid] == nil {
			delete(ms.unfinishedMoves, uid)
		}
	}
	return out
}

// RecordMoveFinish records the result of removing our finalizer from an IPAddress that clusterctl has moved. It
// returns when that is retried, or the zero time if it succeeded.
func (ms *Moves) RecordMoveFinish(uid types.UID, err error, now time.Time) (again time.Time) {
	left := ms.unfinishedMoves[uid]
	switch {
	case left == nil:
	case err == nil:
		left.Failures = 0
	default:
		left.RetryAt = term.RetryTimeAfter(now, max(ending.MoveGracePeriod, term.NextRetryTime(now, left.Failures, 0, err).Sub(now)))
		left.Failures++
		return left.RetryAt
	}
	return again
}

// CanFinishMove reports whether our finalizers may be removed from a claimant that clusterctl has moved.
func (ms *Moves) CanFinishMove(c *Claimant) bool {
	return c.Moved && c.canFinishMove(ms.recordedHeldRanges())
}

func (c *Claimant) canFinishMove(held heldRangeSet) bool {
	return c.Moved && len(c.foreignFinalizers()) < len(c.OtherFinalizers)+boolToInt(c.HasFinalizer) && (!c.HasRecord() || held.containsRange(c.RecordedRange))
}

// FinishMoveStep returns the step that removes our finalizers from a claimant that clusterctl has moved.
func FinishMoveStep(c *Claimant) Step {
	return Step{Call: Call{Verb: PatchObject, Purpose: "moved"}, MetadataPatch: map[string]any{"finalizers": c.foreignFinalizers()}}
}

// foreignFinalizers returns the finalizers of other controllers.
func (c *Claimant) foreignFinalizers() []string {
	out := []string{}
	for _, f := range c.OtherFinalizers {
		if !strings.HasPrefix(f, ending.FinalizerPrefix) {
			out = append(out, f)
		}
	}
	return out
}

func boolToInt(value bool) int {
	if value {
		return 1
	}
	return 0
}

// heldRangeSet is the set of ranges that a pool holds: sorted, and no two of them adjacent. A nil set holds
// everything.
type heldRangeSet []netipx.IPRange

// recordedHeldRanges returns the ranges that the status of the pool records as held. If the pool does not exist,
// everything is held, because nothing is granted.
func (ms *Moves) recordedHeldRanges() heldRangeSet {
	if ms.base.Pool == nil {
		return nil
	}
	var held netipx.IPSetBuilder
	for _, h := range ms.base.Pool.PoolStatus().Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			held.AddRange(r)
		}
	}
	set, err := held.IPSet()
	if err != nil {
		return heldRangeSet{} // no range is known to be held
	}
	return append(heldRangeSet{}, set.Ranges()...)
}

// containsRange reports whether the set holds all of a range.
func (set heldRangeSet) containsRange(r netipx.IPRange) bool {
	if set == nil {
		return true
	}
	after, found := slices.BinarySearchFunc(set, r.From(), func(h netipx.IPRange, ip netip.Addr) int { return h.From().Compare(ip) })
	if found {
		after++
	}
	return after > 0 && !set[after-1].To().Less(r.To())
}

// classifyAddress records whether an address object has a claimant, and whether clusterctl is moving it. It reports
// whether the object is an orphan.
func (ms *Moves) classifyAddress(a *Address) bool {
	if a.moved {
		ms.movingAddresses[a.UID] = a
	} else {
		delete(ms.movingAddresses, a.UID) // the move was interrupted
	}
	if c := ms.claimants.ByUID[a.ClaimantUID]; c != nil || a.moved {
		delete(ms.addresses.Orphans, a.Key())
		return false
	}
	if s := ms.addresses.Orphans[a.Key()]; s != nil {
		s.Address = a
	} else {
		ms.addresses.Orphans[a.Key()] = &Orphan{Address: a}
	}
	return true
}
