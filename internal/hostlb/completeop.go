package hostlb

import (
	"cmp"
	"errors"
	"net/netip"
	"time"
)

// CompleteOp records the outcome of an operation.
func (m *HostState) CompleteOp(now time.Time, op *Op, r OpResult) {
	m.HasCurrentHeartbeat(now)
	a := op.Address
	switch op.Kind {
	case WriteHeartbeat:
		if m.heartbeatInFlight = false; r.Err == nil && now.Sub(op.PlannedAt) < m.Timing.Lifetime {
			m.excludeOwnOutage(now, op.PlannedAt)
			m.heartbeatConfirmedAt = op.PlannedAt
		}
	case AcquireLock, ReleaseUnconfirmed, ReleaseConfirmed, WriteReport:
		m.completeLockWrite(now, op, &r)
	case ProbeAddress:
		delete(m.probing, a)
		m.completeProbe(now, op, &r)
	case AddAddress:
		if !errors.Is(r.Err, ErrOpTooLate) {
			m.recordOutcome(now, a, r.Err)
		}
		if r.Err == nil {
			m.managed[a] = m.refreshTime(now, op)
			delete(m.foreignClaims, a)
			delete(m.announceStates, a)
		}
		delete(m.probes, a) // the probe was before the address was added
	case RefreshAddress:
		if r.Err == nil {
			m.managed[a] = m.refreshTime(now, op)
		}
	case RemoveAddress:
		if r.Err == nil {
			delete(m.managed, a)
		}
		delete(m.foreignClaims, a)
		delete(m.probes, a)
	case AnnounceAddress: // it is repeated whatever its outcome
	}
}

// completeLockWrite records the outcome of a write of a lock.
func (m *HostState) completeLockWrite(now time.Time, op *Op, r *OpResult) {
	l := m.lockForAddress(op.Address)
	l.writeInFlight = false
	if r.Err != nil {
		l.nextWriteAt = now.Add(m.Timing.RetryInterval)
	}
	if h := m.knownHosts[op.DeadHost]; h != nil && errors.Is(r.Err, ErrHolderAlive) {
		h.unchangedSince = now // the cache is behind
	}
	if r.ObservedLock != nil {
		l.version, l.holder, l.releasedBy, l.report, l.confirmed = r.ObservedLock.Version, r.ObservedLock.Holder, r.ObservedLock.ReleasedBy, r.ObservedLock.Report, false
		l.writtenAt, l.shownByCache = now, false
	}
	if r.LockVersion == "" {
		return
	}
	l.version, l.writtenAt, l.shownByCache = r.LockVersion, now, false
	switch op.Kind { //nolint:exhaustive // the others write no lock
	case AcquireLock:
		l.holder, l.releasedBy, l.report, l.acquiredAt = m.Self.Name, "", op.Report, now
		l.confirmed, l.confirmedLapses = r.Err == nil, op.heartbeatLapses
		delete(m.probes, op.Address)
		if f, failed := m.failures[op.Address]; failed && now.Sub(f.LastAt) >= m.Timing.failureBackoff() {
			delete(m.failures, op.Address)
		}
	case ReleaseUnconfirmed:
		l.holder, l.releasedBy, l.report, l.confirmed = "", m.Self.Name, nil, false
	case ReleaseConfirmed:
		l.holder, l.releasedBy, l.report, l.confirmed = "", "", nil, false
	case WriteReport:
		l.report = op.Report
	}
}

// excludeOwnOutage leaves out, of the silence of other hosts, the time in which this host was not answered either, up
// to its heartbeat that was sent at the time at: the API server may have been away for all hosts. After a lapse all
// silences count from now.
func (m *HostState) excludeOwnOutage(now, at time.Time) {
	for _, h := range m.knownHosts {
		switch missed := at.Sub(m.heartbeatConfirmedAt) - m.Timing.refreshInterval(); {
		case m.heartbeatConfirmedAt.IsZero():
			h.unchangedSince = now
		case missed >= m.Timing.RetryInterval:
			h.unchangedSince = earlierTime(now, h.unchangedSince.Add(missed))
		}
	}
}

func earlierTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// refreshTime returns when an address must be refreshed: well before its lifetime ends.
func (m *HostState) refreshTime(now time.Time, op *Op) time.Time {
	return op.PlannedAt.Add(min(m.Timing.refreshInterval(), op.AddressLifetime(now, m.Timing)/2))
}

// completeProbe records the result of a probe. A probe from before the lock was taken is ignored: it does not show
// which machine answers since.
func (m *HostState) completeProbe(now time.Time, op *Op, r *OpResult) {
	a := op.Address
	if l := m.locks[a]; l != nil && l.holder != m.Self.Name && l.holder != "" {
		m.completeTakeoverProbe(now, a, l.holder, r)
		return
	}
	if r.Err != nil {
		m.recordOutcome(now, a, r.Err)
		return
	}
	if l := m.locks[a]; l == nil || l.holder != m.Self.Name || op.PlannedAt.Before(l.acquiredAt) {
		return
	}
	status := ProbeStatus{NoReply, now, r.ReplyMAC}
	if _, on := m.managed[a]; on {
		delete(m.failures, a) // this host can probe the address
	}
	switch other := m.hostByMAC(r.ReplyMAC); {
	case m.hostOwningAddress(a) != "" && m.hostOwningAddress(a) == cmp.Or(other, m.Self.Name):
		status.Result = ForeignReply // the address is that host's own, and it keeps it
	case r.ReplyMAC == "":
	case other != "":
		status.Result = PeerReply
	default:
		status.Result = ForeignReply
	}
	m.probes[a] = status
}

// completeTakeoverProbe records the result of a probe of an address whose lock another host holds. A probe that failed
// counts as NotProbed and is not recorded as a failure: the host that takes the lock finds out.
func (m *HostState) completeTakeoverProbe(now time.Time, a netip.Addr, holder string, r *OpResult) {
	status := ProbeStatus{NoReply, now, r.ReplyMAC}
	switch {
	case r.Err != nil:
		status.Result = NotProbed
	case r.ReplyMAC != "" && m.hostByMAC(r.ReplyMAC) == holder:
		status.Result = PeerReply
	}
	m.takeoverProbes[a] = status
}

// recordOutcome records the failure of an operation on an address, or deletes it where err is nil.
func (m *HostState) recordOutcome(now time.Time, a netip.Addr, err error) {
	if err == nil {
		delete(m.failures, a)
		return
	}
	f, before := m.failures[a]
	if !before || now.Sub(f.LastAt) >= m.Timing.failureBackoff() {
		f.Since = now
	}
	f.LastAt, f.Message = now, err.Error()
	m.failures[a] = f
}
