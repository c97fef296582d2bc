package hostlb

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Timing has the durations that the rules are made of.
type Timing struct {
	// Lifetime is D: how long the kernel keeps an address that is not refreshed, and how long a heartbeat keeps a lock.
	Lifetime time.Duration
	// RankDelay is how much later each next host of the rank takes an address.
	RankDelay time.Duration
	// RetryInterval is after how long an address that another host answers for is probed again, and a failed write is
	// repeated.
	RetryInterval time.Duration
}

// DefaultTiming returns the timing of T1 to T4: a host that is killed has lost its addresses after 10 s, and another
// host has them about 3 s later.
func DefaultTiming() Timing { return NewTiming(10 * time.Second) }

// NewTiming returns the timing for a lifetime of addresses. The lifetime is at least 3 s: the kernel counts in seconds,
// and refreshes must come in time.
func NewTiming(lifetime time.Duration) Timing {
	return Timing{Lifetime: lifetime, RankDelay: 200 * time.Millisecond, RetryInterval: time.Second}
}

// HeartbeatTimeout returns how long a heartbeat may stay unchanged before its host is taken for dead. That is longer
// than the addresses of the host live after its last heartbeat, by its own clock, which may be slower, with operations
// that are late (IsLate), and with the rounding of the kernel.
func (t Timing) HeartbeatTimeout() time.Duration {
	return t.Lifetime + max(t.Lifetime/4, 5*t.RetryInterval/2)
}

// FailoverTimeout returns how long a heartbeat must be unchanged until another host has taken over the addresses of its
// host, if there is one that can: a takeover begins after HeartbeatTimeout.
func (t Timing) FailoverTimeout() time.Duration { return t.Lifetime * 5 / 2 }

// APITimeout returns how long a host waits for an answer of the API server.
func (t Timing) APITimeout() time.Duration { return t.Lifetime / 3 }

// refreshInterval returns how often an address is refreshed, and a heartbeat written.
func (t Timing) refreshInterval() time.Duration { return t.Lifetime / 3 }

// foreignProbeInterval returns after how long an address that a foreign machine answers for is probed again: a person
// has to act.
func (t Timing) foreignProbeInterval() time.Duration { return t.Lifetime }

// failureBackoff returns how long a host leaves an address that it could not probe or add to other hosts.
func (t Timing) failureBackoff() time.Duration { return 6 * t.Lifetime }

// WantedAddress is an address that a host must show.
type WantedAddress struct {
	Address netip.Addr
	// LeaseUID distinguishes the leases that have the address one after another.
	LeaseUID string
	// Nodes are the Nodes with endpoints of every Service that must be served on its own Node; nil allows any host.
	Nodes map[string]bool
	// LeaseDeleting reports whether the lease is being deleted: the address must leave the wire, and the lock must show
	// that.
	LeaseDeleting bool
}

// Lock is the coordination Lease of an address as it was read. Version is empty if there is none.
type Lock struct {
	Version string
	// Holder is the host that holds the lock, empty if none does. ReleasedBy is the host that released an empty lock
	// without a probe: the machine that had the address may still answer for it.
	Holder, ReleasedBy string
	// Confirmed reports whether the lock is ours by a write that was answered, whether the lease existed after that, and
	// the heartbeat has not lapsed since. Then no other host has taken the lock, and no earlier request can change it.
	Confirmed bool
}

// ProbeResult is the result of a probe of an address on the wire.
type ProbeResult int

// The results of a probe: the address was not probed since the lock was taken, no machine replied, another one of the
// hosts replied, or a foreign machine did.
const (
	NotProbed ProbeResult = iota
	NoReply
	PeerReply
	ForeignReply
)

// ProbeStatus is the last result of a probe, and when it was observed.
type ProbeStatus struct {
	Result     ProbeResult
	ObservedAt time.Time
	// MAC is the MAC that replied.
	MAC string
}

// Failure records that an address could not be probed or added: since when, when last, and the last error.
type Failure struct {
	Since, LastAt time.Time
	Message       string
}

