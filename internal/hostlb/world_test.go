package hostlb

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// tick is the time step of a world, a tenth of a second of virtual time. A world has hosts on a wire that may be
// partitioned, an API server that is slow, loses answers and may be out of reach of each host, caches that are behind, a
// manager that releases addresses, and addresses that come and go. After each step at most one host answers for an
// address on a wire, except in the one case that docs/design.md describes, and no address is released while a host
// answers for it.
const tick = 100 * time.Millisecond

// probing is how long a probe takes: three packets, 200 ms apart. timeout is how long a request waits for its answer.
const (
	probing = 600 * time.Millisecond
	timeout = 3 * time.Second
)

var start = sim.Epoch

// foreignMAC is the MAC of a machine that is none of the hosts.
const foreignMAC = "foreign"

var errInjected = errors.New("trouble")

type simulatedHost struct {
	*HostState

	name string
	host Host
	// off reports whether the process is stopped; its kernel keeps addresses for their lifetime. Until frozenUntil the
	// process does nothing either, and keeps its state.
	off         bool
	frozenUntil time.Time
	cut         bool      // from the API server
	cutAt       time.Time // when it last was cut off, or was not answered for so long that others may take it for dead
	side        int       // of the wire
	broken      bool      // it can neither probe nor add an address
	// behindUntil is until when its cache shows nothing new.
	behindUntil time.Time
	// kernel has the addresses on the interface, each with the time at which it is removed.
	kernel map[netip.Addr]time.Time
	cache  cache
	// nextCheck is when the host must plan again if nothing happens. isChanged reports whether something has happened
	// since its last plan, for which it had read seen and its kernel had kernelAddresses.
	nextCheck       time.Time
	isChanged       bool
	seen            cache
	kernelAddresses []netip.Addr
	// life counts its processes: one process does not receive the results of another.
	life int
}

type cache struct {
	wanted []WantedAddress
	locks  map[netip.Addr]ObservedLock
	hosts  []ObservedHost
}

// Done passes the outcome of an operation to the HostState, which is a change.
func (h *simulatedHost) Done(now time.Time, op *Op, r OpResult) {
	h.isChanged = true
	h.CompleteOp(now, op, r)
}

// Claim passes a claim to the HostState, which is a change where it must be answered.
func (h *simulatedHost) Claim(now time.Time, a netip.Addr, mac string) bool {
	answers := h.ObserveClaim(now, a, mac)
	h.isChanged = h.isChanged || answers
	return answers
}

// operation is an Op in flight.
type operation struct {
	h    *simulatedHost
	life int
	op   Op
	// at is when its next step is due, and step is the number of that step.
	at   time.Time
	step int
	// lost reports whether the answer is lost; isReported reports whether the host has the result.
	lost, isReported bool
	sent             time.Time
	result           OpResult
}

// world is one run. It is no sim.World: the state of a host has no goroutines, and gets the time with each call.
type world struct {
	sim.Run

	r       *rand.Rand
	now     time.Time
	hosts   []*simulatedHost
	flights []*operation
	// The objects of the API server; hidden has the addresses of leases without ports.
	locks      map[netip.Addr]ObservedLock
	heartbeats map[string]ObservedHost
	wanted     map[netip.Addr]*WantedAddress
	hidden     map[netip.Addr]bool
	version    int
	leases     int
	// foreign has the addresses that a foreign machine answers for, each with its side of the wire.
	foreign map[netip.Addr]int
	// excused has the hosts that were cut off from the API server, and from the wire of a host that took an address over
	// from them.
	excused map[string]bool
	// conflictSince is since when two hosts answer for an address on one wire, one of them excused.
	conflictSince map[netip.Addr]time.Time
	// calm reports whether no more faults are injected. busy counts the operations that a host at rest does not run.
	calm bool
	busy int
}

var addresses = []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")}

