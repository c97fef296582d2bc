package grants

import (
	"cmp"
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

// InUseRest is how long an address rests at least for which somebody answers whom nobody gave it (P7).
const InUseRest = time.Hour

// Ending is what somebody gives up, and how that rests.
type Ending struct {
	Range netipx.IPRange
	Owner ledger.Owner
	// Grace is for how long, 0: it does not rest. Nameless: it rests for nobody's name, not even for that of its owner.
	Grace    time.Duration
	Nameless bool
}

// EndingOf is what the end of a claimant makes free.
func (m *Memory) EndingOf(c *Claimant) Ending {
	return Ending{m.Releasable(c), c.Owner, m.graceOf(c), c.UsedByOthers}
}

// graceOf is how long what a claimant gives up rests; 0: not at all.
func (m *Memory) graceOf(c *Claimant) time.Duration {
	if c.UsedByOthers && m.Base != nil {
		return max(m.reuseGrace(), InUseRest)
	}
	return m.reuseGrace()
}

// endingOf is what the end of an IPAddress without a claim makes free.
func (m *Memory) endingOf(s *Orphan) Ending {
	return Ending{Range: m.UnitOf(s.Attached), Owner: s.owner(), Grace: m.reuseGrace()}
}

// CoolReleases notes the rest of addresses that are about to be released, so that the next commit carries it before the
// IPAddress loses our finalizer (R9): of no more than can be handed out, since the rest counts from its note. Where the
// status has no room for more, the others wait with their addresses. It reports whether there was any.
func (m *Memory) CoolReleases(now time.Time, releases Admit) bool {
	if m.reuseGrace() == 0 {
		m.uncrowdUnrested()
		m.resumeReleases()
	}
	left := MaxJobs - m.Jobs
	var due []release
	for _, c := range m.Todo {
		if !c.Deleting {
			continue
		}
		switch e := m.EndingOf(c); {
		case !m.mayRest(c, e, now, releases):
		case m.NeedsCooling(e, now):
			due = append(due, release{c, e.Range.From()})
		default:
			left-- // noted, and to be handed out
		}
	}
	m.deferReleases(due)
	noted := false
	for left > 0 {
		c := m.nextDeferred()
		if c == nil {
			break
		}
		switch e := m.EndingOf(c); {
		case !m.mayRest(c, e, now, releases) || !m.NeedsCooling(e, now): // it was due when it was deferred
		case m.StartCooling(e, now):
			noted = true
			left--
		default:
			m.Crowd(c)
		}
	}
	m.RestsLate = len(m.deferred.claims) > 0
	for _, s := range m.Orphans {
		if m.OrphanNeedsCooling(s, now) {
			rests := m.StartCooling(m.endingOf(s), now)
			noted, m.RestsLate = noted || rests, m.RestsLate || !rests
		}
	}
	return noted
}

// mayRest reports whether a claim that is deleted is to be released now, and gives up something that rests then.
func (m *Memory) mayRest(c *Claimant, e Ending, now time.Time, releases Admit) bool {
	return e.Grace != 0 && e.Range.IsValid() && c.MayBeTried(now) && !releases(c).Waits
}

// mayNote reports whether the next batch can note what is to rest: else the end of a rest, of a job or of a pause wakes
// the pool.
func (m *Memory) mayNote(now time.Time) bool { return !m.RestsLate && !now.Before(m.CommitAfter) }

// StartCooling has what is given up rest from now on, until a time of the clock of the API server, by which the next manager
// ends it (ADR 49). False: there is no room on record.
func (m *Memory) StartCooling(e Ending, now time.Time) bool {
	rest := cooling.Rest{Range: e.Range, Until: cooling.Until(m.atAPI(now), e.Grace), For: NameOf(e.Owner)}
	if e.Nameless {
		rest.For = types.NamespacedName{}
	}
	return m.Cooling.Add(rest, cooling.Step(cmp.Or(m.reuseGrace(), e.Grace)))
}

// ExpireCooling ends the rest of ranges whose time has come. None lasts longer than one that begins now: its end is of a
// clock that was ahead, or of a longer grace.
func (m *Memory) ExpireCooling(now time.Time) {
	now = m.atAPI(now)
	for _, rest := range m.Cooling.All() {
		if !rest.Until.After(now) {
			m.Cooling.Remove(rest.Range)
			m.RoomToRest()
			continue
		}
		grace := m.longestRest(rest)
		if most := cooling.Until(now, grace); rest.Until.After(most.Add(cooling.Step(grace) + clockError)) {
			rest.Until = most
			m.Cooling.Put(rest)
		}
	}
}

// longestRest is how long a range may rest that does. Which of those without a name had another user on the wire, their text
// does not say.
func (m *Memory) longestRest(rest cooling.Rest) time.Duration {
	grace := m.reuseGrace()
	if grace == 0 || rest.For.Name == "" {
		return max(grace, InUseRest)
	}
	return grace
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

// uncrowdUnrested has the releases tried again that wait for room, and do not rest by what the pool says now.
func (m *Memory) uncrowdUnrested() {
	for uid, c := range m.Crowded {
		if m.graceOf(c) == 0 {
			m.uncrowd(uid)
		}
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
	if cooling.HasRoom(groups) {
		return 0
	}
	first := slices.MinFunc(groups, func(a, b v1alpha1.CoolingGroup) int { return a.Until.Compare(b.Until.Time) })
	return max(first.Until.Sub(m.atAPI(now)), 0)
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

// NeedsCooling reports whether what is given up is to rest, and that is not noted: or so long ago that half of the rest is
// over. What somebody else has too does not become free.
func (m *Memory) NeedsCooling(e Ending, now time.Time) bool {
	if e.Grace == 0 || !e.Range.IsValid() {
		return false
	}
	now = m.atAPI(now)
	return m.Ledger.FindOverlapping(e.Range, func(h *ledger.Fact) bool {
		switch {
		case !h.Range.Contains(e.Range.From()) || !h.Range.Contains(e.Range.To()):
			return false
		case h.Source == ledger.Cooling:
			rest := m.restOf(h)
			return rest.Until.Sub(now) > e.Grace/2 && (!e.Nameless || rest.For.Name == "")
		}
		return h.Source.Uses() && h.Owner.UID != e.Owner.UID
	}) == nil
}

// restOf is the rest that a fact of the ledger tells of.
func (m *Memory) restOf(h *ledger.Fact) cooling.Rest {
	rest, _ := m.Cooling.Get(h.Range)
	return rest
}

// OrphanNeedsCooling is NeedsCooling for what a void IPAddress has.
func (m *Memory) OrphanNeedsCooling(s *Orphan, now time.Time) bool {
	return s.ProvenOrphan && m.NeedsCooling(m.endingOf(s), now)
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
