package grants

import (
	"maps"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Planner chooses the range for each claimant that waits, or the reason why there is none. The failure of one
// claimant never delays another one.
type Planner struct {
	// cachedExhaustedRefusal is the refusal that a plan returns for all claimants that find nothing free. It is built
	// once per plan, because thousands of claimants may wait.
	cachedExhaustedRefusal *Refusal

	base      *BasePool
	space     *Space
	claimants *Claimants
	term      *TermState
	grants    *Grants
	queues    *Queues
	inventory *Inventory
	growth    *Growth
	failures  *Failures
	quotas    *Quotas
	cooling   *Cooling
}

// RefusalsForPending returns the waiting claimants whose status should report that the pool cannot be written. If
// this manager does not hold the pool, these are only the claimants without a refusal in their status: the holder
// decides on the others.
func (p *Planner) RefusalsForPending(now time.Time, admission AdmissionFunc) map[*Claimant]*Refusal {
	refused := map[*Claimant]*Refusal{}
	p.queues.Waiting.Scan(func(c *Claimant) bool {
		published := c.HasPublished(*p.term.WriteRefusal) || (!p.term.Holder && c.PublishedRefusal() != Refusal{})
		if c.IsDue(now) && !published && !admission(c).Wait {
			refused[c] = p.term.WriteRefusal
		}
		return true
	})
	return refused
}

// FailingNamespaceRefusal returns the refusal for a claimant that is not tried now, because too many of its namespace
// fail. It schedules a trial if the claimant could be granted something; RecordTrial counts that trial. A claimant
// that could be granted nothing now, however the others fare, gets that refusal instead.
func (p *Planner) FailingNamespaceRefusal(c *Claimant, now time.Time) *Refusal {
	t := p.failures.failing.blockingNamespace(c, now)
	if t == nil {
		return nil
	}
	refusal, full := p.checkAvailability(c)
	if refusal == nil || full { // a carved pool requests a block for what a trial does not find
		p.failures.scheduleTrial(t)
	}
	if refusal != nil {
		return refusal
	}
	return t.refusalForOthers(c.Owner.Namespace)
}

// MaxInFlightGrants bounds the grants in the status, including those that wait or fail. With the longest names they
// take 160 KB.
const MaxInFlightGrants = 300

// reservedForHealthy is how many of them are reserved for namespaces in which nothing fails. A grant that fails stays
// in flight as long as a write for it may be stored, so a few failing namespaces could use up all of them.
const reservedForHealthy = 100

// checkInFlightLimit reports whether a claimant may get a grant now, or returns a refusal. Without either, the
// claimant waits quietly: the grants of its namespace are being written. While grants fail, a namespace in which no
// claimant was served since may have only a few grants in flight, and one at a time when few are left, so that there
// is room for every namespace.
func (p *Planner) checkInFlightLimit(c *Claimant, k *inFlightCount) (refusal *Refusal, may bool) {
	ns := c.Owner.Namespace
	left, inNamespace := MaxInFlightGrants-k.total, k.byNamespace[ns]
	switch _, well := p.failures.healthyNamespaces[ns]; {
	case k.stuck == 0, well:
		may = left > 0
	case left > reservedForHealthy:
		may = inNamespace < term.SerialRetryThreshold
	default:
		may = left > 0 && inNamespace == 0
	}
	switch t := p.failures.failing[ns]; {
	case may:
		return nil, true
	case t != nil:
		return t.refusalForOthers(ns), false
	case left <= 0 && k.stuck > 0:
		return p.stuckGrantsRefusal(), false
	}
	return nil, false
}

// stuckGrantsRefusal returns the refusal for a claimant that waits because grants of other claimants are stuck.
func (p *Planner) stuckGrantsRefusal() *Refusal {
	if names := slices.Sorted(maps.Keys(p.failures.failing)); len(names) > 0 {
		return PoolNotReady("%s grants nothing more while writes of earlier grants fail, as in namespace %s: %v; fix the cause: this claim is served when one of them succeeds",
			p.base.Key, names[0], p.failures.failing[names[0]].lastError)
	}
	return PoolNotReady("%s grants nothing more while the Clusters of so many claims that were granted something are paused; resume one of them", p.base.Key)
}

// noSubnetRefusal returns the refusal for a claimant whose failure domain no subnet of the pool serves. It is nil if
// a subnet does.
func (p *Planner) noSubnetRefusal(c *Claimant) *Refusal {
	if len(p.space.zonesForClaimant(c)) > 0 {
		return nil
	}
	return AllocationFailed("%s has no subnet for failure domain %s, in which Machine %s is; add the failure domain to failureDomains of one of its spec.subnets",
		p.base.Key, c.MachineLookup.machine.FailureDomain, c.MachineLookup.machine.Name)
}

// zoneExhaustedRefusal returns the refusal for a claimant for whose failure domain no address is free.
func (p *Planner) zoneExhaustedRefusal(c *Claimant) *Refusal {
	domain := c.failureDomain()
	if domain == "" {
		return poolExhausted("%s has no free address for claims without a failure domain: those outside of the subnets that name failureDomains are allocated, reserved or resting, or there are none; "+
			"add addresses, or set the failureDomain of the machines in their control plane or MachineDeployment%s", p.base.Key, p.cooling.reuseGraceNote())
	}
	_, subnets := p.space.Layout.ZonesForFailureDomain(domain)
	return poolExhausted("%s has no free address for failure domain %s: those in %s are allocated, reserved or resting, or there are none; add addresses there, or a subnet for the failure domain, or delete machines or claims%s",
		p.base.Key, domain, formatPrefixes(subnets), p.cooling.reuseGraceNote())
}

// PlanGrants grants ranges to the claimants that wait, oldest first and at most room of them. It returns the number
// of new grants, and the refusals that are not in the status of their claimants yet. The failure of one claimant
// never delays another one.
func (p *Planner) PlanGrants(now time.Time, room int, admission AdmissionFunc) (granted int, refused map[*Claimant]*Refusal) {
	refused = map[*Claimant]*Refusal{}
	p.cachedExhaustedRefusal = nil
	var grants []*Grant
	k := p.grants.countInFlight()
	p.queues.Waiting.Scan(func(c *Claimant) bool {
		if len(grants) >= room && (room > 0 || k.stuck == 0) {
			return false // otherwise those that wait get the reason in their status
		}
		if !c.IsDue(now) {
			return true
		}
		admitted := admission(c)
		if admitted.Wait {
			return true
		}
		refusal := admitted.Refusal
		if refusal == nil {
			refusal = p.FailingNamespaceRefusal(c, now)
		}
		if refusal == nil {
			var may bool
			if refusal, may = p.checkInFlightLimit(c, k); refusal == nil && !may {
				return true
			}
		}
		var r netipx.IPRange
		if refusal == nil {
			r, refusal = p.ChooseRange(c)
		}
		if refusal != nil {
			if !c.HasPublished(*refusal) {
				refused[c] = refusal
			}
			return true
		}
		if c.ChildPool != nil {
			c.ObservedOwnerSeen = max(c.ObservedOwnerSeen, OwnerSeenAlive) // nothing is granted to a pool that does not exist
		}
		g := &Grant{Owner: c.Owner, Range: r}
		p.cooling.Periods.Remove(r)
		p.space.Ledger.AddFact(ledger.Fact{Key: ledger.Key{Source: ledger.SourceGrant, UID: c.Owner.UID}, Owner: c.Owner, Range: r})
		grants = append(grants, g)
		k.add(c.Owner.Namespace)
		p.failures.RecordTrial(c, now)
		return true
	})
	for _, g := range grants {
		p.grants.ByClaimant[g.Owner.UID] = g
		p.queues.QueueClaimant(p.claimants.ByUID[g.Owner.UID])
	}
	return len(grants), refused
}

// ChooseRange takes a range for a claimant: the one that is meant for it, or the best fit. It counts the claimant
// towards its quota. It returns the refusal if there is no range.
func (p *Planner) ChooseRange(c *Claimant) (netipx.IPRange, *Refusal) {
	r, refusal, full := p.FindAvailable(c)
	switch limit, _ := p.quotas.quotaLimitFor(c); {
	case !full:
	case p.quotas.IsWithinQuota(c):
		p.growth.addShortfall(c)
	default:
		return r, quotaExceeded(c, limit)
	}
	if refusal == nil {
		refusal = p.quotas.reserveQuota(c)
	}
	switch {
	case refusal != nil:
		return netipx.IPRange{}, refusal
	case r.IsValid():
		return r, nil
	}
	if r, ok := p.takeFreeRange(c); ok {
		return r, nil
	}
	return netipx.IPRange{}, p.exhaustedRefusal(c)
}

// checkAvailability returns the refusal for a claimant that could get nothing now, however others fare. It returns
// nil if there is a range for the claimant. Unlike ChooseRange it takes nothing, and does not add to the shortfall.
// full reports whether no free range fits the claimant.
func (p *Planner) checkAvailability(c *Claimant) (refusal *Refusal, full bool) {
	_, refusal, full = p.FindAvailable(c)
	limit, limited := p.quotas.quotaLimitFor(c)
	if (refusal == nil || full) && limited && !c.countedInQuota && p.quotas.Shared.wouldRefuse(c.Cluster, limit, p.base.Key) {
		return quotaExceeded(c, limit), false
	}
	return refusal, full
}

// takeFreeRange takes the first free range that fits a claimant.
func (p *Planner) takeFreeRange(c *Claimant) (netipx.IPRange, bool) {
	switch s := c.Kind.RequestedShape(p.inventory, c); {
	case s.PrefixLength > 0:
		return p.space.Ledger.TakePrefix(s.PrefixLength)
	case s.Count > 0:
		return p.space.Ledger.TakeBlock(uint64(s.Count))
	}
	return p.space.Ledger.TakeUnitInZones(p.space.zonesForClaimant(c))
}

// FindAvailable returns the range that is meant for a claimant, or why it cannot have that. If no range is meant for
// it, FindAvailable checks whether any free range fits; full reports that none does.
func (p *Planner) FindAvailable(c *Claimant) (r netipx.IPRange, refusal *Refusal, full bool) {
	r, refusal = c.Kind.DesignatedRange(p.inventory, c)
	if refusal == nil && !r.IsValid() {
		refusal = p.noSubnetRefusal(c)
	}
	if refusal == nil && !r.IsValid() && !p.hasFreeRange(c) {
		return r, p.exhaustedRefusal(c), true
	}
	return r, refusal, false
}

// hasFreeRange reports whether a free range fits a claimant.
func (p *Planner) hasFreeRange(c *Claimant) bool {
	switch s := c.Kind.RequestedShape(p.inventory, c); {
	case s.PrefixLength > 0:
		return p.space.Ledger.HasFreePrefix(s.PrefixLength)
	case s.Count > 0:
		return p.space.Ledger.HasFreeBlock(s.Count)
	}
	return p.space.Ledger.HasFreeInZones(p.space.zonesForClaimant(c))
}

// exhaustedRefusal returns the refusal for a claimant for which nothing is free. All claimants that request a single
// unit share one refusal, because thousands may wait.
func (p *Planner) exhaustedRefusal(c *Claimant) *Refusal {
	if refusal := p.growth.tooLargeRefusal(c); refusal != nil {
		return refusal
	}
	if c.Kind.RequestedShape(p.inventory, c) != (RangeShape{}) && !p.base.isCarved() {
		return c.Kind.ExhaustedRefusal(p.inventory, c)
	}
	if p.space.HasZones() {
		return p.zoneExhaustedRefusal(c)
	}
	if p.cachedExhaustedRefusal == nil {
		p.cachedExhaustedRefusal = p.growth.growthRefusal()
	}
	if p.cachedExhaustedRefusal == nil {
		p.cachedExhaustedRefusal = c.Kind.ExhaustedRefusal(p.inventory, c)
	}
	return p.cachedExhaustedRefusal
}