func newWorld(seed uint64, n int) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 3)), now: start, locks: map[netip.Addr]ObservedLock{}, heartbeats: map[string]ObservedHost{}, hidden: map[netip.Addr]bool{},
		wanted: map[netip.Addr]*WantedAddress{}, foreign: map[netip.Addr]int{}, excused: map[string]bool{}, conflictSince: map[netip.Addr]time.Time{},
	}
	w.Clock = func() time.Time { return w.now }
	w.Tracef("seed %d", seed)
	for i := range n {
		h := &simulatedHost{host: Host{
			Name: fmt.Sprintf("h%d", i+1), Networks: []Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), MAC: fmt.Sprintf("02::%d", i+1)}}, Node: fmt.Sprintf("n%d", i+1),
		}, kernel: map[netip.Addr]time.Time{}}
		h.name = h.host.Name
		h.HostState = NewHostState(h.host, DefaultTiming())
		w.hosts = append(w.hosts, h)
	}
	return w
}

// TestOneHostAnswersForAddress runs random schedules: one host answers for an address, whatever is cut off, frozen or
// killed. When all faults are over, each address is on one host, and the hosts rest.
func TestOneHostAnswersForAddress(t *testing.T) {
	n := 1000
	if more, err := strconv.Atoi(os.Getenv("SEEDS")); err == nil {
		n = more
	}
	if testing.Short() {
		n = 200
	}
	for seed := range n {
		w := newWorld(uint64(seed), 2+seed%2)
		w.run()
		if w.Report(t); w.Failed() {
			return
		}
	}
}

// newCalmWorld returns a world without random faults in which hosts have taken all addresses.
func newCalmWorld(seed uint64, n int) *world {
	w := newWorld(seed, n)
	w.calm = true
	for i, a := range addresses {
		w.wanted[a] = &WantedAddress{Address: a, LeaseUID: fmt.Sprint(i)}
	}
	w.pass(20*time.Second, func() {})
	return w
}

// TestAPIServerOutageMovesNoAddress checks that an API server that is away for all hosts removes and moves no address,
// not even when it is back, whichever host is the first to notice that.
func TestAPIServerOutageMovesNoAddress(t *testing.T) {
	for seed := range 50 {
		w := newCalmWorld(uint64(seed), 3)
		was := map[netip.Addr]string{}
		for _, a := range addresses {
			if all := w.answering(a); len(all) == 1 {
				was[a] = all[0].name
			}
		}
		for _, h := range w.hosts {
			h.cut = true
		}
		stays := func() {
			for _, a := range addresses {
				if all := w.answering(a); len(all) != 1 || all[0].name != was[a] {
					w.Failf("%s is on %d hosts, and was on %s", a, len(all), was[a])
				}
			}
		}
		w.pass(time.Minute, stays)
		for _, i := range w.r.Perm(len(w.hosts)) {
			w.hosts[i].cut = false
			w.hosts[i].behindUntil = w.now.Add(time.Duration(w.r.IntN(200)) * tick) // its watches begin again later
			w.pass(time.Duration(w.r.IntN(30))*tick, stays)
		}
		w.pass(time.Minute, stays)
		if w.Report(t); w.Failed() {
			return
		}
	}
}

// TestCutOffHostKeepsAddress checks that an address stays on a host that is cut off from the API server alone, and is
// still there when the host is back: the hosts that see it answer do not take its lock. Where the host is killed
// meanwhile, another host has the address as soon as after any other kill.
func TestCutOffHostKeepsAddress(t *testing.T) {
	for seed := range 60 {
		w := newCalmWorld(uint64(seed), 2+seed%3)
		a := addresses[0]
		all := w.answering(a)
		if len(all) != 1 {
			t.Fatalf("seed %d: %s is on %d hosts", seed, a, len(all))
		}
		h := all[0]
		check := func(holds func(answering []*simulatedHost) bool, what string) func() {
			return func() {
				if !holds(w.answering(a)) {
					w.Failf("%s", what)
				}
			}
		}
		stays := func(now []*simulatedHost) bool {
			return len(now) == 1 && now[0] == h && w.locks[a].Holder == h.name
		}
		h.cut = true
		w.Tracef("%s cut off from the API server", h.name)
		w.pass(time.Minute+time.Duration(w.r.IntN(100))*tick, check(stays, "the address leaves a host that is cut off from the API server alone"))
		if seed%4 == 0 {
			h.off = true
			w.Tracef("%s killed", h.name)
			w.pass(DefaultTiming().Lifetime+3*time.Second, check(func(now []*simulatedHost) bool { return len(now) < 2 }, "two hosts answer"))
			moved := func(now []*simulatedHost) bool { return len(now) == 1 && now[0] != h }
			w.pass(time.Minute, check(moved, "no other host has the address of one that was killed while it was cut off"))
		} else {
			h.cut, h.behindUntil = false, w.now.Add(time.Duration(w.r.IntN(50))*tick)
			w.Tracef("%s not cut off", h.name)
			w.pass(time.Minute, check(stays, "the address leaves a host that is back"))
		}
		if w.Report(t); w.Failed() {
			return
		}
	}
}

