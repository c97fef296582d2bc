package hostlb

import (
	"cmp"
	"errors"
	"net/netip"
	"time"
)

// CompleteOp records the outcome of an operation.
func (hs *HostState) CompleteOp(now time.Time, op *Op, r OpResult) {
	hs.HasCurrentHeartbeat(now)
	a := op.Address
	switch op.Kind {
	case WriteHeartbeat:
		if hs.heartbeatInFlight = false; r.Err == nil && now.Sub(op.PlannedAt) < hs.Timing.Lifetime {
			hs.excludeOwnOutage(now, op.PlannedAt)
			hs.heartbeatConfirmedAt = op.PlannedAt
		}
	case AcquireLock, ReleaseUnconfirmed, ReleaseConfirmed, WriteReport:
		hs.completeLockWrite(now, op, &r)
	case ProbeAddress:
		delete(hs.probing, a)
		hs.completeProbe(now, op, &r)
	case AddAddress:
		if !errors.Is(r.Err, ErrOpTooLate) {
			hs.recordOutcome(now, a, r.Err)
		}
		if r.Err == nil {
			hs.managed[a] = hs.refreshTime(now, op)
			delete(hs.foreignClaims, a)
			delete(hs.announceStates, a)
		}
		delete(hs.probes, a) // the probe was before the address was added
	case RefreshAddress:
		if r.Err == nil {
			hs.managed[a] = hs.refreshTime(now, op)
		}
	case RemoveAddress:
		if r.Err == nil {
			delete(hs.managed, a)
		}
		delete(hs.foreignClaims, a)
		delete(hs.probes, a)
	case AnnounceAddress: // it is repeated whatever its outcome
	}
}

// completeLockWrite records the outcome of a write of a lock.
func (hs *HostState) completeLockWrite(now time.Time, op *Op, r *OpResult) {
	l := hs.lockForAddress(op.Address)
	l.writeInFlight = false
	if r.Err != nil {
		l.nextWriteAt = now.Add(hs.Timing.RetryInterval)
	}
	if h := hs.knownHosts[op.DeadHost]; h != nil && errors.Is(r.Err, ErrHolderAlive) {
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
		l.holder, l.releasedBy, l.report, l.acquiredAt = hs.Self.Name, "", op.Report, now
		l.confirmed, l.confirmedLapses = r.Err == nil, op.heartbeatLapses
		delete(hs.probes, op.Address)
		if f, failed := hs.failures[op.Address]; failed && now.Sub(f.LastAt) >= hs.Timing.failureBackoff() {
			delete(hs.failures, op.Address)
		}
	case ReleaseUnconfirmed:
		l.holder, l.releasedBy, l.report, l.confirmed = "", hs.Self.Name, nil, false
	case ReleaseConfirmed:
		l.holder, l.releasedBy, l.report, l.confirmed = "", "", nil, false
	case WriteReport:
		l.report = op.Report
	}
}

// excludeOwnOutage leaves out, of the silence of other hosts, the time in which this host was not answered either, up
// to its heartbeat that was sent at the time at: the API server may have been away for all hosts. After a lapse all
// silences count from now.
func (hs *HostState) excludeOwnOutage(now, at time.Time) {
	for _, h := range hs.knownHosts {
		switch missed := at.Sub(hs.heartbeatConfirmedAt) - hs.Timing.refreshInterval(); {
		case hs.heartbeatConfirmedAt.IsZero():
			h.unchangedSince = now
		case missed >= hs.Timing.RetryInterval:
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
func (hs *HostState) refreshTime(now time.Time, op *Op) time.Time {
	return op.PlannedAt.Add(min(hs.Timing.refreshInterval(), op.AddressLifetime(now, hs.Timing)/2))
}

// completeProbe records the result of a probe. A probe from before the lock was taken is ignored: it does not show
// which machine answers since.
func (hs *HostState) completeProbe(now time.Time, op *Op, r *OpResult) {
	a := op.Address
	if l := hs.locks[a]; l != nil && l.holder != hs.Self.Name && l.holder != "" {
		hs.completeTakeoverProbe(now, a, l.holder, r)
		return
	}
	if r.Err != nil {
		hs.recordOutcome(now, a, r.Err)
		return
	}
	if l := hs.locks[a]; l == nil || l.holder != hs.Self.Name || op.PlannedAt.Before(l.acquiredAt) {
		return
	}
	status := ProbeStatus{NoReply, now, r.ReplyMAC}
	if _, on := hs.managed[a]; on {
		delete(hs.failures, a) // this host can probe the address
	}
	switch other := hs.hostByMAC(r.ReplyMAC); {
	case hs.hostOwningAddress(a) != "" && hs.hostOwningAddress(a) == cmp.Or(other, hs.Self.Name):
		status.Result = ForeignReply // the address is that host's own, and it keeps it
	case r.ReplyMAC == "":
	case other != "":
		status.Result = PeerReply
	default:
		status.Result = ForeignReply
	}
	hs.probes[a] = status
}

// completeTakeoverProbe records the result of a probe of an address whose lock another host holds. A probe that failed
// counts as NotProbed and is not recorded as a failure: the host that takes the lock finds out.
func (hs *HostState) completeTakeoverProbe(now time.Time, a netip.Addr, holder string, r *OpResult) {
	status := ProbeStatus{NoReply, now, r.ReplyMAC}
	switch {
	case r.Err != nil:
		status.Result = NotProbed
	case r.ReplyMAC != "" && hs.hostByMAC(r.ReplyMAC) == holder:
		status.Result = PeerReply
	}
	hs.takeoverProbes[a] = status
}

// recordOutcome records the failure of an operation on an address, or deletes it where err is nil.
func (hs *HostState) recordOutcome(now time.Time, a netip.Addr, err error) {
	if err == nil {
		delete(hs.failures, a)
		return
	}
	f, before := hs.failures[a]
	if !before || now.Sub(f.LastAt) >= hs.Timing.failureBackoff() {
		f.Since = now
	}
	f.LastAt, f.Message = now, err.Error()
	hs.failures[a] = f
}
