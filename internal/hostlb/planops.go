package hostlb

import (
	"net/netip"
	"slices"
	"time"
)

// PlanOps returns the operations to run now, and the time at which to plan again if nothing happens before.
func (m *HostState) PlanOps(now time.Time) (ops []Op, again time.Time) {
	v := m.BuildView(now)
	p := ComputePlan(now, m.Self.Name, v, m.Timing)
	until := time.Time{}
	if v.HeartbeatCurrent {
		until = m.heartbeatConfirmedAt.Add(m.Timing.Lifetime)
		p.scheduleAt(until)
	}
	add := func(kind OpKind, all []netip.Addr) {
		for _, a := range all {
			ops = append(ops, Op{Kind: kind, Address: a, PlannedAt: now, ValidUntil: until, heartbeatLapses: m.heartbeatLapses})
		}
	}
	add(RemoveAddress, p.Remove)
	add(AddAddress, p.Add)
	add(RefreshAddress, p.Refresh)
	ops = append(ops, m.planAnnouncements(now, v, &p)...)
	switch at := m.heartbeatSentAt.Add(m.heartbeatInterval()); {
	case m.Stopping, m.heartbeatInFlight: // its answer triggers the next plan
	case now.Before(at):
		p.scheduleAt(at)
	default:
		m.heartbeatInFlight, m.heartbeatSentAt = true, now
		ops = append(ops, Op{Kind: WriteHeartbeat, PlannedAt: now, Host: m.Self})
	}
	m.scheduleLockExpiry(now, &p)
	for _, a := range p.Probe {
		if !m.probing[a] {
			m.probing[a] = true
			add(ProbeAddress, []netip.Addr{a})
		}
	}
	wanted := map[netip.Addr]*WantedAddress{}
	for i := range m.wantedAddresses {
		wanted[m.wantedAddresses[i].Address] = &m.wantedAddresses[i]
	}
	for _, w := range []struct {
		kind OpKind
		all  []netip.Addr
	}{{AcquireLock, p.AcquireLocks}, {ReleaseUnconfirmed, p.ReleaseUnconfirmed}, {ReleaseConfirmed, p.ReleaseConfirmed}, {WriteReport, m.pendingReports(now, v, wanted, &p)}} {
		for _, a := range w.all {
			if op := m.beginLockWrite(now, w.kind, a, wanted[a], v, &p); op != nil {
				ops = append(ops, *op)
			}
		}
	}
	return ops, p.RequeueAt
}

// scheduleLockExpiry schedules the next plan for the time at which a lock that this host has written, and that the
// cache does not show, counts as deleted (ObserveCache).
func (m *HostState) scheduleLockExpiry(now time.Time, p *Plan) {
	for _, l := range m.locks {
		if at := l.writtenAt.Add(m.Timing.Lifetime); !l.writtenAt.IsZero() && !l.shownByCache && now.Before(at) {
			p.scheduleAt(at)
		}
	}
}

// heartbeatInterval returns the time between two heartbeats. It is shorter while the last heartbeat is not answered.
func (m *HostState) heartbeatInterval() time.Duration {
	if m.heartbeatConfirmedAt.Before(m.heartbeatSentAt) {
		return min(m.Timing.refreshInterval(), m.Timing.RetryInterval)
	}
	return m.Timing.refreshInterval()
}

// pendingReports returns the addresses whose report in the lock is out of date, sorted.
func (m *HostState) pendingReports(now time.Time, v *View, wanted map[netip.Addr]*WantedAddress, p *Plan) []netip.Addr {
	var out []netip.Addr
	if !v.HeartbeatCurrent || m.Stopping {
		return nil
	}
	changes := map[netip.Addr]bool{}
	for _, all := range [][]netip.Addr{p.ReleaseUnconfirmed, p.AcquireLocks, p.Add, p.Remove} {
		for _, a := range all {
			changes[a] = true
		}
	}
	for a, w := range wanted {
		if v.Locks[a].Holder != m.Self.Name || w.LeaseDeleting || changes[a] {
			continue
		}
		if report := m.buildReport(now, w); report != nil && !report.Equal(m.locks[a].report) {
			out = append(out, a)
		}
		if c, claimed := m.foreignClaims[a]; claimed && now.Sub(c.ObservedAt) < conflictReportPeriod {
			p.scheduleAt(c.ObservedAt.Add(conflictReportPeriod))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// beginLockWrite begins a write of the lock of an address. It returns nil if another write of that lock is in flight,
// or has just failed.
func (m *HostState) beginLockWrite(now time.Time, kind OpKind, a netip.Addr, w *WantedAddress, v *View, p *Plan) *Op {
	l := m.lockForAddress(a)
	if l.writeInFlight {
		return nil
	}
	if now.Before(l.nextWriteAt) {
		p.scheduleAt(l.nextWriteAt)
		return nil
	}
	op := &Op{Kind: kind, Address: a, PlannedAt: now, Lock: v.Locks[a], heartbeatLapses: m.heartbeatLapses}
	if w != nil {
		op.LeaseUID, op.LeaseDeleting = w.LeaseUID, w.LeaseDeleting
	}
	switch kind { //nolint:exhaustive // the others write no lock
	case AcquireLock:
		if l.holder == m.Self.Name {
			op.Report = l.report // taking the lock again keeps the report
		} else if l.holder != "" {
			op.DeadHost, op.DeadHostVersion = l.holder, m.knownHosts[l.holder].version
		}
	case ReleaseUnconfirmed, ReleaseConfirmed:
		l.confirmed = false // the release may land at any time from now on
	case WriteReport:
		op.Report = m.buildReport(now, w)
	}
	l.writeInFlight = true
	return op
}