// pass runs steps for a time, or until something is wrong, and a check after each of them.
func (w *world) pass(d time.Duration, check func()) {
	for until := w.now.Add(d); w.now.Before(until) && !w.Failed(); check() {
		w.now = w.now.Add(tick)
		w.step()
	}
}

func (w *world) run() {
	w.pass(4*time.Minute, func() {})
	if w.Failed() {
		return
	}
	w.Tracef("all is well")
	w.calm = true
	for _, h := range w.hosts {
		if h.off || h.Stopping {
			w.begin(h)
		}
		h.cut, h.side, h.frozenUntil, h.broken, h.behindUntil = false, 0, time.Time{}, false, time.Time{}
	}
	clear(w.foreign)
	w.pass(90*time.Second, func() {})
	w.busy = 0
	if w.pass(30*time.Second, func() {}); w.Failed() {
		return
	}
	if w.busy > 0 {
		w.Failf("hosts do %d things in 30 s where all is well", w.busy)
	}
	for _, a := range addresses {
		want := 0
		if w.wanted[a] != nil && !w.wanted[a].LeaseDeleting && !w.hidden[a] {
			want = 1
		}
		if got := len(w.answering(a)); got != want {
			w.Failf("%s is on %d hosts in the end, and is to be on %d", a, got, want)
		}
		if o := w.wanted[a]; o != nil && o.LeaseDeleting {
			w.Failf("%s is not released: its lock is %+v", a, w.locks[a])
		}
	}
}

