package hostlb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// HostState is the state of one host: what it has read and observed, and its operations in flight. It is not safe for
// concurrent use. All times are of one monotonic clock.
type HostState struct {
	// Self is the host itself. Its Networks are the current ones.
	Self   Host
	Timing Timing
	// Stopping reports whether the host must release all its addresses and locks.
	Stopping bool

	wantedAddresses []WantedAddress
	locks           map[netip.Addr]*lockState // nil until the locks were read once
	knownHosts      map[string]*hostHeartbeat
	managed         map[netip.Addr]time.Time
	probes          map[netip.Addr]ProbeStatus
	takeoverProbes  map[netip.Addr]ProbeStatus
	failures        map[netip.Addr]Failure
	portReports     map[netip.Addr][]PortReport
	// foreignClaims has the last claim of each address of this host by another machine; defendedAt is when this host last
	// announced the address because of a claim.
	foreignClaims map[netip.Addr]ProbeStatus
	defendedAt    map[netip.Addr]time.Time
	// announceStates has when, and how often, each address of this host was announced.
	announceStates map[netip.Addr]*announceState
	probing        map[netip.Addr]bool
	// heartbeatSentAt is when the last heartbeat was sent. heartbeatConfirmedAt is when the last heartbeat that was
	// answered was sent; it is zero after a lapse. heartbeatLapses counts how often no heartbeat was answered for too
	// long.
	heartbeatSentAt, heartbeatConfirmedAt time.Time
	heartbeatInFlight                     bool
	heartbeatLapses                       int
}

// lockState is the lock of an address as it was last read or written.
type lockState struct {
	version, holder, releasedBy string
	report                      *Report
	// confirmed is set by a write that was answered, and counts only while heartbeatLapses is still confirmedLapses.
	// writtenAt is the time of the last write, or of the last live read: until the cache has shown that version
	// (shownByCache), the cache is behind.
	confirmed       bool
	confirmedLapses int
	writtenAt       time.Time
	shownByCache    bool
	// writeInFlight reports whether a write is in flight; nextWriteAt is the earliest time of the next write.
	writeInFlight bool
	nextWriteAt   time.Time
	// acquiredAt is when this host last acquired the lock.
	acquiredAt time.Time
	// freeSince is since when the lock has no live holder; it is zero while the lock has one.
	freeSince time.Time
}

// hostHeartbeat is the heartbeat of a host as it was last read.
type hostHeartbeat struct {
	host           Host
	version        string
	unchangedSince time.Time
	// isMissing reports whether the host has no heartbeat.
	isMissing bool
}

// NewHostState returns the state of a host that has just started.
func NewHostState(self Host, t Timing) *HostState {
	return &HostState{
		Self: self, Timing: t, knownHosts: map[string]*hostHeartbeat{}, managed: map[netip.Addr]time.Time{}, probes: map[netip.Addr]ProbeStatus{}, takeoverProbes: map[netip.Addr]ProbeStatus{},
		failures: map[netip.Addr]Failure{}, portReports: map[netip.Addr][]PortReport{}, foreignClaims: map[netip.Addr]ProbeStatus{}, defendedAt: map[netip.Addr]time.Time{},
		announceStates: map[netip.Addr]*announceState{}, probing: map[netip.Addr]bool{},
	}
}

// ObservedLock is a lock as the cache shows it.
type ObservedLock struct {
	Version, Holder, ReleasedBy string
	Report                      *Report
}

// ObservedHost is a heartbeat as the cache shows it.
type ObservedHost struct {
	Host    Host
	Version string
}

// ObserveCache records what the cache shows: all wanted addresses, all locks and all heartbeats.
func (hs *HostState) ObserveCache(now time.Time, wanted []WantedAddress, locks map[netip.Addr]ObservedLock, hosts []ObservedHost) {
	hs.wantedAddresses = wanted
	if hs.locks == nil {
		hs.locks = map[netip.Addr]*lockState{}
	}
	for a, observed := range locks {
		l := hs.lockForAddress(a)
		if !l.writtenAt.IsZero() && !l.shownByCache {
			if isOlderVersion(observed.Version, l.version) {
				continue // the cache is behind this host's own write
			}
			l.shownByCache = true
		}
		if observed.Holder != hs.Self.Name {
			l.confirmed = false
		}
		l.version, l.holder, l.releasedBy, l.report = observed.Version, observed.Holder, observed.ReleasedBy, observed.Report
	}
	for a, l := range hs.locks {
		if _, ok := locks[a]; ok || l.writeInFlight {
			continue
		}
		if !l.writtenAt.IsZero() && !l.shownByCache && now.Sub(l.writtenAt) < hs.Timing.Lifetime {
			continue // the cache is behind this host's own write
		}
		*l = lockState{nextWriteAt: l.nextWriteAt, freeSince: l.freeSince}
	}
	hs.observeHosts(now, hosts)
}

