package grants

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// MachineLookups decides which Machines are to be read for the claimants of a pool whose subnets have failure
// domains, and records what was found.
type MachineLookups struct {
	// active is the number of Machine lookups in progress.
	active int

	claimants *Claimants
	space     *Space
	queues    *Queues
}

// needsMachine reports whether the pool has to know the Machine of a claimant. It does not if the claimant has a
// record, because it keeps that address.
func (ls *MachineLookups) needsMachine(c *Claimant) bool {
	return ls.space.HasZones() && c.MachineLookup != nil && !c.RecordedRange.IsValid()
}

// BeginMachineLookups returns the claims whose Machines are to be looked up now, oldest first, up to the limit of
// concurrent lookups. The caller must call EndMachineLookups when these lookups have ended.
func (ls *MachineLookups) BeginMachineLookups(now time.Time) []MachineLookupRequest {
	out := ls.dueMachineLookups(now, MaxMachineLookups-ls.active)
	for _, of := range out {
		ls.claimants.ByUID[of.UID].MachineLookup.startedAt = now
	}
	ls.active += len(out)
	return out
}

// EndMachineLookups records that some lookups have ended. A lookup without a result is due again.
func (ls *MachineLookups) EndMachineLookups(of []MachineLookupRequest) {
	ls.active -= len(of)
	for _, l := range of {
		if c := ls.claimants.ByUID[l.UID]; c != nil && c.MachineLookup != nil && equalOwners(c.MachineLookup.ownerReferences, l.Owners) {
			c.MachineLookup.startedAt = time.Time{}
		}
	}
}

// dueMachineLookups returns the claims whose Machines are to be looked up now, oldest first, at most the given
// number.
func (ls *MachineLookups) dueMachineLookups(now time.Time, most int) (out []MachineLookupRequest) {
	if !ls.space.HasZones() || most <= 0 {
		return nil
	}
	ls.queues.Pending.Scan(func(c *Claimant) bool {
		if ls.needsMachine(c) && c.MachineLookup.isDue(now) {
			out = append(out, MachineLookupRequest{c.Owner.UID, NamespacedNameFromOwner(c.Owner), c.MachineLookup.ownerReferences})
		}
		return len(out) < most
	})
	return out
}

// NextMachineLookupDelay returns how long until the next lookup is due, or until the results of the lookups in
// progress should be used; 0 means never. A lookup that is due while the maximum is in progress waits for the end of
// another one, which enqueues the pool.
func (ls *MachineLookups) NextMachineLookupDelay(now time.Time) (wait time.Duration) {
	if !ls.space.HasZones() {
		return 0
	}
	full := ls.active >= MaxMachineLookups
	ls.queues.Pending.Scan(func(c *Claimant) bool {
		switch l := c.MachineLookup; {
		case !ls.needsMachine(c):
		case !l.startedAt.IsZero():
			wait = MinWait(wait, max(now.Sub(l.startedAt), minMachineLookupDelay))
		case l.isDue(now) && full:
		case !l.completed:
			wait = MinWait(wait, time.Millisecond)
		case !l.retryAt.IsZero():
			wait = MinWait(wait, max(l.retryAt.Sub(now), time.Millisecond))
		}
		return true
	})
	return wait
}

// RecordMachine records the result of a lookup: the Machine, or why it is not known.
func (ls *MachineLookups) RecordMachine(of MachineLookupRequest, found Machine, problem *Refusal, now time.Time) {
	c := ls.claimants.ByUID[of.UID]
	if c == nil || c.MachineLookup == nil || !equalOwners(c.MachineLookup.ownerReferences, of.Owners) {
		return
	}
	lookup := &MachineLookup{ownerReferences: c.MachineLookup.ownerReferences, machine: found, completed: true, refusal: problem}
	switch {
	case problem != nil:
		lookup.retryBackoff = term.NextRetryPause(c.MachineLookup.retryBackoff)
		lookup.retryAt = term.RetryTimeAfter(now, lookup.retryBackoff)
	case found.Name.Name != "" && found.FailureDomain == "":
		lookup.retryAt = term.RetryTimeAfter(now, machineLookupInterval)
	}
	c.MachineLookup = lookup
}

// AdmitByMachine decides on a claimant by the result of its Machine lookup.
func (ls *MachineLookups) AdmitByMachine(c *Claimant) AdmissionResult {
	switch {
	case !ls.needsMachine(c):
		return AdmissionResult{}
	case !c.MachineLookup.completed:
		return AdmissionResult{Wait: true, Quiet: true} // the lookup is in progress
	}
	return AdmissionResult{Refusal: c.MachineLookup.refusal}
}
