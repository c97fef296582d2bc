package hostlb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Memory is what a host knows, and what it is doing. It is for one goroutine; all times are of one monotonic clock.
type Memory struct {
	// Self is the host itself: its Networks are those that it has now.
	Self   Host
	Timing Timing
	// Stopping: it is to give up all that it has.
	Stopping bool

	wanted []Wanted
	locks  map[netip.Addr]*lock // nil: they were never read
	heard  map[string]*heard
	ours   map[netip.Addr]time.Time
	wire   map[netip.Addr]Asked
	before map[netip.Addr]Asked
	failed map[netip.Addr]Failure
	ports  map[netip.Addr][]PortReport
	// claimed is who last claimed an address of ours; defended, when it was last announced for that.
	claimed  map[netip.Addr]Asked
	defended map[netip.Addr]time.Time
	// announced is how often, and when, the wire was told of the addresses of ours.
	announced map[netip.Addr]*announced
	asking    map[netip.Addr]bool
	// beatAt is when the last heartbeat was sent, beaten when the last one was that was answered; lapses counts how often there
	// was none for too long.
	beatAt, beaten time.Time
	beating        bool
	lapses         int
}

// lock is that of an address, as it was last read or written.
type lock struct {
	version, holder, left string
	report                *Report
	// sure is set by a write that was answered, and is true for the lapses of then. wrote is when: until the cache has shown
	// it (shown) that is behind.
	sure   bool
	lapses int
	wrote  time.Time
	shown  bool
	// writing: a write is under way; notBefore is when the next may begin.
	writing   bool
	notBefore time.Time
	// taken is when this host took it last.
	taken time.Time
	// free is since when it has no living holder, zero: it has one.
	free time.Time
}

// heard is a host whose heartbeat was read.
type heard struct {
	host    Host
	version string
	since   time.Time
	// gone: there is no heartbeat.
	gone bool
}

// NewMemory is that of a host that has just begun.
func NewMemory(self Host, t Timing) *Memory {
	return &Memory{
		Self: self, Timing: t, heard: map[string]*heard{}, ours: map[netip.Addr]time.Time{}, wire: map[netip.Addr]Asked{}, before: map[netip.Addr]Asked{},
		failed: map[netip.Addr]Failure{}, ports: map[netip.Addr][]PortReport{}, claimed: map[netip.Addr]Asked{}, defended: map[netip.Addr]time.Time{},
		announced: map[netip.Addr]*announced{}, asking: map[netip.Addr]bool{},
	}
}

// ReadLock is a lock as the cache shows it.
type ReadLock struct {
	Version, Holder, Left string
	Report                *Report
}

// ReadHost is a heartbeat as the cache shows it.
type ReadHost struct {
	Host    Host
	Version string
}

// Read takes in what the cache shows: all addresses that are wanted, all locks and all heartbeats.
func (m *Memory) Read(now time.Time, wanted []Wanted, locks map[netip.Addr]ReadLock, hosts []ReadHost) {
	m.wanted = wanted
	if m.locks == nil {
		m.locks = map[netip.Addr]*lock{}
	}
	for a, is := range locks {
		l := m.lockOf(a)
		if !l.wrote.IsZero() && !l.shown {
			if older(is.Version, l.version) {
				continue // the cache is behind what we wrote
			}
			l.shown = true
		}
		if is.Holder != m.Self.Name {
			l.sure = false
		}
		l.version, l.holder, l.left, l.report = is.Version, is.Holder, is.Left, is.Report
	}
	for a, l := range m.locks {
		if _, is := locks[a]; is || l.writing {
			continue
		}
		if !l.wrote.IsZero() && !l.shown && now.Sub(l.wrote) < m.Timing.Lifetime {
			continue // the cache is behind
		}
		*l = lock{notBefore: l.notBefore, free: l.free}
	}
	m.readHosts(now, hosts)
}

func (m *Memory) readHosts(now time.Time, hosts []ReadHost) {
	is := map[string]bool{}
	for _, h := range hosts {
		is[h.Host.Name] = true
		was := m.heard[h.Host.Name]
		if was == nil {
			was = &heard{}
			m.heard[h.Host.Name] = was
		}
		if was.version != h.Version || was.gone {
			was.version, was.since = h.Version, now
		}
		was.host, was.gone = h.Host, false
	}
	held := map[string]bool{}
	for _, l := range m.locks {
		if l.holder == "" {
			continue
		}
		if held[l.holder] = true; m.heard[l.holder] == nil {
			m.heard[l.holder] = &heard{host: Host{Name: l.holder}, since: now, gone: true} // it holds a lock, and has no heartbeat
		}
	}
	for name, h := range m.heard {
		switch {
		case is[name]:
		case !held[name]:
			delete(m.heard, name)
		case !h.gone:
			h.gone, h.version, h.since = true, "", now
		}
	}
}

// older reports whether a resource version comes before another one.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

func (m *Memory) lockOf(a netip.Addr) *lock {
	l := m.locks[a]
	if l == nil {
		l = &lock{}
		m.locks[a] = l
	}
	return l
}

// OnInterface takes in which addresses with our mark the kernel has.
func (m *Memory) OnInterface(all []netip.Addr) {
	is := map[netip.Addr]time.Time{}
	for _, a := range all {
		is[a] = m.ours[a] // of one from before a restart nobody knows since when
	}
	m.ours = is
	maps.DeleteFunc(m.announced, func(a netip.Addr, _ *announced) bool { _, on := is[a]; return !on })
	maps.DeleteFunc(m.defended, func(a netip.Addr, _ time.Time) bool { _, on := is[a]; return !on })
}

