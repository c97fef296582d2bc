package hostlb

import (
	"net/netip"
	"slices"
	"time"
)

// PlanOps returns the operations to run now, and the time at which to plan again if nothing happens before.
func (hs *HostState) PlanOps(now time.Time) (ops []Op, again time.Time) {
	v := hs.BuildView(now)
	p := ComputePlan(now, hs.Self.Name, v, hs.Timing)
	until := time.Time{}
	if v.HeartbeatCurrent {
		until = hs.heartbeatConfirmedAt.Add(hs.Timing.Lifetime)
		p.scheduleAt(until)
	}
	add := func(kind OpKind, all []netip.Addr) {
		for _, a := range all {
			ops = append(ops, Op{Kind: kind, Address: a, PlannedAt: now, ValidUntil: until, heartbeatLapses: hs.heartbeatLapses})
		}
	}
	add(RemoveAddress, p.Remove)
	add(AddAddress, p.Add)
	add(RefreshAddress, p.Refresh)
	ops = append(ops, hs.planAnnouncements(now, v, &p)...)
	switch at := hs.heartbeatSentAt.Add(hs.heartbeatInterval()); {
	case hs.Stopping, hs.heartbeatInFlight: // its answer triggers the next plan
	case now.Before(at):
		p.scheduleAt(at)
	default:
		hs.heartbeatInFlight, hs.heartbeatSentAt = true, now
		ops = append(ops, Op{Kind: WriteHeartbeat, PlannedAt: now, Host: hs.Self})
	}
	hs.scheduleLockExpiry(now, &p)
	for _, a := range p.Probe {
		if !hs.probing[a] {
			hs.probing[a] = true
			add(ProbeAddress, []netip.Addr{a})
		}
	}
	wanted := map[netip.Addr]*WantedAddress{}
	for i := range hs.wantedAddresses {
		wanted[hs.wantedAddresses[i].Address] = &hs.wantedAddresses[i]
	}
	for _, w := range []struct {
		kind OpKind
		all  []netip.Addr
	}{{AcquireLock, p.AcquireLocks}, {ReleaseUnconfirmed, p.ReleaseUnconfirmed}, {ReleaseConfirmed, p.ReleaseConfirmed}, {WriteReport, hs.pendingReports(now, v, wanted, &p)}} {
		for _, a := range w.all {
			if op := hs.beginLockWrite(now, w.kind, a, wanted[a], v, &p); op != nil {
				ops = append(ops, *op)
			}
		}
	}
	return ops, p.RequeueAt
}

// scheduleLockExpiry schedules the next plan for the time at which a lock that this host has written, and that the
// cache does not show, counts as deleted (ObserveCache).
func (hs *HostState) scheduleLockExpiry(now time.Time, p *Plan) {
	for _, l := range hs.locks {
		if at := l.writtenAt.Add(hs.Timing.Lifetime); !l.writtenAt.IsZero() && !l.shownByCache && now.Before(at) {
			p.scheduleAt(at)
		}
	}
}

// heartbeatInterval returns the time between two heartbeats. It is shorter while the last heartbeat is not answered.
func (hs *HostState) heartbeatInterval() time.Duration {
	if hs.heartbeatConfirmedAt.Before(hs.heartbeatSentAt) {
		return min(hs.Timing.refreshInterval(), hs.Timing.RetryInterval)
	}
	return hs.Timing.refreshInterval()
}

// pendingReports returns the addresses whose report in the lock is out of date, sorted.
func (hs *HostState) pendingReports(now time.Time, v *View, wanted map[netip.Addr]*WantedAddress, p *Plan) []netip.Addr {
	var out []netip.Addr
	if !v.HeartbeatCurrent || hs.Stopping {
		return nil
	}
	changes := map[netip.Addr]bool{}
	for _, all := range [][]netip.Addr{p.ReleaseUnconfirmed, p.AcquireLocks, p.Add, p.Remove} {
		for _, a := range all {
			changes[a] = true
		}
	}
	for a, w := range wanted {
		if v.Locks[a].Holder != hs.Self.Name || w.LeaseDeleting || changes[a] {
			continue
		}
		if report := hs.buildReport(now, w); report != nil && !report.Equal(hs.locks[a].report) {
			out = append(out, a)
		}
		if c, claimed := hs.foreignClaims[a]; claimed && now.Sub(c.ObservedAt) < conflictReportPeriod {
			p.scheduleAt(c.ObservedAt.Add(conflictReportPeriod))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// beginLockWrite begins a write of the lock of an address. It returns nil if another write of that lock is in flight,
// or has just failed.
func (hs *HostState) beginLockWrite(now time.Time, kind OpKind, a netip.Addr, w *WantedAddress, v *View, p *Plan) *Op {
	l := hs.lockForAddress(a)
	if l.writeInFlight {
		return nil
	}
	if now.Before(l.nextWriteAt) {
		p.scheduleAt(l.nextWriteAt)
		return nil
	}
	op := &Op{Kind: kind, Address: a, PlannedAt: now, Lock: v.Locks[a], heartbeatLapses: hs.heartbeatLapses}
	if w != nil {
		op.LeaseUID, op.LeaseDeleting = w.LeaseUID, w.LeaseDeleting
	}
	switch kind { //nolint:exhaustive // the others write no lock
	case AcquireLock:
		if l.holder == hs.Self.Name {
			op.Report = l.report // taking the lock again keeps the report
		} else if l.holder != "" {
			op.DeadHost, op.DeadHostVersion = l.holder, hs.knownHosts[l.holder].version
		}
	case ReleaseUnconfirmed, ReleaseConfirmed:
		l.confirmed = false // the release may land at any time from now on
	case WriteReport:
		op.Report = hs.buildReport(now, w)
	}
	l.writeInFlight = true
	return op
}
