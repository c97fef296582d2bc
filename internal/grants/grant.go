package grants

import (
	"cmp"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

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

// HasStaleGrants reports whether a grant is too old to write for without another commit, for example because the
// process was paused, and should be written for now. That commit confirms the grant, or shows that the term is over.
// The age is by the monotonic or the wall clock, whichever shows more.
func (m *PoolState) HasStaleGrants(now time.Time) bool {
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; g.isStale(now) && (c == nil || (c.MayStartJob(now) && !c.servingBlocked)) {
			return true
		}
	}
	return false
}

// HasBlockingGrant reports whether the next commit ends a grant that blocks another claimant or a release: the
// release of its own claimant or, if that is gone, the claimants that wait for an address.
func (m *PoolState) HasBlockingGrant() bool {
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; g.Confirmed && ((c != nil && c.Deleting) || (c == nil && m.PendingClaimants.Len() > 0)) {
			return true
		}
	}
	return false
}

// HasConfirmedGrant reports whether the next commit ends a grant.
func (m *PoolState) HasConfirmedGrant() bool {
	for _, g := range m.Grants {
		if g.Confirmed {
			return true
		}
	}
	return false
}

// UnconfirmedGrantCount returns the number of grants that are not confirmed.
func (m *PoolState) UnconfirmedGrantCount() int {
	n := 0
	for _, g := range m.Grants {
		if !g.Confirmed {
			n++
		}
	}
	return n
}

// ActiveGrantCount returns the number of grants that are being written. A grant whose last attempt failed, or whose
// claimant is paused, does not count and delays no other.
func (m *PoolState) ActiveGrantCount() int {
	n := 0
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; !g.Confirmed && (c == nil || (c.Failures == 0 && !c.servingBlocked)) {
			n++
		}
	}
	return n
}

// EndBlockedGrants ends the grants of claimants that may not be served now, because their Cluster was paused
// meanwhile, if nothing was written for them. The next commit does not contain these grants any more, and the
// claimants wait like any other.
func (m *PoolState) EndBlockedGrants(admission AdmissionFunc) {
	for uid, g := range m.Grants {
		c := m.Claimants[uid]
		if c == nil || g.Confirmed {
			continue
		}
		if c.servingBlocked = admission(c).Wait; c.servingBlocked && g.Committed && !g.JobStarted && !g.Inherited {
			g.Confirmed = true
		}
	}
}

// EndGrant ends the grant of a deleted claimant that has nothing. No record can be written for it any more, so the
// grant ends with the next commit, and the release goes on after that.
func (m *PoolState) EndGrant(uid types.UID) {
	if g := m.Grants[uid]; g != nil {
		g.Confirmed = g.Confirmed || g.Committed
	}
}

// HasUnpublishedGrant reports whether a claimant has a grant that was never published, neither in its status nor in
// an IPAddress. A consumer's finalizer does not keep such a grant in flight. A record that was written stays.
func (m *PoolState) HasUnpublishedGrant(c *Claimant) bool {
	return m.Grants[c.Owner.UID] != nil && !c.StatusHasAddress && m.AddressFor(c) == nil
}

// confirmGrant confirms a committed grant whose claimant is gone, or has the granted range on record (R6).
func (m *PoolState) confirmGrant(uid types.UID) {
	g := m.Grants[uid]
	if g == nil || !g.Committed {
		return
	}
	c := m.Claimants[uid]
	g.Confirmed = g.Confirmed || c == nil || c.Kind.IsConfirmed(m, c)
}

// DropGrant removes a grant that is not on record any more.
func (m *PoolState) DropGrant(uid types.UID) {
	key := ledger.Key{Source: ledger.SourceGrant, UID: uid}
	if g := m.Grants[uid]; g != nil && !g.Committed {
		m.Ledger.RetractFact(key) // no claimant ever had the range
	} else {
		m.Ledger.RemoveFact(key)
	}
	delete(m.Grants, uid)
	if c := m.Claimants[uid]; c != nil {
		m.QueueClaimant(c)
	}
}

// inFlightGrants returns the grants that are not confirmed, in the order of their addresses.
func (m *PoolState) inFlightGrants() []v1alpha1.Grant {
	var out []v1alpha1.Grant
	var ordered []*Grant
	for _, g := range m.Grants {
		if !g.Confirmed {
			ordered = append(ordered, g)
		}
	}
	slices.SortFunc(ordered, func(a, b *Grant) int {
		return cmp.Or(a.Range.From().Compare(b.Range.From()), cmp.Compare(a.Owner.UID, b.Owner.UID))
	})
	for _, g := range ordered {
		out = append(out, v1alpha1.Grant{
			Kind: g.Owner.Kind, Namespace: g.Owner.Namespace, Name: g.Owner.Name, UID: string(g.Owner.UID),
			First: g.Range.From().String(), Last: g.Range.To().String(),
		})
	}
	return out
}

// InFlightFromStatus returns the grants in flight that a status has on record.
func InFlightFromStatus(status *v1alpha1.NetworkPoolStatus) []v1alpha1.Grant {
	if status.Allocator == nil {
		return nil
	}
	return status.Allocator.InFlight
}