// disturb injects one random fault.
func (w *world) disturb() {
	h := w.hosts[w.r.IntN(len(w.hosts))]
	a := addresses[w.r.IntN(len(addresses))]
	switch w.r.IntN(18) {
	case 0:
		h.cut = !h.cut
		w.Tracef("%s cut off from the API server: %v", h.name, h.cut)
	case 1:
		h.side = w.r.IntN(2)
		w.Tracef("%s on side %d of the wire", h.name, h.side)
	case 2:
		h.frozenUntil = w.now.Add(time.Duration(1+w.r.IntN(30)) * time.Second)
		w.Tracef("%s frozen until %.1f", h.name, h.frozenUntil.Sub(start).Seconds())
	case 3:
		if h.off {
			w.begin(h)
		} else {
			h.off = true
			w.Tracef("%s killed", h.name)
		}
	case 4:
		h.Stopping, h.isChanged = true, true
		w.Tracef("%s stops", h.name)
	case 5, 6, 7:
		if w.wanted[a] == nil {
			w.leases++
			w.wanted[a] = &WantedAddress{Address: a, LeaseUID: fmt.Sprint(w.leases)}
			w.Tracef("%s is wanted", a)
		}
		w.hidden[a] = false
	case 8:
		if w.wanted[a] != nil {
			w.wanted[a].LeaseDeleting, w.hidden[a] = true, false
			w.Tracef("%s ends", a)
		}
	case 9:
		if w.wanted[a] != nil && !w.wanted[a].LeaseDeleting {
			w.hidden[a] = !w.hidden[a]
			w.Tracef("%s has no ports: %v", a, w.hidden[a])
		}
	case 10:
		if _, is := w.foreign[a]; is {
			delete(w.foreign, a)
		} else if len(w.answering(a)) == 0 {
			w.foreign[a] = w.r.IntN(2)
		}
		w.Tracef("a foreign machine has %s: %v", a, w.foreign)
	case 11: // no fault lasts
		for _, o := range w.hosts {
			o.cut, o.side, o.broken = false, 0, false
		}
		w.Tracef("no partition")
	case 12:
		if h.off {
			delete(w.heartbeats, h.name)
			w.Tracef("the heartbeat of %s is deleted", h.name)
		}
	case 13:
		h.broken = !h.broken
		w.Tracef("%s can ask and add nothing: %v", h.name, h.broken)
	case 14:
		h.behindUntil = w.now.Add(time.Duration(w.r.IntN(50)) * tick)
		if w.r.IntN(3) == 0 { // its watch has ended, and begins again after a while
			h.behindUntil = w.now.Add(time.Minute)
		}
		w.Tracef("the cache of %s is behind", h.name)
	case 15: // a user flushes the interface
		clear(h.kernel)
		w.Tracef("%s has no addresses any more", h.name)
	case 17:
		if w.wanted[a] == nil { // it is deleted before the hosts have seen more than that it is wanted
			w.leases++
			w.wanted[a], w.hidden[a] = &WantedAddress{Address: a, LeaseUID: fmt.Sprint(w.leases)}, false
			for _, o := range w.hosts {
				if !o.cut {
					o.cache, o.behindUntil = w.read(), w.now.Add(4*time.Second)
				}
			}
			w.wanted[a].LeaseDeleting = true
			w.Tracef("%s is wanted, and ends at once", a)
		}
	case 16:
		if o := w.wanted[a]; o != nil {
			o.Nodes = map[string]bool{fmt.Sprintf("n%d", 1+w.r.IntN(4)): true}
			w.Tracef("%s is to be on %v", a, o.Nodes)
		}
	}
}

// begin starts a host: its state is empty, and its kernel keeps the addresses that have not expired.
func (w *world) begin(h *simulatedHost) {
	w.Tracef("%s begins", h.name)
	h.off, h.frozenUntil, h.isChanged = false, time.Time{}, true
	h.life++
	h.HostState, h.cache = NewHostState(h.host, DefaultTiming()), cache{}
}

// answering returns the hosts that answer for an address.
func (w *world) answering(a netip.Addr) []*simulatedHost {
	var out []*simulatedHost
	for _, h := range w.hosts {
		if until, on := h.kernel[a]; on && w.now.Before(until) {
			out = append(out, h)
		}
	}
	return out
}

// step may inject a fault, continues the operations in flight, lets each host plan, in random order, and checks the invariants after each.
func (w *world) step() {
	if !w.calm && w.r.IntN(40) == 0 {
		w.disturb()
	}
	for _, a := range addresses {
		if w.r.IntN(10) == 0 {
			w.manage(a)
		}
	}
	for a, side := range w.foreign { // the foreign machine claims it again and again
		if w.now.Sub(start)%time.Second == 0 {
			for _, h := range w.answering(a) {
				if h.side == side && !h.off {
					h.Claim(w.now, a, foreignMAC)
				}
			}
		}
	}
	for _, f := range slices.Clone(w.flights) {
		for more := true; more && !w.now.Before(f.at); {
			more = w.land(f)
		}
		w.check()
	}
	w.flights = slices.DeleteFunc(w.flights, func(f *operation) bool { return f.isReported })
	for _, i := range w.r.Perm(len(w.hosts)) {
		h := w.hosts[i]
		if h.cut || h.hasLostAPIServer(w.now) {
			h.cutAt = w.now
		}
		for a, until := range h.kernel {
			if !w.now.Before(until) {
				delete(h.kernel, a)
			}
		}
		if !h.off && !w.now.Before(h.frozenUntil) {
			w.tickHost(h)
		}
		w.check()
	}
}

