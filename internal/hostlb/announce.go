package hostlb

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// first is how often the wire is told of an address that was just added, or claimed by another machine; repeated is how long after that
// it is told once more, and steady is how long after each other from then on: a switch, or a machine, that missed it, or has heard
// another one since, would not find the address until it asks.
const (
	first  = 3
	steady = time.Minute
)

var repeated = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}

// announced is since when the wire is told of an address, how often it was told once more, and when it was told last.
type announced struct {
	since, last time.Time
	again       int
}

// due is when the wire is told next.
func (o *announced) due() time.Time {
	if o.again < len(repeated) {
		return o.since.Add(repeated[o.again])
	}
	return o.last.Add(steady)
}

// announcements tell the wire of the addresses that this host has and is sure of: one that may have lost its lock says nothing, as who
// has it does.
func (m *Memory) announcements(now time.Time, v *View, p *Plan) []Op {
	if !v.Fresh || m.Stopping {
		return nil
	}
	var out []Op
	for _, a := range slices.SortedFunc(maps.Keys(m.ours), netip.Addr.Compare) {
		if l := v.Locks[a]; l.Holder != m.Self.Name || !l.Sure || slices.Contains(p.Remove, a) {
			continue
		}
		o, times := m.announced[a], 1
		switch {
		case o == nil:
			o, times = &announced{since: now}, first
			m.announced[a] = o
		case now.Before(o.due()):
			p.again(o.due())
			continue
		default:
			for o.again < len(repeated) && !now.Before(o.due()) {
				o.again++
			}
		}
		o.last = now
		out = append(out, Op{Kind: Announce, Address: a, At: now, Times: times})
		p.again(o.due())
	}
	return out
}
