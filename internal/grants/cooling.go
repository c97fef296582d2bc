package grants

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// CoolReleases notes the rest of addresses that are about to be released, so that the next commit carries it before the
// IPAddress loses our finalizer (R9): of no more than can be handed out, since the rest counts from its note. Where the
// status has no room for more, the others wait with their addresses. It reports whether there was any.
func (m *Memory) CoolReleases(now time.Time, releases Admit) bool {
	m.RestsLate = false
	if m.reuseGrace() == 0 {
		m.RoomToRest()
		return false
	}
	left := MaxJobs - m.Jobs
	var due []*Claimant
	for _, c := range m.Todo {
		r := m.Releasable(c)
		if !c.Deleting || !r.IsValid() || c.Busy || c.RetryAt.After(now) {
			continue
		}
		switch {
		case releases(c).Waits:
		case m.NeedsCooling(r, c.Owner, now):
			due = append(due, c)
		default:
			left-- // noted, and to be handed out
		}
	}
	// In the order of their addresses: what touches can be joined.
	slices.SortFunc(due, func(a, b *Claimant) int { return m.Releasable(a).From().Compare(m.Releasable(b).From()) })
	noted := false
	for _, c := range due {
		if left <= 0 {
			m.RestsLate = true
			break
		}
		if !m.StartCooling(m.Releasable(c), c.Owner, now) {
			m.Crowd(c)
			continue
		}
		noted = true
		left--
	}
	for _, s := range m.Orphans {
		if m.OrphanNeedsCooling(s, now) {
			rests := m.StartCooling(m.UnitOf(s.Attached), s.owner(), now)
			noted, m.RestsLate = noted || rests, m.RestsLate || !rests
		}
	}
	return noted
}

// mayNote reports whether the next batch can note what is to rest: else the end of a rest, of a job or of a pause wakes
// the pool.
func (m *Memory) mayNote(now time.Time) bool { return !m.RestsLate && !now.Before(m.CommitAfter) }

// StartCooling has a range rest for as long as the pool says. False: there is no room on record.
func (m *Memory) StartCooling(r netipx.IPRange, o ledger.Owner, now time.Time) bool {
	grace := m.reuseGrace()
	return m.Cooling.Add(cooling.Rest{Range: r, Until: cooling.Until(now, grace), For: NameOf(o)}, cooling.Step(grace))
}

// ExpireCooling ends the rest of ranges whose time has come.
func (m *Memory) ExpireCooling(now time.Time) {
	for _, rest := range m.Cooling.All() {
		if !rest.Until.After(now) {
			m.Cooling.Remove(rest.Range)
			m.RoomToRest()
		}
	}
}

// coolingBegan keeps a range from everybody but whom it rests for.
func (m *Memory) coolingBegan(rest cooling.Rest) {
	m.Ledger.Add(ledger.Fact{
		Key: restKey(ledger.Cooling, rest.Range), Owner: ledger.Owner{Namespace: rest.For.Namespace, Name: rest.For.Name}, Range: rest.Range,
	})
	if len(m.Crowded) == 0 {
		return
	}
	// What touches it can be joined with it.
	for _, near := range []netip.Addr{rest.Range.From().Prev(), rest.Range.To().Next()} {
		if !near.IsValid() {
			continue
		}
		for _, h := range m.Ledger.Overlapping(netipx.IPRangeFrom(near, near)) {
			m.uncrowd(h.Owner.UID)
		}
	}
}

// coolingEnded ends the rest of a range: its time has come, or the claim it rests for has it again.
func (m *Memory) coolingEnded(rest cooling.Rest) {
	m.Ledger.Remove(restKey(ledger.Cooling, rest.Range))
	if m.Cooling.Size() < cooling.MaxText/2 {
		m.RoomToRest()
	}
}

