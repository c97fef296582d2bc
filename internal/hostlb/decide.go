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
	// Again is when the wire is asked again about an address that another host answers for, and a write made again that failed.
	Again time.Duration
}

// DefaultTiming is that of T1 to T4: a host that is killed has lost its addresses after 10 s, and another one has them some 3 s
// after that.
func DefaultTiming() Timing { return TimingOf(10 * time.Second) }

// TimingOf is that of a lifetime of addresses, which is at least 3 s: the kernel counts in seconds, and refreshes are to come in
// time.
func TimingOf(lifetime time.Duration) Timing {
	return Timing{Lifetime: lifetime, Step: 200 * time.Millisecond, Again: time.Second}
}

// Patience is after how long without a heartbeat a host is taken for dead: longer than its addresses live after its last one, by
// its own clock, which may be slower, and with what is late (Late), and what the kernel rounds.
func (t Timing) Patience() time.Duration { return t.Lifetime + max(t.Lifetime/4, 5*t.Again/2) }

// Timeout is how long an answer of the API server is waited for.
func (t Timing) Timeout() time.Duration { return t.Lifetime / 3 }

// refresh is how often an address is refreshed, and a heartbeat written.
func (t Timing) refresh() time.Duration { return t.Lifetime / 3 }

// foreign is when the wire is asked again about an address that nobody of ours answers for: a person has to do something.
func (t Timing) foreign() time.Duration { return t.Lifetime }

// rest is how long a host leaves an address to others that it could not ask for, or add.
func (t Timing) rest() time.Duration { return 6 * t.Lifetime }

// Wanted is an address that hosts are to show.
type Wanted struct {
	Address netip.Addr
	// Lease tells the leases apart that have the address one after another.
	Lease string
	// Nodes are those with endpoints of every Service that is to be served by its own Node; nil: any host will do.
	Nodes map[string]bool
	// Ends: its lease is being deleted. It is to be off the wire, and the lock to say so.
	Ends bool
}

// Lock is the coordination Lease of an address, as it was read. One that does not exist has no version.
type Lock struct {
	Version string
	// Holder is the host that has it; empty: none. Left is the host that gave an empty one up without asking the wire: who had
	// the address may answer for it still.
	Holder, Left string
	// Sure: it is ours by a write which was answered, after which the lease was there, and the heartbeat has not lapsed since. So
	// no other host has taken it, and nothing that was sent before can change it.
	Sure bool
}

// Word is what the wire said about an address when it was asked.
type Word int

// What the wire says: it was not asked since the lock was taken, nobody answered, another one of the hosts did, or somebody
// else did.
const (
	Unasked Word = iota
	Silent
	Another
	Foreign
)

// Asked is the last answer of the wire, and when it came.
type Asked struct {
	Word Word
	At   time.Time
	// MAC is who answered.
	MAC string
}

// Failure is that the wire could not be asked for an address, or that could not be added: since when, and when last.
type Failure struct {
	Since, Last time.Time
	Text        string
}

// View is what a host knows when it looks. Its times are of its own monotonic clock.
type View struct {
	Wanted []Wanted
	// Fresh: the heartbeat was written less than a lifetime ago, so nobody takes this host for dead.
	Fresh bool
	// Locks are as they were last read; nil: never.
	Locks map[netip.Addr]Lock
	Hosts []Host
	// Heard is when the heartbeat of each host last changed, or was first seen. That of one which has a lock and no heartbeat
	// is since when that was first seen.
	Heard map[string]time.Time
	// Free is since when the lock of an address is seen to be without a living holder.
	Free map[netip.Addr]time.Time
	// Ours are the addresses on the interface that bear our mark, each with when it is to be refreshed.
	Ours map[netip.Addr]time.Time
	// Wire is what the wire said since the lock is ours; Claimed, when another MAC last claimed to have an address of ours.
	Wire    map[netip.Addr]Asked
	Claimed map[netip.Addr]time.Time
	// Before is what the wire said of an address whose lock a silent host has: Another if that host answers for it.
	Before map[netip.Addr]Asked
	// Failed is what could not be done.
	Failed map[netip.Addr]Failure
	// Stopping: the host is to give up all that it has.
	Stopping bool
}