// hasLostAPIServer reports whether a running host has had an answer of the API server, and has had none for D: writes
// may take longer.
func (h *simulatedHost) hasLostAPIServer(now time.Time) bool {
	return !h.off && !now.Before(h.frozenUntil) && h.heartbeatLapses > 0 && !h.HasCurrentHeartbeat(now)
}

// manage releases an address whose lease is being deleted (P6): an empty lock, or none, shows that no host has the
// address.
func (w *world) manage(a netip.Addr) {
	o, l := w.wanted[a], w.locks[a]
	if o == nil || !o.LeaseDeleting || l.Holder != "" || l.ReleasedBy != "" {
		return
	}
	w.Tracef("%s is released", a)
	for _, h := range w.answering(a) {
		if !w.excused[h.name] {
			w.Failf("%s is released, and %s answers for it", a, h.name)
		}
	}
	delete(w.wanted, a)
	delete(w.locks, a)
}

func (w *world) check() {
	for _, a := range addresses {
		all, both := w.answering(a), false
		for i, x := range all {
			if w.wanted[a] == nil && !w.excused[x.name] && len(w.foreign) == 0 {
				w.Failf("%s answers for %s, which was released", x.name, a)
			}
			for _, y := range all[:i] {
				both = both || x.side == y.side
				if x.side == y.side && !w.excused[x.name] && !w.excused[y.name] {
					w.Failf("%s and %s both answer for %s", y.name, x.name, a)
				}
			}
		}
		switch since, is := w.conflictSince[a]; {
		case !both:
			delete(w.conflictSince, a)
		case !is:
			w.conflictSince[a] = w.now
		case w.now.Sub(since) > w.bound(all) && !w.paused(all):
			w.Failf("two hosts answer for %s for %s", a, w.now.Sub(since))
		}
	}
	for name := range w.excused { // until the host has found out
		h := w.hosts[slices.IndexFunc(w.hosts, func(h *simulatedHost) bool { return h.name == name })]
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(w.answering(a), h) && w.locks[a].Holder != name }) {
			delete(w.excused, name)
		}
	}
}

// bound returns how long two hosts may answer if one is excused: until that one has probed, or has tried to for long
// enough.
func (w *world) bound(all []*simulatedHost) time.Duration {
	d := DefaultTiming().Lifetime + 2*time.Second
	if slices.ContainsFunc(all, func(h *simulatedHost) bool { return h.broken }) {
		d += DefaultTiming().Lifetime
	}
	return d
}

// paused reports whether one of the hosts is frozen or killed, and so finds nothing out.
func (w *world) paused(all []*simulatedHost) bool {
	return slices.ContainsFunc(all, func(h *simulatedHost) bool { return h.off || w.now.Before(h.frozenUntil) })
}

// tickHost is one tick of a host: it reads its cache, plans and acts.
func (w *world) tickHost(h *simulatedHost) {
	if !h.cut && !w.now.Before(h.behindUntil) {
		h.cache = w.read()
	}
	if h.cache.locks != nil {
		h.ObserveCache(w.now, h.cache.wanted, h.cache.locks, h.cache.hosts)
	}
	h.SetManagedAddresses(slices.Collect(maps.Keys(h.kernel)))
	ops, again := h.PlanOps(w.now)
	w.checkWakeTime(h, ops, again)
	for _, op := range ops {
		if op.Kind != WriteHeartbeat && op.Kind != RefreshAddress && op.Kind != AnnounceAddress {
			w.busy++
		}
		switch op.Kind {
		case AddAddress, RefreshAddress, RemoveAddress:
			h.Done(w.now, &op, w.change(h, &op))
		case AnnounceAddress: // the hosts on that side receive it
			for _, o := range w.answering(op.Address) {
				if o != h && o.side == h.side && !o.off {
					o.Claim(w.now, op.Address, h.host.Networks[0].MAC)
				}
			}
		case ProbeAddress:
			w.flights = append(w.flights, &operation{h: h, life: h.life, op: op, at: w.now.Add(probing), sent: w.now})
		default:
			w.send(h, op)
		}
	}
	h.PruneAddresses()
}