// Crowd notes that the release of a claim waits until there is room for its rest: it is not to be done until then.
func (m *Memory) Crowd(c *Claimant) {
	m.Crowded[c.Owner.UID] = c
	delete(m.Todo, c.Owner.UID)
}

func (m *Memory) uncrowd(uid types.UID) {
	if c := m.Crowded[uid]; c != nil {
		delete(m.Crowded, uid)
		m.Todo[uid] = c
	}
}

// RoomToRest has the releases that wait for room tried again.
func (m *Memory) RoomToRest() {
	for uid := range m.Crowded {
		m.uncrowd(uid)
	}
}

// RestEnds is how long until there is room on record for another rest, as the pool's status shows it: 0 if there is
// now.
func (m *Memory) RestEnds(now time.Time) time.Duration {
	groups := m.Base.PoolStatus().Cooling
	if m.reuseGrace() == 0 || cooling.HasRoom(groups) {
		return 0
	}
	first := slices.MinFunc(groups, func(a, b v1alpha1.CoolingGroup) int { return a.Until.Compare(b.Until.Time) })
	return max(first.Until.Sub(now), 0)
}

// CoolingFor finds a range that rests for the name of an owner, and fits.
func (m *Memory) CoolingFor(o ledger.Owner, fits func(netipx.IPRange) bool) netipx.IPRange {
	for _, r := range m.Cooling.For(NameOf(o)) {
		if fits(r) && m.Ledger.InSpace(r) && m.Blocker(r, o) == nil {
			return r
		}
	}
	return netipx.IPRange{}
}

// NeedsCooling reports whether what an owner gives up is to rest, and that is not noted: or so long ago that half of
// the rest is over. What somebody else has too does not become free.
func (m *Memory) NeedsCooling(r netipx.IPRange, o ledger.Owner, now time.Time) bool {
	if m.reuseGrace() == 0 || !r.IsValid() {
		return false
	}
	for _, h := range m.Ledger.Overlapping(r) {
		whole := h.Range.Contains(r.From()) && h.Range.Contains(r.To())
		if whole && h.Source == ledger.Cooling && m.restOf(h).Until.Sub(now) > m.reuseGrace()/2 {
			return false
		}
		if whole && h.Source.Uses() && h.Owner.UID != o.UID {
			return false
		}
	}
	return true
}

// restOf is the rest that a fact of the ledger tells of.
func (m *Memory) restOf(h *ledger.Fact) cooling.Rest {
	rest, _ := m.Cooling.Get(h.Range)
	return rest
}

// OrphanNeedsCooling is NeedsCooling for what a void IPAddress has.
func (m *Memory) OrphanNeedsCooling(s *Orphan, now time.Time) bool {
	return s.ProvenOrphan && m.NeedsCooling(m.UnitOf(s.Attached), s.owner(), now)
}

// reuseGrace is how long an address rests before somebody else gets it.
func (m *Memory) reuseGrace() time.Duration {
	if m.Base == nil {
		return 0
	}
	return time.Duration(max(0, ptr.Deref(m.Base.PoolSpec().AddressReuseGracePeriodSeconds, 0))) * time.Second
}

// Releasable is what the end of a claimant makes free.
func (m *Memory) Releasable(c *Claimant) netipx.IPRange { return c.Kind.Releasable(m, c) }

// UnitOf is what an IPAddress has of the pool; not valid where it says no address.
func (m *Memory) UnitOf(addr *Attached) netipx.IPRange {
	if !addr.IP.IsValid() {
		return netipx.IPRange{}
	}
	return m.Ledger.Unit(addr.IP)
}

// IsKept reports whether somebody else's finalizer alone keeps the IPAddress of a deleted claim: all of ours is done,
// and the watch shows when that is gone.
func (m *Memory) IsKept(c *Claimant) bool {
	addr := m.AttachedTo(c)
	return addr != nil && addr.ClaimantUID == c.Owner.UID && addr.Deleting && !addr.Protected && len(addr.Others) > 0
}