// Plan is what a host does next. What is in no list stays as it is.
type Plan struct {
	// Lock are locks to take, or to take once more, each by the version that was read.
	Lock []netip.Addr
	// Probe are addresses to ask the wire about.
	Probe []netip.Addr
	// Add are addresses to put on the interface, and to announce; Refresh, those to give another lifetime.
	Add, Refresh []netip.Addr
	// Remove are addresses to take off the interface.
	Remove []netip.Addr
	// Empty are locks to give back, as nobody answers for the address; Leave, those to give back without having asked.
	Empty, Leave []netip.Addr
	// Contested are addresses that cannot be had, since another host answers for them; InUse, since somebody else does.
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
	d.living = slices.DeleteFunc(slices.Clone(v.Hosts), func(h Host) bool { return h.Name != me && !d.alive(h.Name) })
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
	living []Host
	out    Plan
}

// alive reports whether the heartbeat of a host has changed not long ago.
func (d *decider) alive(name string) bool {
	heard, known := d.v.Heard[name]
	return known && d.now.Sub(heard) < d.t.Patience()
}

func (d *decider) address(a netip.Addr) {
	w := d.wanted[a]
	switch l := d.v.Locks[a]; {
	case l.Holder != d.me:
		d.without(a, w, &l)
	case d.mayHave(a, w):
		d.hold(a, &l)
	default:
		d.giveUp(a, w)
	}
}

// mayHave reports whether the host is to have an address whose lock it holds. While it knows of nobody else it keeps what it
// reaches.
func (d *decider) mayHave(a netip.Addr, w *Wanted) bool {
	if w == nil || w.Ends || d.v.Stopping {
		return false
	}
	if !d.v.Fresh {
		return slices.ContainsFunc(d.v.Hosts, func(h Host) bool { return h.Name == d.me && h.Reaches(a) })
	}
	if f, failed := d.v.Failed[a]; failed && f.Last.Sub(f.Since) >= d.t.refresh() {
		if _, on := d.v.Ours[a]; !on {
			return false // another host may be able to
		}
	}
	return slices.Contains(Rank(a, d.living, w.Nodes), d.me)
}

// without is for an address whose lock another host has, or nobody (T2, T6). What is on the interface goes at once: the lock
// was lost, or it is from before a restart. While nothing was ever read that is not known: the kernel ends it, if nobody does.
func (d *decider) without(a netip.Addr, w *Wanted, l *Lock) {
	if _, on := d.v.Ours[a]; on {
		if d.v.Locks != nil {
			d.out.Remove = append(d.out.Remove, a)
		}
		return
	}
	if w == nil || d.v.Stopping || !d.v.Fresh || d.v.Locks == nil {
		return // a host that may be taken for dead takes nothing
	}
	switch {
	case l.Holder != "" && d.alive(l.Holder):
		d.foresee(a, w, l)
		return
	case l.Holder == "" && l.Left == "" && w.Ends:
		return // it is off the wire: nobody holds it
	}
	rank := d.rank(a, w, l)
	since, seen := d.v.Free[a]
	if rank < 0 || !seen {
		return
	}
	at := later(since.Add(time.Duration(rank)*d.t.Step), d.v.Failed[a].Last.Add(d.t.rest()))
	if d.now.Before(at) {
		d.out.again(at)
		return
	}
	if l.Holder != "" && !w.Ends && !d.asksBefore(a, rank) {
		return
	}
	d.out.Lock = append(d.out.Lock, a)
}

// foresee is for an address whose lock a host has that is not silent for long enough. Who is the first to take it asks the wire a
// little before that, so that asking makes nothing later.
func (d *decider) foresee(a netip.Addr, w *Wanted, l *Lock) {
	dead := d.v.Heard[l.Holder].Add(d.t.Patience())
	at := dead.Add(-d.t.Again)
	if d.now.Before(at) {
		d.out.again(at)
		return
	}
	d.out.again(dead)
	if !w.Ends && d.rank(a, w, l) == 0 {
		d.asksBefore(a, 0)
	}
}

// asksBefore asks the wire for an address before its lock is taken from a host that is silent. It reports whether the lock is to be
// taken: not while that host answers, as it is cut off from the API server alone, and would have the address until it hears that
// its lock was taken: then the address moves for nothing. Those that would take it later ask less often. Where the wire cannot be
// asked the lock is taken: that it cannot is said in it.
func (d *decider) asksBefore(a netip.Addr, rank int) bool {
	asked, is := d.v.Before[a]
	again := d.t.Again
	if asked.Word == Another {
		again = min(time.Duration(1+rank)*d.t.Again, d.t.Lifetime)
	}
	switch at := asked.At.Add(again); {
	case !is || !d.now.Before(at):
		d.out.Probe = append(d.out.Probe, a)
		return false
	case asked.Word == Another:
		d.out.again(at)
		return false
	}
	return true
}