// checkWakeTime checks the time at which a host plans again: that time is in the future, unless there was something to
// do, and the host does nothing before it unless something has changed or a request is in flight. A host that names a
// time in the past would plan all the time, and a host that names none would miss its turn; here all hosts plan at each
// tick, so only this check finds either.
func (w *world) checkWakeTime(h *simulatedHost, ops []Op, again time.Time) {
	has := slices.SortedFunc(maps.Keys(h.kernel), netip.Addr.Compare)
	hasChanges := func() bool {
		return h.isChanged || !slices.Equal(has, h.kernelAddresses) || !reflect.DeepEqual(h.cache, h.seen)
	}
	switch {
	case len(ops) == 0 && !again.IsZero() && !again.After(w.now):
		w.Failf("%s has nothing to do, and was to look again %s ago", h.name, w.now.Sub(again))
	case len(ops) > 0 && w.now.Before(h.nextCheck) && !h.hasPendingRequest() && !hasChanges():
		w.Failf("%s was to look again %s later, and has to %s already", h.name, h.nextCheck.Sub(w.now), ops[0].Kind)
	}
	if h.nextCheck = again; again.IsZero() {
		h.nextCheck = w.now.Add(h.Timing.Lifetime)
	}
	h.isChanged, h.kernelAddresses, h.seen = false, has, h.cache
}

// hasPendingRequest reports whether a write of a lock or a probe is in flight, whose result wakes the host.
func (h *simulatedHost) hasPendingRequest() bool {
	return len(h.probing) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(h.locks)), func(l *lockState) bool { return l.writeInFlight })
}