// View is what a host knows when it decides. Its times are of its own monotonic clock.
type View struct {
	Wanted []WantedAddress
	// HeartbeatCurrent reports whether the heartbeat was written less than a lifetime ago, so that no other host takes
	// this host for dead.
	HeartbeatCurrent bool
	// Locks are the locks as they were last read, nil if they never were.
	Locks map[netip.Addr]Lock
	Hosts []Host
	// HeartbeatTimes is when the heartbeat of each host last changed, or was first seen. For a host that holds a lock and
	// has no heartbeat it is when that was first seen.
	HeartbeatTimes map[string]time.Time
	// FreeSince is since when the lock of an address is without a live holder.
	FreeSince map[netip.Addr]time.Time
	// Managed are the addresses on the interface that have our mark, each with the time of its next refresh.
	Managed map[netip.Addr]time.Time
	// Probes are the results of probes since the lock is ours; ClaimedAt is when another MAC last claimed an address of
	// this host.
	Probes    map[netip.Addr]ProbeStatus
	ClaimedAt map[netip.Addr]time.Time
	// TakeoverProbes are the results of probes of addresses whose lock a silent host holds: PeerReply if that host
	// answers.
	TakeoverProbes map[netip.Addr]ProbeStatus
	// Failures are the addresses that could not be probed or added.
	Failures map[netip.Addr]Failure
	// Stopping reports whether the host must release all its addresses and locks.
	Stopping bool
}

// Plan is what a host does next. Addresses and locks that are in no list stay as they are.
type Plan struct {
	// AcquireLocks are the locks to take, or to take once more, each at the version that was read.
	AcquireLocks []netip.Addr
	// Probe are the addresses to probe.
	Probe []netip.Addr
	// Add are the addresses to put on the interface and to announce; Refresh are those whose lifetime is extended.
	Add, Refresh []netip.Addr
	// Remove are the addresses to take off the interface.
	Remove []netip.Addr
	// ReleaseConfirmed are the locks to release after a probe to which no host replied; ReleaseUnconfirmed are those to
	// release without a probe.
	ReleaseConfirmed, ReleaseUnconfirmed []netip.Addr
	// Contested are the addresses that cannot be added since another host answers for them; InUse, since a foreign
	// machine does.
	Contested, InUse []netip.Addr
	// RequeueAt is when to plan again if nothing happens; zero means not before the next heartbeat.
	RequeueAt time.Time
}

func (p *Plan) scheduleAt(at time.Time) {
	if p.RequeueAt.IsZero() || at.Before(p.RequeueAt) {
		p.RequeueAt = at
	}
}

// ComputePlan returns what a host does next (T2 to T6). Equal views give equal plans.
func ComputePlan(now time.Time, self string, v *View, t Timing) Plan {
	d := planner{now: now, self: self, view: v, timing: t, wanted: map[netip.Addr]*WantedAddress{}}
	all := map[netip.Addr]bool{}
	for i := range v.Wanted {
		d.wanted[v.Wanted[i].Address], all[v.Wanted[i].Address] = &v.Wanted[i], true
	}
	for a := range v.Managed {
		all[a] = true
	}
	for a, l := range v.Locks {
		if l.Holder == self {
			all[a] = true
		}
	}
	d.liveHosts = slices.DeleteFunc(slices.Clone(v.Hosts), func(h Host) bool { return h.Name != self && !d.isHostAlive(h.Name) })
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		d.planAddress(a)
	}
	return d.plan
}

type planner struct {
	now       time.Time
	self      string
	view      *View
	timing    Timing
	wanted    map[netip.Addr]*WantedAddress
	liveHosts []Host
	plan      Plan
}

// isHostAlive reports whether the heartbeat of a host has changed within the heartbeat timeout.
func (p *planner) isHostAlive(name string) bool {
	heartbeatAt, known := p.view.HeartbeatTimes[name]
	return known && p.now.Sub(heartbeatAt) < p.timing.HeartbeatTimeout()
}

func (p *planner) planAddress(a netip.Addr) {
	w := p.wanted[a]
	switch l := p.view.Locks[a]; {
	case l.Holder != p.self:
		p.planWithoutLock(a, w, &l)
	case p.mayKeepAddress(a, w):
		p.planWithLock(a, &l)
	default:
		p.planRelease(a, w)
	}
}

// mayKeepAddress reports whether the host keeps an address whose lock it holds. While its heartbeat is not current it
// knows of no other host, and keeps what it reaches.
func (p *planner) mayKeepAddress(a netip.Addr, w *WantedAddress) bool {
	if w == nil || w.LeaseDeleting || p.view.Stopping {
		return false
	}
	if !p.view.HeartbeatCurrent {
		return slices.ContainsFunc(p.view.Hosts, func(h Host) bool { return h.Name == p.self && h.CanReach(a) })
	}
	if f, failed := p.view.Failures[a]; failed && f.LastAt.Sub(f.Since) >= p.timing.refreshInterval() {
		if _, on := p.view.Managed[a]; !on {
			return false // another host may be able to add it
		}
	}
	return slices.Contains(RankHosts(a, p.liveHosts, w.Nodes), p.self)
}