// Has are the addresses that are on the interface for a lease, with that.
func (m *Memory) Has() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for i := range m.wanted {
		w := &m.wanted[i]
		if _, on := m.ours[w.Address]; on && !w.Ends && m.locks[w.Address] != nil && m.locks[w.Address].holder == m.Self.Name {
			out[w.Address] = w.Lease
		}
	}
	return out
}

// Ports takes in which ports of the addresses cannot be served.
func (m *Memory) Ports(all map[netip.Addr][]PortReport) { m.ports = all }

// Claim takes in that a machine says to have an address. It reports whether that is to be answered, by announcing it anew: where it is
// one of ours, which was not defended so for D (RFC 5227, 2.4 c). What counts is when it was defended, not when it was last
// claimed: who goes on claiming it is answered for as long as he does.
func (m *Memory) Claim(now time.Time, a netip.Addr, mac string) bool {
	if _, ours := m.ours[a]; !ours || m.Self.answers(mac) {
		return false
	}
	m.claimed[a] = Asked{Foreign, now, mac}
	if at, before := m.defended[a]; before && now.Sub(at) < m.Timing.Lifetime {
		return false
	}
	m.defended[a] = now
	delete(m.announced, a)
	return true
}

// Woke takes in that the machine was suspended: what it knew is from before, and its clock has stood still.
func (m *Memory) Woke() {
	m.beaten = time.Time{}
	m.lapse()
}

// lapse is that others may take this host for dead.
func (m *Memory) lapse() { m.lapses++ }

// Fresh reports whether nobody takes this host for dead.
func (m *Memory) Fresh(now time.Time) bool {
	if !m.beaten.IsZero() && now.Sub(m.beaten) >= m.Timing.Lifetime {
		m.beaten = time.Time{}
		m.lapse()
	}
	return !m.beaten.IsZero()
}

// patience is after how long without a heartbeat a host is taken for dead.
func (m *Memory) patience(h *heard) time.Duration {
	return max(m.Timing.Patience(), TimingOf(h.host.Lifetime).Patience())
}

// View is what Decide decides on.
func (m *Memory) View(now time.Time) *View {
	v := &View{
		Wanted: m.wanted, Fresh: m.Fresh(now), Heard: map[string]time.Time{}, Free: map[netip.Addr]time.Time{}, Ours: m.ours,
		Wire: m.wire, Before: m.before, Claimed: map[netip.Addr]time.Time{}, Failed: m.failed, Stopping: m.Stopping, Hosts: []Host{m.Self},
	}
	for name, h := range m.heard {
		// It is dead a while after that: by its own lifetime, where that is longer than ours.
		if v.Heard[name] = h.since.Add(m.patience(h) - m.Timing.Patience()); name != m.Self.Name && !h.gone {
			v.Hosts = append(v.Hosts, h.host)
		}
	}
	slices.SortFunc(v.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	for a, c := range m.claimed {
		v.Claimed[a] = c.At
	}
	if m.locks == nil {
		return v
	}
	v.Locks = map[netip.Addr]Lock{}
	for a, l := range m.locks {
		if l.holder != m.Self.Name {
			delete(m.wire, a) // it is asked for anew once the lock is ours
		}
		v.Locks[a] = Lock{Version: l.version, Holder: l.holder, Left: l.left, Sure: l.sure && l.lapses == m.lapses}
	}
	for i := range m.wanted {
		a := m.wanted[i].Address
		l := m.lockOf(a)
		h := m.heard[l.holder]
		switch {
		case l.holder != "" && (h == nil || now.Sub(h.since) < m.patience(h)):
			l.free = time.Time{}
			continue
		case l.free.IsZero():
			l.free = now
		}
		v.Free[a] = l.free
	}
	return v
}

// Count counts the addresses that are wanted, those whose lock this host has, and those that it shows.
func (m *Memory) Count() (wanted, locked, shown int) {
	for _, l := range m.locks {
		if l.holder == m.Self.Name {
			locked++
		}
	}
	return len(m.wanted), locked, len(m.ours)
}

// Holds reports whether the host has any lock, or address.
func (m *Memory) Holds() bool {
	for _, l := range m.locks {
		if l.holder == m.Self.Name {
			return true
		}
	}
	return len(m.ours) > 0
}

// Busy reports whether a write is under way.
func (m *Memory) Busy() bool {
	for _, l := range m.locks {
		if l.writing {
			return true
		}
	}
	return m.beating
}

// Forget drops what is remembered of addresses that nobody has any more.
func (m *Memory) Forget() {
	is := map[netip.Addr]bool{}
	for i := range m.wanted {
		is[m.wanted[i].Address] = true
	}
	for a, l := range m.locks {
		is[a] = is[a] || l.version != "" || l.writing
		if !is[a] {
			delete(m.locks, a)
		}
	}
	gone := func(a netip.Addr) bool { return !is[a] }
	maps.DeleteFunc(m.failed, func(a netip.Addr, _ Failure) bool { return gone(a) })
	maps.DeleteFunc(m.wire, func(a netip.Addr, _ Asked) bool { return gone(a) })
	maps.DeleteFunc(m.before, func(a netip.Addr, _ Asked) bool { return gone(a) })
	maps.DeleteFunc(m.claimed, func(a netip.Addr, _ Asked) bool { return gone(a) })
}
