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
func (m *HostState) ObserveCache(now time.Time, wanted []WantedAddress, locks map[netip.Addr]ObservedLock, hosts []ObservedHost) {
	m.wantedAddresses = wanted
	if m.locks == nil {
		m.locks = map[netip.Addr]*lockState{}
	}
	for a, observed := range locks {
		l := m.lockForAddress(a)
		if !l.writtenAt.IsZero() && !l.shownByCache {
			if isOlderVersion(observed.Version, l.version) {
				continue // the cache is behind this host's own write
			}
			l.shownByCache = true
		}
		if observed.Holder != m.Self.Name {
			l.confirmed = false
		}
		l.version, l.holder, l.releasedBy, l.report = observed.Version, observed.Holder, observed.ReleasedBy, observed.Report
	}
	for a, l := range m.locks {
		if _, ok := locks[a]; ok || l.writeInFlight {
			continue
		}
		if !l.writtenAt.IsZero() && !l.shownByCache && now.Sub(l.writtenAt) < m.Timing.Lifetime {
			continue // the cache is behind this host's own write
		}
		*l = lockState{nextWriteAt: l.nextWriteAt, freeSince: l.freeSince}
	}
	m.observeHosts(now, hosts)
}

func (m *HostState) observeHosts(now time.Time, hosts []ObservedHost) {
	present := map[string]bool{}
	for _, h := range hosts {
		present[h.Host.Name] = true
		old := m.knownHosts[h.Host.Name]
		if old == nil {
			old = &hostHeartbeat{}
			m.knownHosts[h.Host.Name] = old
		}
		if old.version != h.Version || old.isMissing {
			old.version, old.unchangedSince = h.Version, now
		}
		old.host, old.isMissing = h.Host, false
	}
	held := map[string]bool{}
	for _, l := range m.locks {
		if l.holder == "" {
			continue
		}
		if held[l.holder] = true; m.knownHosts[l.holder] == nil {
			m.knownHosts[l.holder] = &hostHeartbeat{host: Host{Name: l.holder}, unchangedSince: now, isMissing: true} // it holds a lock and has no heartbeat
		}
	}
	for name, h := range m.knownHosts {
		switch {
		case present[name]:
		case !held[name]:
			delete(m.knownHosts, name)
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

func (m *HostState) lockForAddress(a netip.Addr) *lockState {
	l := m.locks[a]
	if l == nil {
		l = &lockState{}
		m.locks[a] = l
	}
	return l
}

// SetManagedAddresses records the addresses with our mark that the kernel has.
func (m *HostState) SetManagedAddresses(all []netip.Addr) {
	managed := map[netip.Addr]time.Time{}
	for _, a := range all {
		managed[a] = m.managed[a] // zero for an address from before a restart, whose refresh time is unknown
	}
	m.managed = managed
	maps.DeleteFunc(m.announceStates, func(a netip.Addr, _ *announceState) bool { _, on := managed[a]; return !on })
	maps.DeleteFunc(m.defendedAt, func(a netip.Addr, _ time.Time) bool { _, on := managed[a]; return !on })
}

// ServedAddresses returns the addresses that are on the interface for a lease, each with the UID of that lease.
func (m *HostState) ServedAddresses() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range m.wantedAddresses {
		w := &m.wantedAddresses[i]
		if _, on := m.managed[w.Address]; on && !w.LeaseDeleting && m.locks[w.Address] != nil && m.locks[w.Address].holder == m.Self.Name {
			out[w.Address] = w.LeaseUID
		}
	}
	return out
}

// SetPortReports records the ports of addresses that cannot be served.
func (m *HostState) SetPortReports(all map[netip.Addr][]PortReport) { m.portReports = all }

// ObserveClaim records that the machine with this MAC claims to have an address. It reports whether this host must
// answer by announcing the address again: the address is one of its own, and was not defended in this way for D (RFC
// 5227, 2.4 c). The interval counts from the last defence, not from the last claim: a machine that keeps claiming the
// address is answered for as long as it does.
func (m *HostState) ObserveClaim(now time.Time, a netip.Addr, mac string) bool {
	if _, ok := m.managed[a]; !ok || m.Self.hasMAC(mac) {
		return false
	}
	m.foreignClaims[a] = ProbeStatus{ForeignReply, now, mac}
	if at, before := m.defendedAt[a]; before && now.Sub(at) < m.Timing.Lifetime {
		return false
	}
	m.defendedAt[a] = now
	delete(m.announceStates, a)
	return true
}

// HandleResume records that the machine was suspended: its state is from before that, and its clock stood still
// meanwhile.
func (m *HostState) HandleResume() {
	m.heartbeatConfirmedAt = time.Time{}
	m.recordLapse()
}

// recordLapse records that other hosts may take this host for dead.
func (m *HostState) recordLapse() { m.heartbeatLapses++ }

// HasCurrentHeartbeat reports whether no other host takes this host for dead.
func (m *HostState) HasCurrentHeartbeat(now time.Time) bool {
	if !m.heartbeatConfirmedAt.IsZero() && now.Sub(m.heartbeatConfirmedAt) >= m.Timing.Lifetime {
		m.heartbeatConfirmedAt = time.Time{}
		m.recordLapse()
	}
	return !m.heartbeatConfirmedAt.IsZero()
}

// heartbeatTimeout returns how long the heartbeat of a host may stay unchanged before the host is taken for dead.
func (m *HostState) heartbeatTimeout(h *hostHeartbeat) time.Duration {
	return max(m.Timing.HeartbeatTimeout(), NewTiming(h.host.Lifetime).HeartbeatTimeout())
}

// BuildView returns the view that ComputePlan decides on.
func (m *HostState) BuildView(now time.Time) *View {
	v := &View{
		Wanted: m.wantedAddresses, HeartbeatCurrent: m.HasCurrentHeartbeat(now), HeartbeatTimes: map[string]time.Time{}, FreeSince: map[netip.Addr]time.Time{}, Managed: m.managed,
		Probes: m.probes, TakeoverProbes: m.takeoverProbes, ClaimedAt: map[netip.Addr]time.Time{}, Failures: m.failures, Stopping: m.Stopping, Hosts: []Host{m.Self},
	}
	for name, h := range m.knownHosts {
		// A host whose own lifetime is longer than ours counts as dead accordingly later.
		if v.HeartbeatTimes[name] = h.unchangedSince.Add(m.heartbeatTimeout(h) - m.Timing.HeartbeatTimeout()); name != m.Self.Name && !h.isMissing {
			v.Hosts = append(v.Hosts, h.host)
		}
	}
	slices.SortFunc(v.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	for a, c := range m.foreignClaims {
		v.ClaimedAt[a] = c.ObservedAt
	}
	if m.locks == nil {
		return v
	}
	v.Locks = map[netip.Addr]Lock{}
	for a, l := range m.locks {
		if l.holder != m.Self.Name {
			delete(m.probes, a) // it is probed again once the lock is ours
		}
		v.Locks[a] = Lock{Version: l.version, Holder: l.holder, ReleasedBy: l.releasedBy, Confirmed: l.confirmed && l.confirmedLapses == m.heartbeatLapses}
	}
	for i := range m.wantedAddresses {
		a := m.wantedAddresses[i].Address
		l := m.lockForAddress(a)
		h := m.knownHosts[l.holder]
		switch {
		case l.holder != "" && (h == nil || now.Sub(h.unchangedSince) < m.heartbeatTimeout(h)):
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
func (m *HostState) CountAddresses() (wanted, locked, shown int) {
	for _, l := range m.locks {
		if l.holder == m.Self.Name {
			locked++
		}
	}
	return len(m.wantedAddresses), locked, len(m.managed)
}

// HasLocksOrAddresses reports whether the host holds any lock or has any managed address.
func (m *HostState) HasLocksOrAddresses() bool {
	for _, l := range m.locks {
		if l.holder == m.Self.Name {
			return true
		}
	}
	return len(m.managed) > 0
}

// HasWriteInFlight reports whether a write to the API server is in flight.
func (m *HostState) HasWriteInFlight() bool {
	for _, l := range m.locks {
		if l.writeInFlight {
			return true
		}
	}
	return m.heartbeatInFlight
}

// PruneAddresses drops the state of addresses that are not wanted any more and have no lock.
func (m *HostState) PruneAddresses() {
	needed := map[netip.Addr]bool{}
	for i := range m.wantedAddresses {
		needed[m.wantedAddresses[i].Address] = true
	}
	for a, l := range m.locks {
		needed[a] = needed[a] || l.version != "" || l.writeInFlight
		if !needed[a] {
			delete(m.locks, a)
		}
	}
	gone := func(a netip.Addr) bool { return !needed[a] }
	maps.DeleteFunc(m.failures, func(a netip.Addr, _ Failure) bool { return gone(a) })
	maps.DeleteFunc(m.probes, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
	maps.DeleteFunc(m.takeoverProbes, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
	maps.DeleteFunc(m.foreignClaims, func(a netip.Addr, _ ProbeStatus) bool { return gone(a) })
}
