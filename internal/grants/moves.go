package grants

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ending"
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
	unfinishedMoves map[types.UID]*unfinishedMove

	claimants *Claimants
	base      *Base
	addresses *Addresses
	space     *Space
}

// UnfinishedMoves returns the objects that clusterctl has left behind in a move, at most room of them. Each is
// returned again after a while, because the removal of its finalizers may fail.
func (ms *Moves) UnfinishedMoves(now time.Time, room int) (out UnfinishedMoves) {
	if len(ms.movingClaimants)+len(ms.movingAddresses) == 0 {
		clear(ms.unfinishedMoves)
		return out
	}
	held := ms.base.recordedHeldRanges()
	due := func(uid types.UID) bool {
		left := ms.unfinishedMoves[uid]
		if left == nil {
			left = &unfinishedMove{retryAt: now.Add(ending.MoveGracePeriod)}
			ms.unfinishedMoves[uid] = left
		}
		isDue := !left.retryAt.After(now)
		switch {
		case isDue && room <= 0:
			return false // the end of a job enqueues the pool
		case isDue:
			room--
			left.retryAt = term.RetryTimeAfter(now, ending.MoveGracePeriod)
		}
		out.Wait = MinWait(out.Wait, left.retryAt.Sub(now))
		return isDue
	}
	for uid, c := range ms.movingClaimants {
		if c.canFinishMove(held) && c.MayStartJob(now) && due(uid) {
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
		left.failures = 0
	default:
		left.retryAt = term.RetryTimeAfter(now, max(ending.MoveGracePeriod, term.NextRetryTime(now, left.failures, 0, err).Sub(now)))
		left.failures++
		return left.retryAt
	}
	return again
}

// classifyAddress records whether an address object has a claimant, and whether clusterctl is moving it. It reports
// whether the object is an orphan.
func (ms *Moves) classifyAddress(a *Address) bool {
	if a.moved {
		ms.movingAddresses[a.UID] = a
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