// rank is the place of the host among the living that may take an address, -1: it may not. Who has it does not take it, and who has
// left it comes last. One that ends may be taken by any that reaches it.
func (d *decider) rank(a netip.Addr, w *Wanted, l *Lock) int {
	nodes := w.Nodes
	if w.Ends {
		nodes = nil
	}
	all := Rank(a, slices.DeleteFunc(slices.Clone(d.living), func(h Host) bool { return h.Name == l.Holder }), nodes)
	if i := slices.Index(all, l.Left); i >= 0 {
		all = append(slices.Delete(all, i, i+1), l.Left)
	}
	return slices.Index(all, d.me)
}

// hold is for an address whose lock the host holds, and which it is to have (T3, T4).
func (d *decider) hold(a netip.Addr, l *Lock) {
	due, on := d.v.Ours[a]
	asked := d.v.Wire[a]
	sure := d.v.Fresh && l.Sure
	switch {
	case on && !sure && (d.takenOver(a) || (!d.v.Fresh && d.blind(a))):
		d.out.Remove = append(d.out.Remove, a) // somebody has taken it over meanwhile, or may have, and the lock was not read since
	case on:
		if !d.now.Before(due) {
			d.out.Refresh = append(d.out.Refresh, a)
		} else {
			d.out.again(due)
		}
		if sure {
			return
		}
		if d.v.Fresh { // what was read of the lock may be old: a write shows whose it is
			d.out.Lock = append(d.out.Lock, a)
		}
		if at := later(asked.At.Add(d.t.Lifetime), d.v.Failed[a].Last.Add(d.t.Again)); !d.now.Before(at) {
			d.out.Probe = append(d.out.Probe, a) // who took it over has said so while this end of the wire was cut off
		} else {
			d.out.again(at)
		}
	case !d.v.Fresh: // it is added by who is sure that the lock is his
	case !l.Sure:
		d.out.Lock = append(d.out.Lock, a)
	case asked.Word == Silent && d.now.Sub(asked.At) < d.t.Again:
		d.out.Add = append(d.out.Add, a)
	default:
		d.ask(a)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// takenOver reports whether another MAC has answered for an address, or claimed it, not long ago.
func (d *decider) takenOver(a netip.Addr) bool {
	asked, claimed := d.v.Wire[a], d.v.Claimed[a]
	said := (asked.Word == Another || asked.Word == Foreign) && d.now.Sub(asked.At) < d.t.Lifetime
	return said || (!claimed.IsZero() && d.now.Sub(claimed) < d.t.Lifetime)
}

// blind reports whether the wire could not be asked for so long that somebody may have taken the address over.
func (d *decider) blind(a netip.Addr) bool {
	f, failed := d.v.Failed[a]
	return failed && d.now.Sub(f.Last) < d.t.Lifetime && f.Last.Sub(f.Since) >= d.t.Lifetime
}

// ask asks the wire, and says who answered. What cannot be asked is asked again some time later.
func (d *decider) ask(a netip.Addr) {
	asked := d.v.Wire[a]
	at := time.Time{}
	switch asked.Word { //nolint:exhaustive // nobody answered
	case Another:
		d.out.Contested, at = append(d.out.Contested, a), asked.At.Add(d.t.Again)
	case Foreign:
		d.out.InUse, at = append(d.out.InUse, a), asked.At.Add(d.t.foreign())
	}
	if at = later(at, d.v.Failed[a].Last.Add(d.t.Again)); d.now.Before(at) {
		d.out.again(at)
		return
	}
	d.out.Probe = append(d.out.Probe, a)
}

// giveUp is for an address whose lock the host holds and which it is not to have (T5): off the interface first, then the lock.
// Where its lease ends, an empty lock is to say that nobody answers, so the wire is asked before: the host that had the lock
// before may live, cut off from the API server, and the wire may have been parted when it was asked last. Until none of the hosts
// answers the lock stays; that somebody else does is no reason to keep the lease (P7). Who cannot ask leaves that to others.
func (d *decider) giveUp(a netip.Addr, w *Wanted) {
	asked := d.v.Wire[a]
	_, on := d.v.Ours[a]
	f, failed := d.v.Failed[a]
	switch {
	case on:
		d.out.Remove = append(d.out.Remove, a)
	case !d.v.Fresh:
	case w == nil || !w.Ends || d.v.Stopping || (failed && f.Last.Sub(f.Since) >= d.t.refresh()):
		d.out.Leave = append(d.out.Leave, a)
	case (asked.Word == Silent || asked.Word == Foreign) && d.now.Sub(asked.At) < d.t.Again:
		d.out.Empty = append(d.out.Empty, a)
	default:
		d.ask(a)
	}
}
