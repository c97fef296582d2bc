package hostlb

import (
	"cmp"
	"errors"
	"net/netip"
	"time"
)

// Done takes in what became of an Op.
func (m *Memory) Done(now time.Time, op *Op, r Result) {
	m.Fresh(now)
	a := op.Address
	switch op.Kind {
	case Beat:
		if m.beating = false; r.Err == nil && now.Sub(op.At) < m.Timing.Lifetime {
			m.listenOn(now, op.At)
			m.beaten = op.At
		}
	case Take, Leave, Empty, Tell:
		m.wrote(now, op, &r)
	case Probe:
		delete(m.asking, a)
		m.heardOf(now, op, &r)
	case Add:
		if !errors.Is(r.Err, ErrLate) {
			m.did(now, a, r.Err)
		}
		if r.Err == nil {
			m.ours[a] = m.due(now, op)
			delete(m.claimed, a)
			delete(m.announced, a)
		}
		delete(m.wire, a) // what it said was before
	case Refresh:
		if r.Err == nil {
			m.ours[a] = m.due(now, op)
		}
	case Remove:
		if r.Err == nil {
			delete(m.ours, a)
		}
		delete(m.claimed, a)
		delete(m.wire, a)
	case Announce: // it is repeated whatever became of it
	}
}

// wrote takes in what became of a write of a lock.
func (m *Memory) wrote(now time.Time, op *Op, r *Result) {
	l := m.lockOf(op.Address)
	l.writing = false
	if r.Err != nil {
		l.notBefore = now.Add(m.Timing.Again)
	}
	if h := m.heard[op.Dead]; h != nil && errors.Is(r.Err, ErrAlive) {
		h.since = now // the cache is behind
	}
	if r.Read != nil {
		l.version, l.holder, l.left, l.report, l.sure = r.Read.Version, r.Read.Holder, r.Read.Left, r.Read.Report, false
		l.wrote, l.shown = now, false
	}
	if r.Version == "" {
		return
	}
	l.version, l.wrote, l.shown = r.Version, now, false
	switch op.Kind { //nolint:exhaustive // the others write no lock
	case Take:
		l.holder, l.left, l.report, l.taken = m.Self.Name, "", op.Report, now
		l.sure, l.lapses = r.Err == nil, op.lapses
		delete(m.wire, op.Address)
		if f, failed := m.failed[op.Address]; failed && now.Sub(f.Last) >= m.Timing.rest() {
			delete(m.failed, op.Address)
		}
	case Leave:
		l.holder, l.left, l.report, l.sure = "", m.Self.Name, nil, false
	case Empty:
		l.holder, l.left, l.report, l.sure = "", "", nil, false
	case Tell:
		l.report = op.Report
	}
}

// listenOn counts for how long other hosts are silent without the time in which this one was not answered either, up to a heartbeat
// that was sent at a time: the API server may have been away for all. After a lapse all begins anew.
func (m *Memory) listenOn(now, at time.Time) {
	for _, h := range m.heard {
		switch missed := at.Sub(m.beaten) - m.Timing.refresh(); {
		case m.beaten.IsZero():
			h.since = now
		case missed >= m.Timing.Again:
			h.since = earlier(now, h.since.Add(missed))
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// due is when an address is to be refreshed: well before its lifetime is over.
func (m *Memory) due(now time.Time, op *Op) time.Time {
	return op.At.Add(min(m.Timing.refresh(), op.LifetimeOf(now, m.Timing)/2))
}

// heardOf takes in what the wire said of an address. What it was asked before the lock was taken says nothing of who answers since.
func (m *Memory) heardOf(now time.Time, op *Op, r *Result) {
	a := op.Address
	if l := m.locks[a]; l != nil && l.holder != m.Self.Name && l.holder != "" {
		m.heardBefore(now, a, l.holder, r)
		return
	}
	if r.Err != nil {
		m.did(now, a, r.Err)
		return
	}
	if l := m.locks[a]; l == nil || l.holder != m.Self.Name || op.At.Before(l.taken) {
		return
	}
	is := Asked{Silent, now, r.MAC}
	if _, on := m.ours[a]; on {
		delete(m.failed, a) // it is not blind
	}
	switch other := m.hostOf(r.MAC); {
	case m.owner(a) != "" && m.owner(a) == cmp.Or(other, m.Self.Name):
		is.Word = Foreign // it is that host's own, which it does not give up
	case r.MAC == "":
	case other != "":
		is.Word = Another
	default:
		is.Word = Foreign
	}
	m.wire[a] = is
}

// heardBefore takes in what the wire said of an address whose lock another host has. What cannot be asked is Unasked, and no failure:
// the host that takes the lock finds out.
func (m *Memory) heardBefore(now time.Time, a netip.Addr, holder string, r *Result) {
	is := Asked{Silent, now, r.MAC}
	switch {
	case r.Err != nil:
		is.Word = Unasked
	case r.MAC != "" && m.hostOf(r.MAC) == holder:
		is.Word = Another
	}
	m.before[a] = is
}

// did notes what could not be done.
func (m *Memory) did(now time.Time, a netip.Addr, err error) {
	if err == nil {
		delete(m.failed, a)
		return
	}
	f, before := m.failed[a]
	if !before || now.Sub(f.Last) >= m.Timing.rest() {
		f.Since = now
	}
	f.Last, f.Text = now, err.Error()
	m.failed[a] = f
}