// read returns all objects of the API server.
func (w *world) read() cache {
	c := cache{locks: maps.Clone(w.locks)}
	for _, a := range addresses {
		if o := w.wanted[a]; o != nil && !w.hidden[a] {
			c.wanted = append(c.wanted, *o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.heartbeats)) {
		c.hosts = append(c.hosts, w.heartbeats[name])
	}
	return c
}

// change changes the interface of a host.
func (w *world) change(h *simulatedHost, op *Op) OpResult {
	a := op.Address
	_, on := h.kernel[a]
	switch {
	case op.Kind == RemoveAddress:
		w.Tracef("%s: takes %s off", h.name, a)
		delete(h.kernel, a)
		return OpResult{}
	case op.Kind == RefreshAddress && !on, op.Kind == AddAddress && h.broken:
		return OpResult{Err: errInjected}
	case op.Kind == AddAddress:
		w.Tracef("%s: adds %s", h.name, a)
	}
	h.kernel[a] = w.now.Add(op.AddressLifetime(w.now, DefaultTiming()))
	return OpResult{}
}

// send sends a write, which may land late; it, or its answer, may be lost.
func (w *world) send(h *simulatedHost, op Op) {
	f := &operation{h: h, life: h.life, op: op, at: w.now, sent: w.now}
	if !w.calm && w.r.IntN(6) == 0 {
		f.at = w.now.Add(time.Duration(w.r.IntN(30)) * tick)
	}
	if !w.calm && w.r.IntN(12) == 0 {
		f.lost = true
		f.at = w.now.Add(time.Duration(w.r.IntN(150)) * tick)
	}
	if h.cut {
		f.lost, f.step = true, 9 // it never lands
		f.at = w.now.Add(timeout)
	}
	w.flights = append(w.flights, f)
}

// land runs the next step of an operation in flight, and reports whether another step follows, which may be due.
func (w *world) land(f *operation) (more bool) {
	switch {
	case f.isReported:
		return false
	case f.op.Kind == ProbeAddress:
		if f.result.ReplyMAC = w.respondingMAC(f.h, f.op.Address); f.result.ReplyMAC == "" || f.result.ReplyMAC == foreignMAC {
			w.excuse(f.h, f.op.Address)
		}
		if f.h.broken {
			f.result = OpResult{Err: errInjected}
		}
		w.reportResult(f)
		return false
	}
	switch f.step {
	case 0:
		if !w.isHeartbeatUnchanged(f) {
			f.result.Err, f.step = ErrHolderAlive, 9
			return true
		}
		if f.step = 1; w.slow() {
			f.at = f.at.Add(time.Duration(w.r.IntN(20)) * tick)
		}
	case 1:
		f.step = 9
		w.apply(f)
		if f.op.Kind == AcquireLock && !f.op.LeaseDeleting && f.result.Err == nil {
			if f.step = 2; w.slow() {
				f.at = f.at.Add(time.Duration(w.r.IntN(20)) * tick)
			}
		}
	case 2:
		f.step = 9
		if o := w.wanted[f.op.Address]; o == nil || o.LeaseDeleting || o.LeaseUID != f.op.LeaseUID {
			f.result.Err = ErrLeaseGone
		}
	default:
		if f.lost {
			f.result = OpResult{Err: errInjected}
			f.at = f.sent.Add(timeout)
			if w.now.Before(f.at) {
				f.step = 10
				return false
			}
		}
		w.reportResult(f)
		return false
	}
	return true
}

func (w *world) slow() bool { return !w.calm && w.r.IntN(5) == 0 }

// reportResult passes the result of an operation to the host, if its process is the one that began it.
func (w *world) reportResult(f *operation) {
	if f.h.off || w.now.Before(f.h.frozenUntil) {
		f.at = w.now.Add(tick)
		f.isReported = f.h.off
		return
	}
	if f.isReported = true; f.life == f.h.life {
		f.h.Done(w.now, &f.op, f.result)
	}
}

// isHeartbeatUnchanged reports whether the heartbeat of the holder of a lock is unchanged when it is read just before
// the lock is taken.
func (w *world) isHeartbeatUnchanged(f *operation) bool {
	return f.op.Kind != AcquireLock || f.op.DeadHost == "" || w.heartbeats[f.op.DeadHost].Version == f.op.DeadHostVersion
}

// apply lands a write.
func (w *world) apply(f *operation) {
	a, h := f.op.Address, f.h
	if f.op.Kind == WriteHeartbeat {
		w.version++
		w.heartbeats[h.name] = ObservedHost{h.host, fmt.Sprint(w.version)}
		return
	}
	if w.locks[a].Version != f.op.Lock.Version {
		f.result.Err = ErrLockChanged
		if l := w.locks[a]; f.op.Kind == AcquireLock && f.op.Lock.Holder == h.name {
			f.result.ObservedLock = &l
		}
		return
	}
	w.version++
	f.result.LockVersion = fmt.Sprint(w.version)
	l := ObservedLock{Version: f.result.LockVersion}
	switch f.op.Kind { //nolint:exhaustive // the others write no lock
	case AcquireLock:
		l.Holder = h.name
	case ReleaseUnconfirmed:
		l.ReleasedBy = h.name
	case WriteReport:
		l.Holder, l.Report = h.name, f.op.Report
	case ReleaseConfirmed:
		for _, o := range w.answering(a) {
			if o.side == h.side && !w.excused[o.name] {
				w.Failf("%s empties the lock of %s, and %s answers", h.name, a, o.name)
			}
		}
	}
	w.locks[a] = l
	w.Tracef("%s: %s of %s: %+v", h.name, f.op.Kind, a, l)
}

// respondingMAC returns the MAC that replies to a probe of an address by a host.
func (w *world) respondingMAC(h *simulatedHost, a netip.Addr) string {
	for _, o := range w.answering(a) {
		if o != h && o.side == h.side {
			return o.host.Networks[0].MAC
		}
	}
	if side, is := w.foreign[a]; is && side == h.side {
		return foreignMAC
	}
	return ""
}

// excuse excuses a host that has an address which another host takes over, or releases as unanswered: the former is cut
// off from the wire of the latter, and was cut off from the API server, or it would know.
func (w *world) excuse(h *simulatedHost, a netip.Addr) {
	for _, o := range w.answering(a) {
		if o != h && o.side != h.side && (o.cut || w.now.Sub(o.cutAt) < 20*time.Second) {
			w.excused[o.name] = true
		}
	}
}
