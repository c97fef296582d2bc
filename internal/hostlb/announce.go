package hostlb

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// initialAnnouncements is how often an address is announced that was just added, or claimed by another machine.
// announceDelays are the times after that at which it is announced once more, and announceInterval is the interval from
// then on: a switch or a machine that missed an announcement, or has received another one since, would not find the
// address until it asks.
const (
	initialAnnouncements = 3
	announceInterval     = time.Minute
)

var announceDelays = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// announceState is when the announcements of an address began, when the last one was, and how often it was repeated.
type announceState struct {
	startedAt, lastAt time.Time
	repeats           int
}

// nextAt returns when the address is announced next.
func (as *announceState) nextAt() time.Time {
	if as.repeats < len(announceDelays) {
		return as.startedAt.Add(announceDelays[as.repeats])
	}
	return as.lastAt.Add(announceInterval)
}

// planAnnouncements returns the announcements of the addresses that this host has and is sure of. A host that may have
// lost the lock announces nothing, as the new holder does.
func (hs *HostState) planAnnouncements(now time.Time, v *View, p *Plan) []Op {
	if !v.HeartbeatCurrent || hs.Stopping {
		return nil
	}
	var out []Op
	for _, a := range slices.SortedFunc(maps.Keys(hs.managed), netip.Addr.Compare) {
		if l := v.Locks[a]; l.Holder != hs.Self.Name || !l.Confirmed || slices.Contains(p.Remove, a) {
			continue
		}
		o, times := hs.announceStates[a], 1
		switch {
		case o == nil:
			o, times = &announceState{startedAt: now}, initialAnnouncements
			hs.announceStates[a] = o
		case now.Before(o.nextAt()):
			p.scheduleAt(o.nextAt())
			continue
		default:
			for o.repeats < len(announceDelays) && !now.Before(o.nextAt()) {
				o.repeats++
			}
		}
		o.lastAt = now
		out = append(out, Op{Kind: AnnounceAddress, Address: a, PlannedAt: now, AnnounceCount: times})
		p.scheduleAt(o.nextAt())
	}
	return out
}
