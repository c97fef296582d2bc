package nodeipam

import (
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// takeoverPlanner decides when a manager that is not the holder becomes the holder. Only the amount of work depends on
// that, never safety.
type takeoverPlanner struct {
	// workSince is the time since which a takeover is delayed although there is work; zero means that none is.
	workSince        time.Time
	outdatedStatuses outdatedStatuses

	term       *termState
	events     *nodeEvents
	grants     *nodeGrants
	cidrs      *nodeCIDRs
	writes     *nodeWrites
	protection *objectProtection
	growth     *blockPlanner
	planner    *grantPlanner
}

// decideTakeover decides whether this manager becomes the holder now, and returns how long to wait if it does not; 0
// means that there is nothing to do.
func (tp *takeoverPlanner) decideTakeover(now time.Time, elected bool) (bool, time.Duration) {
	if now.Before(tp.term.NotBefore) {
		return false, tp.term.NotBefore.Sub(now)
	}
	work, wait := tp.tryPlan(now)
	switch {
	case work:
	case elected:
		tp.workSince = time.Time{}
		tp.events.addDeferredRefusals()
		return false, wait
	default:
		tp.workSince = time.Time{}
		return tp.events.needsTakeoverForEvents(now, wait)
	}
	if (!tp.term.wasHolder && !tp.term.hasInheritedWork) || (elected && tp.term.Backoff == 0) {
		return true, 0
	}
	if tp.workSince.IsZero() {
		tp.workSince = now
	}
	if left := term.TakeoverDelay - now.Sub(tp.workSince); left > 0 {
		return false, left
	}
	return true, 0
}

// tryPlan plans as a holder would, withdraws the grants again, and reports whether a holder would have something to do.
// Nodes that can be granted nothing are not work: they stay refused, and their events are deferred. Nodes whose writes
// were refused before count, as those of another manager may not be refused.
func (tp *takeoverPlanner) tryPlan(now time.Time) (bool, time.Duration) {
	if tp.term.needsRevalidation || tp.term.takeoverRequested || tp.protection.hasObjectToClose() {
		return true, 0
	}
	savedRefusedWrites, notes := tp.writes.refused, len(tp.events.pending)
	tp.writes.refused.nodeUIDs = nil
	tp.growth.updateCanGrow(now)
	_, wait := tp.planner.planGrants(now)
	tp.writes.refused = savedRefusedWrites
	tp.events.deferEvents(notes)
	growth := tp.growth.planBlocks(now)
	wait = term.MinWait(wait, growth.requeueAfter)
	work := tp.term.hasInheritedWork || len(tp.grants.byNode) > 0 || growth.hasRequests()
	tp.cidrs.withdrawGrants(nil)
	return work, wait
}

// hasOnlyInheritedWork reports whether there is nothing to do except what another holder may have left. It plans to
// find out, as tryPlan does.
func (tp *takeoverPlanner) hasOnlyInheritedWork(now time.Time) bool {
	left := tp.term.hasInheritedWork
	tp.term.hasInheritedWork = false
	work, _ := tp.tryPlan(now)
	tp.term.hasInheritedWork = left
	return left && !work
}
