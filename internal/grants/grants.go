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

// Grants are the grants that are in flight, or about to be committed, by claimant; inherited ones too. Each is a fact
// in the ledger. There is none where this manager is not the holder. A grant that has ended stays until the commit
// that leaves it out.
type Grants struct {
	ByClaimant map[types.UID]*Grant

	claimants *Claimants
}

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
func (gs *Grants) HasStaleGrants(now time.Time) bool {
	for uid, g := range gs.ByClaimant {
		if c := gs.claimants.ByUID[uid]; g.isStale(now) && (c == nil || (c.IsDue(now) && !c.servingBlocked)) {
			return true
		}
	}
	return false
}

// HasConfirmedGrant reports whether the next commit ends a grant.
func (gs *Grants) HasConfirmedGrant() bool {
	for _, g := range gs.ByClaimant {
		if g.Confirmed {
			return true
		}
	}
	return false
}

// UnconfirmedGrantCount returns the number of grants that are not confirmed.
func (gs *Grants) UnconfirmedGrantCount() int {
	n := 0
	for _, g := range gs.ByClaimant {
		if !g.Confirmed {
			n++
		}
	}
	return n
}

// ActiveGrantCount returns the number of grants that are being written. A grant whose last attempt failed, or whose
// claimant is paused, does not count and delays no other.
func (gs *Grants) ActiveGrantCount() int {
	n := 0
	for uid, g := range gs.ByClaimant {
		if c := gs.claimants.ByUID[uid]; !g.Confirmed && (c == nil || (c.Failures == 0 && !c.servingBlocked)) {
			n++
		}
	}
	return n
}

// EndBlockedGrants ends the grants of claimants that may not be served now, because their Cluster was paused
// meanwhile, if nothing was written for them. The next commit does not contain these grants any more, and the
// claimants wait like any other.
func (gs *Grants) EndBlockedGrants(admission AdmissionFunc) {
	for uid, g := range gs.ByClaimant {
		c := gs.claimants.ByUID[uid]
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
func (gs *Grants) EndGrant(uid types.UID) {
	if g := gs.ByClaimant[uid]; g != nil {
		g.Confirmed = g.Confirmed || g.Committed
	}
}

// inFlightGrants returns the grants that are not confirmed, in the order of their addresses.
func (gs *Grants) inFlightGrants() []v1alpha1.Grant {
	var out []v1alpha1.Grant
	var ordered []*Grant
	for _, g := range gs.ByClaimant {
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

func (gs *Grants) countInFlight() *inFlightCount {
	out := &inFlightCount{byNamespace: map[string]int{}}
	for uid, g := range gs.ByClaimant {
		if g.Confirmed {
			continue
		}
		out.add(g.Owner.Namespace)
		if c := gs.claimants.ByUID[uid]; c != nil && (c.Failures > 0 || c.servingBlocked) {
			out.stuck++
		}
	}
	return out
}

// HasStuckGrants reports whether the maximum number of grants is in flight, and some of them fail or are paused.
func (gs *Grants) HasStuckGrants() bool {
	k := gs.countInFlight()
	return k.total >= MaxInFlightGrants && k.stuck > 0
}

// RecordJobStart records that a write for the grant was begun, which may land whatever follows.
func (g *Grant) RecordJobStart() { g.JobStarted = true }

// inFlightCount counts the grants in flight during a plan.
type inFlightCount struct {
	total, stuck int
	byNamespace  map[string]int
}

func (n *inFlightCount) add(namespace string) {
	n.total++
	n.byNamespace[namespace]++
}
