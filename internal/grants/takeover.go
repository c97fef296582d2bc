package grants

import (
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// slowPatience is how long those wait, in the place of term.Patience, that a live holder may have tried in vain.
const slowPatience = time.Minute

// vainPatience is how long those wait for whom a write failed. A live holder tries it again, and need not write the pool for
// that; a takeover from it serves none of them, and has each told in other words what this manager met.
const vainPatience = 10 * time.Minute

// MayTakeOver reports whether this manager should become the pool's holder now, or how long to wait
// (R5). Only the amount of work depends on the answer, never its safety.
func (m *Memory) MayTakeOver(now time.Time, elected bool, shrinkGrace time.Duration, admission, releasable Admit) (bool, time.Duration) {
	if now.Before(m.NotBefore) {
		return false, m.NotBefore.Sub(now)
	}
	state := m.Base.PoolStatus().Allocator
	if state == nil || !m.TriedOnce || (elected && m.Backoff == 0) {
		return true, 0
	}
	room := m.RestEnds(now)
	if room > 0 {
		ruling := releasable
		releasable = func(c *Claimant) Ruling {
			if m.graceOf(c) > 0 {
				return Ruling{Waits: true, Silent: true} // no live holder would
			}
			return ruling(c)
		}
	}
	patience := term.Patience
	m.ForgetLack()
	if work, inVain := m.hasWork(state, admission, releasable); !work {
		at, soon := m.blocksWait(now, shrinkGrace)
		if !at && !inVain {
			m.WorkSince = time.Time{}
			return false, room
		}
		switch {
		case !at:
			patience = vainPatience
		case !soon:
			patience = slowPatience
		}
	}
	if m.WorkSince.IsZero() {
		m.WorkSince = now
	}
	since := m.WorkSince
	if m.Changed.After(since) {
		since = m.Changed
	}
	if wait := patience - now.Sub(since); wait > 0 {
		return false, wait
	}
	return true, 0
}

// hasWork reports whether the pool has something that a live holder would have done by now. What is
// paused, or another manager's by its label, is none. Where it has nothing, it is known then what those lack that wait, and
// whether there is something that a live holder may have tried in vain: claims for which a write failed, as they are told.
func (m *Memory) hasWork(state *v1alpha1.AllocatorStatus, admission, releasable Admit) (work, inVain bool) {
	work = m.mayEnd() || m.outdated()
	wants := func(c *Claimant) bool {
		rule := admission
		if c.Deleting {
			rule = releasable
		}
		wants := !rule(c).Waits
		failed := !c.Deleting && c.ShownRefusal().isRefused()
		inVain = inVain || (wants && failed)
		return wants && !failed
	}
	for _, g := range state.InFlight {
		c := m.Claimants[types.UID(g.UID)]
		work = work || c == nil || wants(c)
	}
	for _, c := range m.Todo {
		work = work || wants(c)
	}
	if work {
		return true, inVain
	}
	m.Pending.Scan(func(c *Claimant) bool {
		ruled := admission(c)
		switch {
		case ruled.Waits:
		case ruled.Refused != nil:
			work = !c.Shows(*ruled.Refused)
		case c.ShownRefusal().isRefused():
			inVain = true
		default:
			_, no, full := m.Available(c)
			if full && m.WithinQuota(c) {
				m.lacks(c)
			}
			work = c.ShownRefusal() == (Refusal{}) || (no == nil && m.WithinQuota(c))
		}
		return !work
	})
	return work, inVain
}

// mayEnd reports whether the pool is being deleted, and nothing that is known of has anything of it: while something
// has, there is nothing that another holder would do.
func (m *Memory) mayEnd() bool {
	return m.Base.GetDeletionTimestamp() != nil && m.Ledger.Counts().Owners == 0 && !m.HasBlocks()
}

// outdated reports whether the status on record speaks of an older spec, or of other neighbours, than the pool has now.
func (m *Memory) outdated() bool {
	overlaps := meta.IsStatusConditionTrue(m.Base.GetConditions(), v1alpha1.OverlapCondition)
	return m.Base.PoolStatus().ObservedGeneration != m.Base.GetGeneration() || overlaps != (m.Overlap != "") || m.Owes
}

// LoseTerm is called when another manager has written the pool: what we planned on is void.
func (m *Memory) LoseTerm(now time.Time) {
	m.Holder, m.Unanswered, m.Carved.lack = false, nil, carve.Lack{}
	m.RoomToRest()
	m.resumeReleases()
	for uid, g := range m.Grants {
		m.Ledger.Remove(ledger.Key{Source: ledger.Grant, UID: uid})
		delete(m.Grants, uid)
		if c := m.Claimants[g.Owner.UID]; c != nil {
			m.Sort(c)
		}
	}
	m.Lose(now, m.ListTook, m.jitter)
	m.Changed, m.WorkSince = now, time.Time{}
}

// Rebuild makes the ledger from the list, what the watches know beyond it, and what is in flight.
func (m *Memory) Rebuild(found *Listed) {
	status := m.Base.PoolStatus()
	space, unit := m.space()
	m.Ledger = ledger.New(space, unit)
	m.Ledger.Arrange(m.order())
	m.recallReleases(status)
	m.Ledger.SetParts(m.OpenRanges())
	m.Carved.drained = nil
	for _, b := range m.Carved.Blocks {
		b.verifiedIn = Term{} // a pool that was restored counts its terms anew
	}
	m.stateDrained(carve.Decision{})
	m.apart, m.unseen, m.listed = map[netipx.IPRange]pools.Key{}, nil, true
	m.Arriving.Unlisted = false
	m.addPins()
	for uid := range m.Grants {
		delete(m.Grants, uid)
	}
	m.ObserveAll(found)
	for _, c := range m.Claimants {
		m.State(c)
	}
	for _, addr := range m.Attached {
		if addr.IP.IsValid() {
			m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Object, UID: addr.UID}, Owner: addr.owner(), Range: m.Ledger.Unit(addr.IP)})
		}
	}
	for _, g := range InFlightOf(status) {
		r, err := poolutil.ParseRange(g.First + "-" + g.Last)
		if err != nil {
			continue
		}
		owner := ledger.Owner{Kind: m.kindOf(g.Kind).Traits().Name, Namespace: g.Namespace, Name: g.Name, UID: types.UID(g.UID)}
		if c := m.Claimants[owner.UID]; c != nil && c.MayGetAnother() && m.addressed(r, owner) {
			continue
		}
		m.Grants[owner.UID] = &Grant{Owner: owner, Range: r, Committed: true, Inherited: true}
		m.confirm(owner.UID) // the list began after the fence: what it shows is proof (R6)
		m.Ledger.Add(ledger.Fact{Key: ledger.Key{Source: ledger.Grant, UID: owner.UID}, Owner: owner, Range: r})
	}
	m.LoadCooling(status)
	for _, c := range m.Claimants {
		m.Sort(c)
	}
	for _, addr := range m.Attached {
		m.sortAttached(addr)
	}
	if len(m.Orphans) == 0 {
		m.Orphans = map[types.NamespacedName]*Orphan{} // before the claims came, all were orphans: a map does not shrink
	}
}