func (hs *HostState) observeHosts(now time.Time, hosts []ObservedHost) {
	present := map[string]bool{}
	for _, h := range hosts {
		present[h.Host.Name] = true
		old := hs.knownHosts[h.Host.Name]
		if old == nil {
			old = &hostHeartbeat{}
			hs.knownHosts[h.Host.Name] = old
		}
		if old.version != h.Version || old.isMissing {
			old.version, old.unchangedSince = h.Version, now
		}
		old.host, old.isMissing = h.Host, false
	}
	held := map[string]bool{}
	for _, l := range hs.locks {
		if l.holder == "" {
			continue
		}
		if held[l.holder] = true; hs.knownHosts[l.holder] == nil {
			hs.knownHosts[l.holder] = &hostHeartbeat{host: Host{Name: l.holder}, unchangedSince: now, isMissing: true} // it holds a lock and has no heartbeat
		}
	}
	for name, h := range hs.knownHosts {
		switch {
		case present[name]:
		case !held[name]:
			delete(hs.knownHosts, name)
		case !h.isMissing:
			h.isMissing, h.version, h.unchangedSince = true, "", now
		}
	}
}

// isOlderVersion reports whether resource version a comes before b.
func isOlderVersion(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func (hs *HostState) lockForAddress(a netip.Addr) *lockState {
	l := hs.locks[a]
	if l == nil {
		l = &lockState{}
		hs.locks[a] = l
	}
	return l
}

// SetManagedAddresses records the addresses with our mark that the kernel has.
func (hs *HostState) SetManagedAddresses(all []netip.Addr) {
	managed := map[netip.Addr]time.Time{}
	for _, a := range all {
		managed[a] = hs.managed[a] // zero for an address from before a restart, whose refresh time is unknown
	}
	hs.managed = managed
	maps.DeleteFunc(hs.announceStates, func(a netip.Addr, _ *announceState) bool { _, on := managed[a]; return !on })
	maps.DeleteFunc(hs.defendedAt, func(a netip.Addr, _ time.Time) bool { _, on := managed[a]; return !on })
}

// ServedAddresses returns the addresses that are on the interface for a lease, each with the UID of that lease.
func (hs *HostState) ServedAddresses() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range hs.wantedAddresses {
		w := &hs.wantedAddresses[i]
		if _, on := hs.managed[w.Address]; on && !w.LeaseDeleting && hs.locks[w.Address] != nil && hs.locks[w.Address].holder == hs.Self.Name {
			out[w.Address] = w.LeaseUID
		}
	}
	return out
}

// SetPortReports records the ports of addresses that cannot be served.
func (hs *HostState) SetPortReports(all map[netip.Addr][]PortReport) { hs.portReports = all }

// ObserveClaim records that the machine with this MAC claims to have an address. It reports whether this host must
// answer by announcing the address again: the address is one of its own, and was not defended in this way for D (RFC
// 5227, 2.4 c). The interval counts from the last defence, not from the last claim: a machine that keeps claiming the
// address is answered for as long as it does.
func (hs *HostState) ObserveClaim(now time.Time, a netip.Addr, mac string) bool {
	if _, ok := hs.managed[a]; !ok || hs.Self.hasMAC(mac) {
		return false
	}
	hs.foreignClaims[a] = ProbeStatus{ForeignReply, now, mac}
	if at, before := hs.defendedAt[a]; before && now.Sub(at) < hs.Timing.Lifetime {
		return false
	}
	hs.defendedAt[a] = now
	delete(hs.announceStates, a)
	return true
}

// HandleResume records that the machine was suspended: its state is from before that, and its clock stood still
// meanwhile.
func (hs *HostState) HandleResume() {
	hs.heartbeatConfirmedAt = time.Time{}
	hs.recordLapse()
}

// recordLapse records that other hosts may take this host for dead.
func (hs *HostState) recordLapse() { hs.heartbeatLapses++ }

