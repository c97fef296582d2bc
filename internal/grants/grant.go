package grants

import (
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Grant assigns a range to a claimant. It takes effect only once it is committed.
type Grant struct {
	Owner     ledger.Owner
	Range     netipx.IPRange
	Committed bool
	// CommitConfirmedAt is when the API server last confirmed a commit that contains the grant.
	CommitConfirmedAt time.Time
	// Inherited reports whether the grant was in flight when this manager took the pool over.
	Inherited bool
	// JobStarted reports whether the grant was handed to a job, so that writes for it were sent; outcomeUnknown
	// reports whether one of them got no conclusive answer.
	JobStarted, outcomeUnknown bool
	// Confirmed reports whether the IPAddress of the grant is confirmed, or its claim cannot use it any more (R6).
	// The grant leaves the grants in flight with the next commit.
	Confirmed bool
}

// IsWritable reports whether a job may write for the grant (R6). It may not if the grant is confirmed, because the
// commit that ends the grant may be in flight.
func (g *Grant) IsWritable(now time.Time) bool {
	return g.Committed && !g.Confirmed && !g.isStale(now)
}

// isStale reports whether another commit has to prove that the grant is still valid before a job may write for it:
// its last confirmation is too old, or it was inherited and not confirmed since.
func (g *Grant) isStale(now time.Time) bool {
	return g.Committed && !g.Confirmed && term.ElapsedTime(g.CommitConfirmedAt, now) > term.RequestTimeout
}

// InFlightFromStatus returns the grants in flight that a status has on record.
func InFlightFromStatus(status *v1alpha1.NetworkPoolStatus) []v1alpha1.Grant {
	if status.Allocator == nil {
		return nil
	}
	return status.Allocator.InFlight
}
