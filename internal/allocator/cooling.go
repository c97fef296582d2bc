package allocator

import (
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cooling"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// coolReleases notes the rest of addresses that are about to be released, so that the next commit carries it before the
// IPAddress loses our finalizer (R9): of no more than can be handed out, since the rest counts from its note. Where the
// status has no room for more, the others wait with their addresses. It reports whether there was any.
func (p *memory) coolReleases(now time.Time, releases admit) bool {
	p.restsLate = false
	if p.reuseGrace() == 0 {
		p.roomToRest()
		return false
	}
	left := maxJobs - p.jobs
	var due []*claimant
	for _, c := range p.todo {
		r := p.releasable(c)
		if !c.deleting || !r.IsValid() || c.busy || c.retryAt.After(now) {
			continue
		}
		switch {
		case releases(c).waits:
		case p.needsCooling(r, c.owner, now):
			due = append(due, c)
		default:
			left-- // noted, and to be handed out
		}
	}
	// In the order of their addresses: what touches can be joined.
	slices.SortFunc(due, func(a, b *claimant) int { return p.releasable(a).From().Compare(p.releasable(b).From()) })
	noted := false
	for _, c := range due {
		if left <= 0 {
			p.restsLate = true
			break
		}
		if !p.startCooling(p.releasable(c), c.owner, now) {
			p.crowd(c)
			continue
		}
		noted = true
		left--
	}
	for _, s := range p.orphans {
		if p.orphanNeedsCooling(s, now) {
			rests := p.startCooling(p.unitOf(s.attached), s.owner(), now)
			noted, p.restsLate = noted || rests, p.restsLate || !rests
		}
	}
	return noted
}

// mayNote reports whether the next batch can note what is to rest: else the end of a rest, of a job or of a pause wakes
// the pool.
func (p *memory) mayNote(now time.Time) bool { return !p.restsLate && !now.Before(p.commitAfter) }

// startCooling has a range rest for as long as the pool says. False: there is no room on record.
func (p *memory) startCooling(r netipx.IPRange, o ledger.Owner, now time.Time) bool {
	grace := p.reuseGrace()
	return p.cooling.Add(cooling.Rest{Range: r, Until: cooling.Until(now, grace), For: nameOf(o)}, cooling.Step(grace))
}

// expireCooling ends the rest of ranges whose time has come.
func (p *memory) expireCooling(now time.Time) {
	for _, rest := range p.cooling.All() {
		if !rest.Until.After(now) {
			p.cooling.Remove(rest.Range)
			p.roomToRest()
		}
	}
}

// coolingBegan keeps a range from everybody but whom it rests for.
func (p *memory) coolingBegan(rest cooling.Rest) {
	p.ledger.Add(ledger.Hold{
		Key: restKey(ledger.Cooling, rest.Range), Owner: ledger.Owner{Namespace: rest.For.Namespace, Name: rest.For.Name}, Range: rest.Range,
	})
	if len(p.crowded) == 0 {
		return
	}
	// What touches it can be joined with it.
	for _, near := range []netip.Addr{rest.Range.From().Prev(), rest.Range.To().Next()} {
		if !near.IsValid() {
			continue
		}
		for _, h := range p.ledger.Overlapping(netipx.IPRangeFrom(near, near)) {
			p.uncrowd(h.Owner.UID)
		}
	}
}

// coolingEnded ends the rest of a range: its time has come, or the claim it rests for has it again.
func (p *memory) coolingEnded(rest cooling.Rest) {
	p.ledger.Remove(restKey(ledger.Cooling, rest.Range))
	if p.cooling.Size() < cooling.MaxText/2 {
		p.roomToRest()
	}
}

// crowd notes that the release of a claim waits until there is room for its rest: it is not to be done until then.
func (p *memory) crowd(c *claimant) {
	p.crowded[c.owner.UID] = c
	delete(p.todo, c.owner.UID)
}

func (p *memory) uncrowd(uid types.UID) {
	if c := p.crowded[uid]; c != nil {
		delete(p.crowded, uid)
		p.todo[uid] = c
	}
}

// roomToRest has the releases that wait for room tried again.
func (p *memory) roomToRest() {
	for uid := range p.crowded {
		p.uncrowd(uid)
	}
}

// restEnds is how long until there is room on record for another rest, as the pool's status shows it: 0 if there is
// now.
func (p *memory) restEnds(now time.Time) time.Duration {
	groups := p.base.PoolStatus().Cooling
	if p.reuseGrace() == 0 || cooling.HasRoom(groups) {
		return 0
	}
	first := slices.MinFunc(groups, func(a, b v1alpha1.CoolingGroup) int { return a.Until.Compare(b.Until.Time) })
	return max(first.Until.Sub(now), 0)
}

// coolingFor finds a range that rests for the name of an owner, and fits.
func (p *memory) coolingFor(o ledger.Owner, fits func(netipx.IPRange) bool) netipx.IPRange {
	for _, r := range p.cooling.For(nameOf(o)) {
		if fits(r) && p.ledger.InSpace(r) && p.blocker(r, o) == nil {
			return r
		}
	}
	return netipx.IPRange{}
}

// needsCooling reports whether what an owner gives up is to rest, and that is not noted: or so long ago that half of
// the rest is over. What somebody else has too does not become free.
func (p *memory) needsCooling(r netipx.IPRange, o ledger.Owner, now time.Time) bool {
	if p.reuseGrace() == 0 || !r.IsValid() {
		return false
	}
	for _, h := range p.ledger.Overlapping(r) {
		whole := h.Range.Contains(r.From()) && h.Range.Contains(r.To())
		if whole && h.Source == ledger.Cooling && p.restOf(h).Until.Sub(now) > p.reuseGrace()/2 {
			return false
		}
		if whole && h.Source.Uses() && h.Owner.UID != o.UID {
			return false
		}
	}
	return true
}

// restOf is the rest that a fact of the ledger tells of.
func (p *memory) restOf(h *ledger.Hold) cooling.Rest {
	rest, _ := p.cooling.Get(h.Range)
	return rest
}

// orphanNeedsCooling is needsCooling for what a void IPAddress has.
func (p *memory) orphanNeedsCooling(s *orphan, now time.Time) bool {
	return s.provenOrphan && p.needsCooling(p.unitOf(s.attached), s.owner(), now)
}

// maxHeld bounds the entries of status.held.
const maxHeld = 128

// addHeld keeps a range back until an operator removes the entry. As the pool grants nothing while there is one, what
// is between two may be kept back with them: so many are joined that the status stays small.
func (p *memory) addHeld(r netipx.IPRange, h v1alpha1.HeldRange) {
	p.setHeld(r, h)
	for len(p.held) > maxHeld {
		p.joinHeld()
	}
}

func (p *memory) setHeld(r netipx.IPRange, h v1alpha1.HeldRange) {
	p.held[r] = h
	p.ledger.Add(ledger.Hold{Key: restKey(ledger.Held, r), Owner: ledger.Owner{Namespace: h.Namespace, Name: h.Name}, Range: r})
}

func (p *memory) dropHeld(r netipx.IPRange) {
	delete(p.held, r)
	p.ledger.Remove(restKey(ledger.Held, r))
}

// joinHeld joins each second entry with the one before it.
func (p *memory) joinHeld() {
	order := make([]netipx.IPRange, 0, len(p.held))
	for r := range p.held {
		order = append(order, r)
	}
	slices.SortFunc(order, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	for pair := range slices.Chunk(order, 2) {
		if len(pair) < 2 || pair[0].From().Is4() != pair[1].From().Is4() {
			continue
		}
		reason := p.held[pair[0]].Reason
		to := pair[1].To()
		if to.Less(pair[0].To()) {
			to = pair[0].To()
		}
		joined := netipx.IPRangeFrom(pair[0].From(), to)
		p.dropHeld(pair[0])
		p.dropHeld(pair[1])
		p.setHeld(joined, v1alpha1.HeldRange{First: joined.From().String(), Last: to.String(), Reason: reason})
	}
}
