package hostlb

import (
	"net/netip"
	"slices"
	"time"
)

// Next says what to do now, and when to look again if nothing happens before.
func (m *Memory) Next(now time.Time) (ops []Op, again time.Time) {
	v := m.View(now)
	p := Decide(now, m.Self.Name, v, m.Timing)
	until := time.Time{}
	if v.Fresh {
		until = m.beaten.Add(m.Timing.Lifetime)
		p.again(until)
	}
	add := func(kind Kind, all []netip.Addr) {
		for _, a := range all {
			ops = append(ops, Op{Kind: kind, Address: a, At: now, Until: until, lapses: m.lapses})
		}
	}
	add(Remove, p.Remove)
	add(Add, p.Add)
	add(Refresh, p.Refresh)
	ops = append(ops, m.announcements(now, v, &p)...)
	switch at := m.beatAt.Add(m.beatEvery()); {
	case m.Stopping, m.beating: // its answer has the host look again
	case now.Before(at):
		p.again(at)
	default:
		m.beating, m.beatAt = true, now
		ops = append(ops, Op{Kind: Beat, At: now, Host: m.Self})
	}
	m.outlast(now, &p)
	for _, a := range p.Probe {
		if !m.asking[a] {
			m.asking[a] = true
			add(Probe, []netip.Addr{a})
		}
	}
	wanted := map[netip.Addr]*Wanted{}
	for i := range m.wanted {
		wanted[m.wanted[i].Address] = &m.wanted[i]
	}
	for _, w := range []struct {
		kind Kind
		all  []netip.Addr
	}{{Take, p.Lock}, {Leave, p.Leave}, {Empty, p.Empty}, {Tell, m.toTell(now, v, wanted, &p)}} {
		for _, a := range w.all {
			if op := m.write(now, w.kind, a, wanted[a], v, &p); op != nil {
				ops = append(ops, *op)
			}
		}
	}
	return ops, p.Next
}

// outlast has the host look again when a lock that it has written, and that the cache does not show, counts as deleted (Read).
func (m *Memory) outlast(now time.Time, p *Plan) {
	for _, l := range m.locks {
		if at := l.wrote.Add(m.Timing.Lifetime); !l.wrote.IsZero() && !l.shown && now.Before(at) {
			p.again(at)
		}
	}
}

// beatEvery is how long after one heartbeat the next is sent: sooner where the last one was not answered.
func (m *Memory) beatEvery() time.Duration {
	if m.beaten.Before(m.beatAt) {
		return min(m.Timing.refresh(), m.Timing.Again)
	}
	return m.Timing.refresh()
}

// toTell are the addresses of which there is something new to tell.
func (m *Memory) toTell(now time.Time, v *View, wanted map[netip.Addr]*Wanted, p *Plan) []netip.Addr {
	var out []netip.Addr
	if !v.Fresh || m.Stopping {
		return nil
	}
	changes := map[netip.Addr]bool{}
	for _, all := range [][]netip.Addr{p.Leave, p.Lock, p.Add, p.Remove} {
		for _, a := range all {
			changes[a] = true
		}
	}
	for a, w := range wanted {
		if v.Locks[a].Holder != m.Self.Name || w.Ends || changes[a] {
			continue
		}
		if is := m.report(now, w); is != nil && !is.Equal(m.locks[a].report) {
			out = append(out, a)
		}
		if c, claimed := m.claimed[a]; claimed && now.Sub(c.At) < contestedFor {
			p.again(c.At.Add(contestedFor))
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// write begins a write of a lock; nil: another one is under way, or has just failed.
func (m *Memory) write(now time.Time, kind Kind, a netip.Addr, w *Wanted, v *View, p *Plan) *Op {
	l := m.lockOf(a)
	if l.writing {
		return nil
	}
	if now.Before(l.notBefore) {
		p.again(l.notBefore)
		return nil
	}
	op := &Op{Kind: kind, Address: a, At: now, Lock: v.Locks[a], lapses: m.lapses}
	if w != nil {
		op.Lease, op.Ends = w.Lease, w.Ends
	}
	switch kind { //nolint:exhaustive // the others write no lock
	case Take:
		if l.holder == m.Self.Name {
			op.Report = l.report // it stays
		} else if l.holder != "" {
			op.Dead, op.DeadVersion = l.holder, m.heard[l.holder].version
		}
	case Leave, Empty:
		l.sure = false // it may land at any time from now on
	case Tell:
		op.Report = m.report(now, w)
	}
	l.writing = true
	return op
}