// planWithoutLock plans an address whose lock another host holds, or none (T2, T6). The address is taken off the
// interface at once: the lock was lost, or the address is from before a restart. While the locks were never read that
// is unknown; an address that is not refreshed is removed by the kernel.
func (p *planner) planWithoutLock(a netip.Addr, w *WantedAddress, l *Lock) {
	if _, on := p.view.Managed[a]; on {
		if p.view.Locks != nil {
			p.plan.Remove = append(p.plan.Remove, a)
		}
		return
	}
	if w == nil || p.view.Stopping || !p.view.HeartbeatCurrent || p.view.Locks == nil {
		return // a host that may be taken for dead takes nothing
	}
	switch {
	case l.Holder != "" && p.isHostAlive(l.Holder):
		p.planTakeoverProbe(a, w, l)
		return
	case l.Holder == "" && l.ReleasedBy == "" && w.LeaseDeleting:
		return // the lock is empty: the address is off the wire
	}
	rank := p.takeoverRank(a, w, l)
	since, seen := p.view.FreeSince[a]
	if rank < 0 || !seen {
		return
	}
	at := laterTime(since.Add(time.Duration(rank)*p.timing.RankDelay), p.view.Failures[a].LastAt.Add(p.timing.failureBackoff()))
	if p.now.Before(at) {
		p.plan.scheduleAt(at)
		return
	}
	if l.Holder != "" && !w.LeaseDeleting && !p.probeBeforeTakeover(a, rank) {
		return
	}
	p.plan.AcquireLocks = append(p.plan.AcquireLocks, a)
}

// planTakeoverProbe plans an address whose lock is held by a host that is not silent for long enough. The host that is
// first to take the lock probes the address a little before it may, so that the probe delays nothing.
func (p *planner) planTakeoverProbe(a netip.Addr, w *WantedAddress, l *Lock) {
	dead := p.view.HeartbeatTimes[l.Holder].Add(p.timing.HeartbeatTimeout())
	at := dead.Add(-p.timing.RetryInterval)
	if p.now.Before(at) {
		p.plan.scheduleAt(at)
		return
	}
	p.plan.scheduleAt(dead)
	if !w.LeaseDeleting && p.takeoverRank(a, w, l) == 0 {
		p.probeBeforeTakeover(a, 0)
	}
}

// probeBeforeTakeover probes an address before its lock is taken from a host that is silent, and reports whether to
// take the lock. The lock is not taken while that host answers: the host is cut off from the API server alone, and
// would have the address until it learns that its lock was taken, so the address would move for nothing. Hosts further
// down the rank probe less often. Where the address cannot be probed the lock is taken, and the lock reports the
// failure.
func (p *planner) probeBeforeTakeover(a netip.Addr, rank int) bool {
	asked, ok := p.view.TakeoverProbes[a]
	again := p.timing.RetryInterval
	if asked.Result == PeerReply {
		again = min(time.Duration(1+rank)*p.timing.RetryInterval, p.timing.Lifetime)
	}
	switch at := asked.ObservedAt.Add(again); {
	case !ok || !p.now.Before(at):
		p.plan.Probe = append(p.plan.Probe, a)
		return false
	case asked.Result == PeerReply:
		p.plan.scheduleAt(at)
		return false
	}
	return true
}

// takeoverRank returns the place of this host among the live hosts that may take an address, or -1 if it may not. The
// holder does not take it, and the host that released it comes last. The lock of a lease that is being deleted may be
// taken by any host that reaches the address.
func (p *planner) takeoverRank(a netip.Addr, w *WantedAddress, l *Lock) int {
	nodes := w.Nodes
	if w.LeaseDeleting {
		nodes = nil
	}
	all := RankHosts(a, slices.DeleteFunc(slices.Clone(p.liveHosts), func(h Host) bool { return h.Name == l.Holder }), nodes)
	if i := slices.Index(all, l.ReleasedBy); i >= 0 {
		all = append(slices.Delete(all, i, i+1), l.ReleasedBy)
	}
	return slices.Index(all, p.self)
}