// addressed reports whether an IPAddress of somebody else has some of a range.
func (m *Memory) addressed(r netipx.IPRange, o ledger.Owner) bool {
	return m.Ledger.FindOverlapping(r, func(h *ledger.Fact) bool {
		return h.Source == ledger.Object && m.blocks(h, o)
	}) != nil
}

// LoadCooling takes what rests from the pool's status: an operator may have taken an entry out.
func (m *Memory) LoadCooling(status *v1alpha1.NetworkPoolStatus) {
	for _, rest := range m.Cooling.All() {
		m.Cooling.Remove(rest.Range)
	}
	for r := range m.held {
		m.dropHeld(r)
	}
	rests, _ := cooling.Parse(status.Cooling) // what cannot be read, nobody has written who knew what rests
	for _, rest := range rests {
		m.Cooling.Put(rest)
	}
	m.RoomToRest()
	for _, h := range status.Held {
		if r, err := poolutil.ParseRange(h.First + "-" + h.Last); err == nil {
			m.AddHeld(r, h)
		}
	}
	m.keepAllMoved()
}

// Quarantine holds new grants back where no allocator is on record, but addresses exist or there was an allocator
// (R10). It survives a restart in the Ready condition.
func (m *Memory) Quarantine(now time.Time, length time.Duration) {
	if c := m.WasAdopting(); c != nil && (c.Status == metav1.ConditionFalse || m.Ledger.Counts().Owners > 0) {
		m.closeUntil(m.waitBegan(c, now).Add(length))
	}
}

// clockError is by how much a moment of the API server may be wrong here: its clock is read from times without fractions, at
// the end of answers that take up to a second, and what is written down loses its fraction.
const clockError = 3 * time.Second

// atAPI is a moment by the clock of the API server: by that one is written down what the next manager counts from, since its
// own clock and that of the manager before may differ by any time (ADR 49).
func (m *Memory) atAPI(at time.Time) time.Time {
	if m.APITime == nil {
		return at
	}
	return m.APITime(at)
}

// begunBy is a moment of the clock of the API server by that of this manager, now at the latest: a clock that was ahead when
// the moment was written down closes no pool for as long.
func (m *Memory) begunBy(at, now time.Time) time.Time {
	return now.Add(-max(m.atAPI(now).Sub(at), 0))
}

// waitBegan is when a wait began that is on record, by the clock of this manager, and now at the latest. No error of the
// clocks makes the wait shorter.
func (m *Memory) waitBegan(c *metav1.Condition, now time.Time) time.Time {
	return m.begunBy(c.LastTransitionTime.Add(clockError), now)
}

// SetCondition sets a condition of a pool. A wait counts from when it begins: not from when the pool closed for another
// reason, which has the same status.
func SetCondition(all *[]metav1.Condition, c metav1.Condition) {
	if was := meta.FindStatusCondition(*all, c.Type); c.Reason == v1alpha1.AdoptingReason && was != nil && was.Reason != c.Reason {
		meta.RemoveStatusCondition(all, c.Type)
	}
	meta.SetStatusCondition(all, c)
}

// WasAdopting returns the condition that a quarantine which is not over has left, if one has.
func (m *Memory) WasAdopting() *metav1.Condition {
	c := meta.FindStatusCondition(m.Base.GetConditions(), v1alpha1.ReadyCondition)
	if c == nil || c.Reason != v1alpha1.AdoptingReason {
		return nil
	}
	return c
}
