package hostlb

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Timing is what the rules are made of.
type Timing struct {
	// Lifetime is how long the kernel keeps an address that is not refreshed, and how long a lock is held by a heartbeat: D.
	Lifetime time.Duration
	// Step is how much later each next host of the rank takes an address.
	Step time.Duration
	// Again is when the wire is asked again about an address that somebody answers for.
	Again time.Duration
}

// DefaultTiming is that of T1 to T4: a host that is killed has lost its addresses after 10 s, and another one has them some 13 s
// after that.
func DefaultTiming() Timing {
	return Timing{Lifetime: 10 * time.Second, Step: 200 * time.Millisecond, Again: time.Second}
}

// patience is after how long without a heartbeat a host is taken for dead: longer than its addresses live, by its own clock.
func (t Timing) patience() time.Duration { return t.Lifetime + t.Lifetime/4 }

// refresh is how often an address is refreshed, and a heartbeat written.
func (t Timing) refresh() time.Duration { return t.Lifetime / 3 }

// Wanted is an address that hosts are to show.
type Wanted struct {
	Address netip.Addr
	// Nodes are those with endpoints of every Service that is to be served by its own node; nil: any host will do.
	Nodes map[string]bool
	// Ends: its lease is being deleted. It is to be off the wire, and the lock to say so.
	Ends bool
}

// Lock is the coordination Lease of an address, as it was read. One that does not exist has no version.
type Lock struct {
	Version string
	// Holder is the host that has it; empty: none.
	Holder string
}

// Word is what the wire said about an address when it was asked.
type Word int

// What the wire says: it was not asked since the lock was taken, nobody answered, the host did that had the lock before, or
// somebody else did.
const (
	Unasked Word = iota
	Silent
	Former
	Foreign
)

// Asked is the last answer of the wire, and when it came.
type Asked struct {
	Word Word
	At   time.Time
	// MAC is who answered.
	MAC string
}

// View is what a host knows when it looks. Its times are of its own monotonic clock.
type View struct {
	Wanted []Wanted
	// Fresh: the locks and heartbeats were read now. Otherwise the API server did not answer, and they are those of before;
	// nil: they were never read.
	Fresh bool
	Locks map[netip.Addr]Lock
	Hosts []Host
	// Heard is when the heartbeat of each host last changed, or was first seen. That of one which has a lock and no heartbeat
	// is since when that was first seen.
	Heard map[string]time.Time
	// Free is since when the lock of an address is seen to be without a living holder.
	Free map[netip.Addr]time.Time
	// Ours are the addresses on the interface that bear our mark, each with when it was last added or refreshed.
	Ours map[netip.Addr]time.Time
	// Wire is what the wire said since the lock is ours; Claimed, addresses of ours that another MAC claims to have.
	Wire    map[netip.Addr]Asked
	Claimed map[netip.Addr]bool
	// Stopping: the host is to give up all that it has.
	Stopping bool
}

// Plan is what a host does next. What is in no list stays as it is.
type Plan struct {
	// Lock are locks to take, each by the version that was read.
	Lock []netip.Addr
	// Probe are addresses to ask the wire about.
	Probe []netip.Addr
	// Add are addresses to put on the interface, and to announce; Refresh, those to give another lifetime.
	Add, Refresh []netip.Addr
	// Remove are addresses to take off the interface.
	Remove []netip.Addr
	// Empty are locks to give back, after the address is off.
	Empty []netip.Addr
	// Contested are addresses that cannot be had, since somebody answers for them: the host that had the lock before, or
	// somebody else (InUse).
	Contested, InUse []netip.Addr
	// Next is when to look again if nothing happens; zero: no sooner than the next heartbeat.
	Next time.Time
}

func (p *Plan) again(at time.Time) {
	if p.Next.IsZero() || at.Before(p.Next) {
		p.Next = at
	}
}