// HasCurrentHeartbeat reports whether no other host takes this host for dead.
func (hs *HostState) HasCurrentHeartbeat(now time.Time) bool {
	if !hs.heartbeatConfirmedAt.IsZero() && now.Sub(hs.heartbeatConfirmedAt) >= hs.Timing.Lifetime {
		hs.heartbeatConfirmedAt = time.Time{}
		hs.recordLapse()
	}
	return !hs.heartbeatConfirmedAt.IsZero()
}

// heartbeatTimeout returns how long the heartbeat of a host may stay unchanged before the host is taken for dead.
func (hs *HostState) heartbeatTimeout(h *hostHeartbeat) time.Duration {
	return max(hs.Timing.HeartbeatTimeout(), NewTiming(h.host.Lifetime).HeartbeatTimeout())
}

// BuildView returns the view that ComputePlan decides on.
func (hs *HostState) BuildView(now time.Time) *View {
	v := &View{
		Wanted: hs.wantedAddresses, HeartbeatCurrent: hs.HasCurrentHeartbeat(now), HeartbeatTimes: map[string]time.Time{}, FreeSince: map[netip.Addr]time.Time{}, Managed: hs.managed,
		Probes: hs.probes, TakeoverProbes: hs.takeoverProbes, ClaimedAt: map[netip.Addr]time.Time{}, Failures: hs.failures, Stopping: hs.Stopping, Hosts: []Host{hs.Self},
	}
	for name, h := range hs.knownHosts {
		// A host whose own lifetime is longer than ours counts as dead accordingly later.
		if v.HeartbeatTimes[name] = h.unchangedSince.Add(hs.heartbeatTimeout(h) - hs.Timing.HeartbeatTimeout()); name != hs.Self.Name && !h.isMissing {
			v.Hosts = append(v.Hosts, h.host)
		}
	}
	slices.SortFunc(v.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	for a, c := range hs.foreignClaims {
		v.ClaimedAt[a] = c.ObservedAt
	}
	if hs.locks == nil {
		return v
	}
	v.Locks = map[netip.Addr]Lock{}
	for a, l := range hs.locks {
		if l.holder != hs.Self.Name {
			delete(hs.probes, a) // it is probed again once the lock is ours
		}
		v.Locks[a] = Lock{Version: l.version, Holder: l.holder, ReleasedBy: l.releasedBy, Confirmed: l.confirmed && l.confirmedLapses == hs.heartbeatLapses}
	}
	for i := range hs.wantedAddresses {
		a := hs.wantedAddresses[i].Address
		l := hs.lockForAddress(a)
		h := hs.knownHosts[l.holder]
		switch {
		case l.holder != "" && (h == nil || now.Sub(h.unchangedSince) < hs.heartbeatTimeout(h)):
			l.freeSince = time.Time{}
			continue
		case l.freeSince.IsZero():
			l.freeSince = now
		}
		v.FreeSince[a] = l.freeSince
	}
	return v
}

// CountAddresses returns the number of wanted addresses, of locks that this host holds, and of addresses that it shows.
func (hs *HostState) CountAddresses() (wanted, locked, shown int) {
	for _, l := range hs.locks {
		if l.holder == hs.Self.Name {
			locked++
		}
	}
	return len(hs.wantedAddresses), locked, len(hs.managed)
}

// HasLocksOrAddresses reports whether the host holds any lock or has any managed address.
func (hs *HostState) HasLocksOrAddresses() bool {
	for _, l := range hs.locks {
		if l.holder == hs.Self.Name {
			return true
		}
	}
	return len(hs.managed) > 0
}

// HasWriteInFlight reports whether a write to the API server is in flight.
func (hs *HostState) HasWriteInFlight() bool {
	for _, l := range hs.locks {
		if l.writeInFlight {
			return true
		}
	}
	return hs.heartbeatInFlight
}

// PruneAddresses drops the state of addresses that are not wanted any more and have no lock.
func (hs *HostState) PruneAddresses() {
	needed := map[netip.Addr]bool{}
	for i := range hs.wantedAddresses {
		needed[hs.wantedAddresses[i].Address] = true
	}
	for a, l := range hs.locks {
		needed[a] = needed[a] || l.version != "" || l.writeInFlight
		if !needed[a] {
			delete(hs.locks, a)
		}
	}
	gone := func(a netip.Addr) bool { return !needed[a] }
	maps.DeleteFunc(hs.failures, func(a netip.Addr, _ Failure) bool { return gone(a) })
	maps.DeleteFunc(hs.probes, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
	maps.DeleteFunc(hs.takeoverProbes, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
	maps.DeleteFunc(hs.foreignClaims, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
}
