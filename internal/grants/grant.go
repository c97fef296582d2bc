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

// Grant gives a range to a claim. It counts only once it is committed.
type Grant struct {
	Owner     ledger.Owner
	Range     netipx.IPRange
	Committed bool
	// At is when the commit that carries the grant was last confirmed.
	At time.Time
	// Inherited: it was in flight when we took the pool over.
	Inherited bool
	// Begun: it was handed to a job, so writes for it were sent. doubtful: the answer to one is not known.
	Begun, doubtful bool
	// Confirmed: its IPAddress is confirmed, or its claim cannot use it any more (R6). It leaves
	// inFlight with the next commit.
	Confirmed bool
}

// Writable reports whether a grant may be written on (R6). A confirmed one may not: the commit that ends it may be under
// way.
func (g *Grant) Writable(now time.Time) bool {
	return g.Committed && !g.Confirmed && !g.stale(now)
}

// stale reports whether a grant is written on only after another commit, which shows that it still stands: it is old, or
// inherited.
func (g *Grant) stale(now time.Time) bool {
	return g.Committed && !g.Confirmed && term.Elapsed(g.At, now) > term.RequestTimeout
}

// StaleGrants reports whether a grant is too old to be written on without asking again (a process
// that was paused), and is to be: a commit confirms it or shows that the term is over. Monotonic and wall clock
// both count, whichever is further on.
func (m *Memory) StaleGrants(now time.Time) bool {
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; g.stale(now) && (c == nil || (c.MayBeTried(now) && !c.waits)) {
			return true
		}
	}
	return false
}

// Frees reports whether the next commit ends a grant that holds up somebody: the release of its claim or,
// where the claim is gone, whoever waits for an address.
func (m *Memory) Frees() bool {
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; g.Confirmed && ((c != nil && c.Deleting) || (c == nil && m.Pending.Len() > 0)) {
			return true
		}
	}
	return false
}

// HasConfirmed reports whether a grant is to be ended by the next commit.
func (m *Memory) HasConfirmed() bool {
	for _, g := range m.Grants {
		if g.Confirmed {
			return true
		}
	}
	return false
}

// Unfinished is the number of grants that are not confirmed.
func (m *Memory) Unfinished() int {
	n := 0
	for _, g := range m.Grants {
		if !g.Confirmed {
			n++
		}
	}
	return n
}

// Working is the number of grants that are being written. One whose last try failed, or whose claim is paused, holds up
// nobody.
func (m *Memory) Working() int {
	n := 0
	for uid, g := range m.Grants {
		if c := m.Claimants[uid]; !g.Confirmed && (c == nil || (c.Failures == 0 && !c.waits)) {
			n++
		}
	}
	return n
}

// GiveBack ends the grants of claims that may not be served now, as their Cluster was paused meanwhile, and of which
// nothing was written: the next commit has them no more. The claim waits like any other.
func (m *Memory) GiveBack(admission Admit) {
	for uid, g := range m.Grants {
		c := m.Claimants[uid]
		if c == nil || g.Confirmed {
			continue
		}
		if c.waits = admission(c).Waits; c.waits && g.Committed && !g.Begun && !g.Inherited {
			g.Confirmed = true
		}
	}
}

// EndGrant ends the grant of a deleted claimant that has nothing. Nothing can be recorded of it any more, so it ends
// with the next commit, and the release goes on then.
func (m *Memory) EndGrant(uid types.UID) {
	if g := m.Grants[uid]; g != nil {
		g.Confirmed = g.Confirmed || g.Committed
	}
}

// OnlyGranted reports whether a claimant has a grant of which nobody was told: then whoever uses the claimant does not
// keep it in flight. What is on record with it stays.
func (m *Memory) OnlyGranted(c *Claimant) bool {
	return m.Grants[c.Owner.UID] != nil && !c.HadAddress && m.AttachedTo(c) == nil
}

// confirm notes that a committed grant is done: its claim is gone, or has what was granted (R6).
func (m *Memory) confirm(uid types.UID) {
	g := m.Grants[uid]
	if g == nil || !g.Committed {
		return
	}
	c := m.Claimants[uid]
	g.Confirmed = g.Confirmed || c == nil || c.Kind.Confirmed(m, c)
}

// DropGrant forgets a grant that is not on record any more.
func (m *Memory) DropGrant(uid types.UID) {
	key := ledger.Key{Source: ledger.Grant, UID: uid}
	if g := m.Grants[uid]; g != nil && !g.Committed {
		m.Ledger.Retract(key) // nobody was given it
	} else {
		m.Ledger.Remove(key)
	}
	delete(m.Grants, uid)
	if c := m.Claimants[uid]; c != nil {
		m.Sort(c)
	}
}

// inFlight lists the grants that are not confirmed, in the order of their addresses.
func (m *Memory) inFlight() []v1alpha1.Grant {
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

// InFlightOf returns the grants that a status has on record.
func InFlightOf(status *v1alpha1.NetworkPoolStatus) []v1alpha1.Grant {
	if status.Allocator == nil {
		return nil
	}
	return status.Allocator.InFlight
}