// planWithLock plans an address whose lock the host holds and which it keeps (T3, T4).
func (p *planner) planWithLock(a netip.Addr, l *Lock) {
	due, on := p.view.Managed[a]
	asked := p.view.Probes[a]
	sure := p.view.HeartbeatCurrent && l.Confirmed
	switch {
	case on && !sure && (p.isTakenOver(a) || (!p.view.HeartbeatCurrent && p.isProbeFailing(a))):
		p.plan.Remove = append(p.plan.Remove, a) // another machine has taken it over, or may have, and the lock was not read since
	case on:
		if !p.now.Before(due) {
			p.plan.Refresh = append(p.plan.Refresh, a)
		} else {
			p.plan.scheduleAt(due)
		}
		if sure {
			return
		}
		if p.view.HeartbeatCurrent { // the lock as it was read may be outdated: a write shows its holder
			p.plan.AcquireLocks = append(p.plan.AcquireLocks, a)
		}
		if at := laterTime(asked.ObservedAt.Add(p.timing.Lifetime), p.view.Failures[a].LastAt.Add(p.timing.RetryInterval)); !p.now.Before(at) {
			p.plan.Probe = append(p.plan.Probe, a) // the machine that took it over has announced that while this host was cut off from the wire
		} else {
			p.plan.scheduleAt(at)
		}
	case !p.view.HeartbeatCurrent: // only a host that is sure of the lock adds the address
	case !l.Confirmed:
		p.plan.AcquireLocks = append(p.plan.AcquireLocks, a)
	case asked.Result == NoReply && p.now.Sub(asked.ObservedAt) < p.timing.RetryInterval:
		p.plan.Add = append(p.plan.Add, a)
	default:
		p.planProbe(a)
	}
}

func laterTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// isTakenOver reports whether another MAC has answered for an address, or claimed it, within a lifetime.
func (p *planner) isTakenOver(a netip.Addr) bool {
	asked, claimed := p.view.Probes[a], p.view.ClaimedAt[a]
	replied := (asked.Result == PeerReply || asked.Result == ForeignReply) && p.now.Sub(asked.ObservedAt) < p.timing.Lifetime
	return replied || (!claimed.IsZero() && p.now.Sub(claimed) < p.timing.Lifetime)
}

// isProbeFailing reports whether the address could not be probed for so long that another host may have taken it over.
func (p *planner) isProbeFailing(a netip.Addr) bool {
	f, failed := p.view.Failures[a]
	return failed && p.now.Sub(f.LastAt) < p.timing.Lifetime && f.LastAt.Sub(f.Since) >= p.timing.Lifetime
}

// planProbe probes the address, and adds it to Contested or InUse by the last reply. A probe that failed is repeated a
// retry interval later.
func (p *planner) planProbe(a netip.Addr) {
	asked := p.view.Probes[a]
	at := time.Time{}
	switch asked.Result { //nolint:exhaustive // the other results mean that no machine answered
	case PeerReply:
		p.plan.Contested, at = append(p.plan.Contested, a), asked.ObservedAt.Add(p.timing.RetryInterval)
	case ForeignReply:
		p.plan.InUse, at = append(p.plan.InUse, a), asked.ObservedAt.Add(p.timing.foreignProbeInterval())
	}
	if at = laterTime(at, p.view.Failures[a].LastAt.Add(p.timing.RetryInterval)); p.now.Before(at) {
		p.plan.scheduleAt(at)
		return
	}
	p.plan.Probe = append(p.plan.Probe, a)
}

// planRelease plans an address whose lock the host holds and which it must release (T5): the address leaves the
// interface first, then the lock is released. Where the lease is being deleted, an empty lock must mean that no host
// answers, so the address is probed before: the host that held the lock before may be alive, cut off from the API
// server, and the wire may have been partitioned during the last probe. The lock stays until none of the hosts answers;
// a foreign machine that answers is no reason to keep the lease (P7). A host that cannot probe leaves that to others.
func (p *planner) planRelease(a netip.Addr, w *WantedAddress) {
	asked := p.view.Probes[a]
	_, on := p.view.Managed[a]
	f, failed := p.view.Failures[a]
	switch {
	case on:
		p.plan.Remove = append(p.plan.Remove, a)
	case !p.view.HeartbeatCurrent:
	case w == nil || !w.LeaseDeleting || p.view.Stopping || (failed && f.LastAt.Sub(f.Since) >= p.timing.refreshInterval()):
		p.plan.ReleaseUnconfirmed = append(p.plan.ReleaseUnconfirmed, a)
	case (asked.Result == NoReply || asked.Result == ForeignReply) && p.now.Sub(asked.ObservedAt) < p.timing.RetryInterval:
		p.plan.ReleaseConfirmed = append(p.plan.ReleaseConfirmed, a)
	default:
		p.planProbe(a)
	}
}
