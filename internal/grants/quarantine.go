package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Quarantine decides whether the pool is closed because some addresses in use may be unknown (R10): after a takeover
// without a record, after a move or a restore, and while objects still arrive.
type Quarantine struct {
	// ManagementCluster is the id of the management cluster that this manager serves, empty if it is not known.
	ManagementCluster string
	Until             time.Time
	// startedAt is what the quarantine counts from, if that is an arrival or a move that was observed
	// (BeginQuarantine), and endsAt is its end. Both are by the clock of the API server, in whole seconds.
	startedAt, endsAt time.Time
	// Arrival is the state of the arrival of the objects that belong to the pool.
	Arrival ArrivalState
	// SoleWriterSince is when no write can be stored any more that another manager or provider sent before this term.
	SoleWriterSince time.Time
	// Adopting reports whether the pool adopts the objects of another allocator (R10); AdoptionEventPending reports
	// whether the event for that is still to be recorded: the write of the takeover has set the condition Ready, so
	// no commit changes it.
	Adopting, AdoptionEventPending bool

	base   *Base
	clock  *Clock
	record *Record
}

// wasMirrorRemoved reports whether an earlier mirror of the same pool was removed here by force. The ranges that it
// held because they were moved to another management cluster are not known.
func (q *Quarantine) wasMirrorRemoved() bool {
	from := q.base.Pool.GetAnnotations()[incluster.MovedFromAnnotation]
	return from != "" && from == q.ManagementCluster
}

// IsForeign reports whether another provider created the IPAddress of a claim while this manager served the pool.
// IPAddresses of this manager are created after a record. An IPAddress that a user created has no owners, and a
// restored one has its former owners. One that clusterctl moves arrives while the Cluster is paused, which the status
// of its claim shows.
func (q *Quarantine) IsForeign(c *Claimant, a *Address) bool {
	return a.UsesMirroredPool && !a.CreatedManually && a.ClaimantUID == c.Owner.UID && c.PauseMessage == "" && c.PublishedPauseMessage == "" &&
		!q.SoleWriterSince.IsZero() && a.CreatedUnix > q.clock.apiServerTime(q.SoleWriterSince).Unix()
}

// ShouldAdopt reports whether the range in the status of a claimant is trusted as a grant of another allocator: the
// pool is adopting, and the claimant has no record, which would have precedence (R10).
func (q *Quarantine) ShouldAdopt(c *Claimant) bool {
	return q.Adopting && !c.HasRecord() && c.PublishedRange.IsValid()
}