// Decide says what a host does next (T2 to T6). It is the same for the same view.
func Decide(now time.Time, me string, v *View, t Timing) Plan {
	d := decider{now: now, me: me, v: v, t: t, wanted: map[netip.Addr]*Wanted{}}
	all := map[netip.Addr]bool{}
	for i := range v.Wanted {
		d.wanted[v.Wanted[i].Address], all[v.Wanted[i].Address] = &v.Wanted[i], true
	}
	for a := range v.Ours {
		all[a] = true
	}
	for a, l := range v.Locks {
		if l.Holder == me {
			all[a] = true
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		d.address(a)
	}
	return d.out
}

type decider struct {
	now    time.Time
	me     string
	v      *View
	t      Timing
	wanted map[netip.Addr]*Wanted
	out    Plan
}

func (d *decider) address(a netip.Addr) {
	w := d.wanted[a]
	holds := d.v.Locks[a].Holder == d.me
	switch {
	case !holds:
		d.without(a, w)
	case d.mayHave(a, w):
		d.hold(a)
	default:
		d.giveUp(a)
	}
}

// mayHave reports whether the host is to have an address whose lock it holds.
func (d *decider) mayHave(a netip.Addr, w *Wanted) bool {
	return w != nil && !w.Ends && !d.v.Stopping && d.rank(a, w, false) >= 0
}

// without is for an address whose lock another host has, or nobody (T2, T6). What is on the interface goes at once: the lock
// was lost, or it is from before a restart. While nothing was ever read that is not known: the kernel ends it, if nobody does.
func (d *decider) without(a netip.Addr, w *Wanted) {
	if _, on := d.v.Ours[a]; on {
		if d.v.Locks == nil {
			return
		}
		d.out.Remove = append(d.out.Remove, a)
		return
	}
	if w == nil || d.v.Stopping || !d.v.Fresh {
		return // nobody takes a lock that he cannot read
	}
	if holder := d.v.Locks[a].Holder; holder != "" {
		if heard, known := d.v.Heard[holder]; !known || d.now.Sub(heard) < d.t.patience() {
			if known {
				d.out.again(heard.Add(d.t.patience()))
			}
			return
		}
	} else if w.Ends {
		return // it is off the wire: nobody holds it
	}
	rank := d.rank(a, w, true)
	since, seen := d.v.Free[a]
	if rank < 0 || !seen {
		return
	}
	if at := since.Add(time.Duration(rank) * d.t.Step); d.now.Before(at) {
		d.out.again(at)
		return
	}
	d.out.Lock = append(d.out.Lock, a)
}

// rank is the place of the host among those that may have an address, -1: it may not. Among the living, where a lock is to be
// taken. One that ends may be taken by any that reaches it.
func (d *decider) rank(a netip.Addr, w *Wanted, living bool) int {
	hosts := d.v.Hosts
	if living {
		hosts = slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool {
			heard, known := d.v.Heard[h.Name]
			return h.Name != d.me && (!known || d.now.Sub(heard) >= d.t.patience())
		})
	}
	nodes := w.Nodes
	if w.Ends {
		nodes = nil
	}
	return slices.Index(Rank(a, hosts, nodes), d.me)
}

// hold is for an address whose lock the host holds, and which it is to have (T3, T4).
func (d *decider) hold(a netip.Addr) {
	last, on := d.v.Ours[a]
	asked := d.v.Wire[a]
	switch {
	case on && !d.v.Fresh && (d.v.Claimed[a] || asked.Word == Former || asked.Word == Foreign):
		d.out.Remove = append(d.out.Remove, a) // somebody has taken it over meanwhile, and the lock cannot be read
	case on:
		if at := last.Add(d.t.refresh()); !d.now.Before(at) {
			d.out.Refresh = append(d.out.Refresh, a)
		} else {
			d.out.again(at)
		}
		if at := asked.At.Add(d.t.Lifetime); !d.v.Fresh && !d.now.Before(at) {
			d.out.Probe = append(d.out.Probe, a) // who took it over has said so while this end of the wire was cut off
		}
	case !d.v.Fresh: // it is added by who has just read that the lock is his
	case asked.Word == Silent && d.now.Sub(asked.At) < d.t.Again:
		d.out.Add = append(d.out.Add, a)
	case asked.Word == Former || asked.Word == Foreign:
		if asked.Word == Foreign {
			d.out.InUse = append(d.out.InUse, a)
		} else {
			d.out.Contested = append(d.out.Contested, a)
		}
		if at := asked.At.Add(d.t.Again); d.now.Before(at) {
			d.out.again(at)
			return
		}
		d.out.Probe = append(d.out.Probe, a)
	default:
		d.out.Probe = append(d.out.Probe, a)
	}
}

// giveUp is for an address whose lock the host holds and which it is not to have (T5): off the interface first, then the lock.
// An empty lock says that nobody answers for the address, so the wire is asked before: the host that had the lock before may
// live, cut off from the API server, and the wire may have been parted when it was asked last. Until nobody answers the
// lock stays.
func (d *decider) giveUp(a netip.Addr) {
	asked := d.v.Wire[a]
	_, on := d.v.Ours[a]
	again := asked.At.Add(d.t.Again)
	switch {
	case on:
		d.out.Remove = append(d.out.Remove, a)
	case !d.v.Fresh:
	case asked.Word == Silent && d.now.Before(again):
		d.out.Empty = append(d.out.Empty, a)
	case (asked.Word == Former || asked.Word == Foreign) && d.now.Before(again):
		d.out.Contested = append(d.out.Contested, a)
		d.out.again(again)
	default:
		d.out.Probe = append(d.out.Probe, a)
	}
}
