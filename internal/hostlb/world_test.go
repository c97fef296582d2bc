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
	"strings"
	"testing"
	"time"
)

// A world is hosts on a wire that may be parted, an API server that is slow, loses answers and may be out of reach of each,
// caches that are behind, a manager that gives addresses back, and addresses that come and go, in virtual time: a tick is a
// tenth of a second. After each step at most one host answers for an address on a wire, but for the one exception that
// docs/design.md has, and no address is given back that a host answers for.
const tick = 100 * time.Millisecond

// probing is how long it takes to ask the wire: three times, 200 ms apart. timeout is how long an answer is waited for.
const (
	probing = 600 * time.Millisecond
	timeout = 3 * time.Second
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// somebody is the MAC of a machine that is none of the hosts.
const somebody = "somebody"

var errTrouble = errors.New("trouble")

type simulated struct {
	*Memory

	name string
	host Host
	// off: it does not run; its kernel keeps addresses for their lifetime. frozen until a time: the same, and it remembers.
	off         bool
	frozenUntil time.Time
	cut         bool      // from the API server
	cutAt       time.Time // when it last was, or was not answered for so long that others may take it for dead
	side        int       // of the wire
	broken      bool      // it can neither ask the wire nor add an address
	// behindUntil is until when its cache shows nothing new.
	behindUntil time.Time
	// kernel has the addresses, each with when it goes.
	kernel map[netip.Addr]time.Time
	cache  cache
	// due is when it is to look again if nothing happens; news, that something has since it last looked, when it had read seen and
	// its kernel had the addresses had.
	due  time.Time
	news bool
	seen cache
	had  []netip.Addr
	// life counts its processes: what one has begun another hears nothing of.
	life int
}

type cache struct {
	wanted []Wanted
	locks  map[netip.Addr]ReadLock
	hosts  []ReadHost
}

// Done is that of Memory, which is news.
func (h *simulated) Done(now time.Time, op *Op, r Result) {
	h.news = true
	h.Memory.Done(now, op, r)
}

// Claim is that of Memory, which is news where it is to be answered.
func (h *simulated) Claim(now time.Time, a netip.Addr, mac string) bool {
	answers := h.Memory.Claim(now, a, mac)
	h.news = h.news || answers
	return answers
}

// flight is an Op under way.
type flight struct {
	h    *simulated
	life int
	op   Op
	// at is when its next step is, step which.
	at   time.Time
	step int
	// lost: nobody hears what became of it; told: that was said.
	lost, told bool
	sent       time.Time
	result     Result
}

type world struct {
	r       *rand.Rand
	now     time.Time
	hosts   []*simulated
	flights []*flight
	// What the API server has: hidden are leases without ports.
	locks   map[netip.Addr]ReadLock
	beats   map[string]ReadHost
	wanted  map[netip.Addr]*Wanted
	hidden  map[netip.Addr]bool
	version int
	leases  int
	// foreign answers for an address on a side of the wire.
	foreign map[netip.Addr]int
	// excused are hosts that were cut off from the API server, and from the wire of one that took an address over from them.
	excused map[string]bool
	// both is since when two answer on one wire of which one is excused.
	both map[netip.Addr]time.Time
	// calm: nothing goes wrong any more. busy counts what is done that a host at rest does not.
	calm  bool
	busy  int
	texts []string
	wrong string
}

func (w *world) notef(format string, args ...any) {
	w.texts = append(w.texts, fmt.Sprintf("%7.1f %s", w.now.Sub(start).Seconds(), fmt.Sprintf(format, args...)))
}

var addresses = []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")}

func newWorld(seed uint64, n int) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 3)), now: start, locks: map[netip.Addr]ReadLock{}, beats: map[string]ReadHost{}, hidden: map[netip.Addr]bool{},
		wanted: map[netip.Addr]*Wanted{}, foreign: map[netip.Addr]int{}, excused: map[string]bool{}, both: map[netip.Addr]time.Time{},
	}
	for i := range n {
		h := &simulated{host: Host{
			Name: fmt.Sprintf("h%d", i+1), Networks: []Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), MAC: fmt.Sprintf("02::%d", i+1)}}, Node: fmt.Sprintf("n%d", i+1),
		}, kernel: map[netip.Addr]time.Time{}}
		h.name = h.host.Name
		h.Memory = NewMemory(h.host, DefaultTiming())
		w.hosts = append(w.hosts, h)
	}
	return w
}

// TestOneAnswers runs random stories: one host answers for an address, whatever is cut, frozen or killed; and when all is well
// again, each address is on one host, and the hosts rest.
func TestOneAnswers(t *testing.T) {
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
		if w.wrong != "" {
			t.Errorf("seed %d: %s\n%s", seed, w.wrong, strings.Join(w.texts, "\n"))
			return
		}
		if os.Getenv("TRACE") != "" {
			t.Log("\n" + strings.Join(w.texts, "\n"))
		}
	}
}

// An API server that is away for all takes no address down, and moves none, not even when it is back, whoever hears of that first.
func TestOutage(t *testing.T) {
	for seed := range 50 {
		w := newWorld(uint64(seed), 3)
		w.calm = true
		for i, a := range addresses {
			w.wanted[a] = &Wanted{Address: a, Lease: fmt.Sprint(i)}
		}
		pass := func(d time.Duration) {
			for until := w.now.Add(d); w.now.Before(until) && w.wrong == ""; {
				w.now = w.now.Add(tick)
				w.step()
			}
		}
		pass(20 * time.Second)
		was := map[netip.Addr]string{}
		for _, a := range addresses {
			if all := w.answering(a); len(all) == 1 {
				was[a] = all[0].name
			}
		}
		for _, h := range w.hosts {
			h.cut = true
		}
		stays := func(d time.Duration) {
			for until := w.now.Add(d); w.now.Before(until) && w.wrong == ""; pass(tick) {
				for _, a := range addresses {
					if all := w.answering(a); w.wrong == "" && (len(all) != 1 || all[0].name != was[a]) {
						w.wrong = fmt.Sprintf("%s is on %d hosts, and was on %s", a, len(all), was[a])
					}
				}
			}
		}
		stays(time.Minute)
		for _, i := range w.r.Perm(len(w.hosts)) {
			w.hosts[i].cut = false
			w.hosts[i].behindUntil = w.now.Add(time.Duration(w.r.IntN(200)) * tick) // its watches begin again later
			stays(time.Duration(w.r.IntN(30)) * tick)
		}
		stays(time.Minute)
		if w.wrong != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.wrong, strings.Join(w.texts, "\n"))
		}
	}
}

// An address stays on a host that is cut off from the API server alone, and is there when it is back: those that hear it answer do
// not take its lock. Where it ends meanwhile, another host has the address as soon as after any other end.
func TestCutOff(t *testing.T) {
	for seed := range 60 {
		w := newWorld(uint64(seed), 2+seed%3)
		w.calm = true
		for i, a := range addresses {
			w.wanted[a] = &Wanted{Address: a, Lease: fmt.Sprint(i)}
		}
		pass := func(d time.Duration, holds func() bool, what string) {
			for until := w.now.Add(d); w.now.Before(until) && w.wrong == ""; {
				w.now = w.now.Add(tick)
				if w.step(); !holds() && w.wrong == "" {
					w.wrong = what
				}
			}
		}
		pass(20*time.Second, func() bool { return true }, "")
		a := addresses[0]
		all := w.answering(a)
		if len(all) != 1 {
			t.Fatalf("seed %d: %s is on %d hosts", seed, a, len(all))
		}
		h := all[0]
		stays := func() bool {
			now := w.answering(a)
			return len(now) == 1 && now[0] == h && w.locks[a].Holder == h.name
		}
		h.cut = true
		w.notef("%s cut off from the API server", h.name)
		pass(time.Minute+time.Duration(w.r.IntN(100))*tick, stays, "the address leaves a host that is cut off from the API server alone")
		if seed%4 == 0 {
			h.off = true
			w.notef("%s killed", h.name)
			pass(DefaultTiming().Lifetime+3*time.Second, func() bool { return len(w.answering(a)) < 2 }, "two hosts answer")
			stays = func() bool { now := w.answering(a); return len(now) == 1 && now[0] != h }
			pass(time.Minute, stays, "no other host has the address of one that was killed while it was cut off")
		} else {
			h.cut, h.behindUntil = false, w.now.Add(time.Duration(w.r.IntN(50))*tick)
			w.notef("%s not cut off", h.name)
			pass(time.Minute, stays, "the address leaves a host that is back")
		}
		if w.wrong != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.wrong, strings.Join(w.texts, "\n"))
		}
	}
}

func (w *world) run() {
	for w.now.Before(start.Add(4 * time.Minute)) {
		w.now = w.now.Add(tick)
		if w.r.IntN(40) == 0 {
			w.disturb()
		}
		w.step()
		if w.wrong != "" {
			return
		}
	}
	w.notef("all is well")
	w.calm = true
	for _, h := range w.hosts {
		if h.off || h.Stopping {
			w.begin(h)
		}
		h.cut, h.side, h.frozenUntil, h.broken, h.behindUntil = false, 0, time.Time{}, false, time.Time{}
	}
	clear(w.foreign)
	for until := w.now.Add(2 * time.Minute); w.now.Before(until) && w.wrong == ""; {
		w.now = w.now.Add(tick)
		if w.step(); until.Sub(w.now) > 30*time.Second {
			w.busy = 0
		}
	}
	if w.wrong != "" {
		return
	}
	if w.busy > 0 {
		w.wrong = fmt.Sprintf("hosts do %d things in 30 s where all is well", w.busy)
	}
	for _, a := range addresses {
		want := 0
		if w.wanted[a] != nil && !w.wanted[a].Ends && !w.hidden[a] {
			want = 1
		}
		if got := len(w.answering(a)); got != want {
			w.wrong = fmt.Sprintf("%s is on %d hosts in the end, and is to be on %d", a, got, want)
		}
		if o := w.wanted[a]; o != nil && o.Ends {
			w.wrong = fmt.Sprintf("%s is not given back: its lock is %+v", a, w.locks[a])
		}
	}
}

// disturb does something to somebody.
func (w *world) disturb() {
	h := w.hosts[w.r.IntN(len(w.hosts))]
	a := addresses[w.r.IntN(len(addresses))]
	switch w.r.IntN(18) {
	case 0:
		h.cut = !h.cut
		w.notef("%s cut off from the API server: %v", h.name, h.cut)
	case 1:
		h.side = w.r.IntN(2)
		w.notef("%s on side %d of the wire", h.name, h.side)
	case 2:
		h.frozenUntil = w.now.Add(time.Duration(1+w.r.IntN(30)) * time.Second)
		w.notef("%s frozen until %.1f", h.name, h.frozenUntil.Sub(start).Seconds())
	case 3:
		if h.off {
			w.begin(h)
		} else {
			h.off = true
			w.notef("%s killed", h.name)
		}
	case 4:
		h.Stopping, h.news = true, true
		w.notef("%s stops", h.name)
	case 5, 6, 7:
		if w.wanted[a] == nil {
			w.leases++
			w.wanted[a] = &Wanted{Address: a, Lease: fmt.Sprint(w.leases)}
			w.notef("%s is wanted", a)
		}
		w.hidden[a] = false
	case 8:
		if w.wanted[a] != nil {
			w.wanted[a].Ends, w.hidden[a] = true, false
			w.notef("%s ends", a)
		}
	case 9:
		if w.wanted[a] != nil && !w.wanted[a].Ends {
			w.hidden[a] = !w.hidden[a]
			w.notef("%s has no ports: %v", a, w.hidden[a])
		}
	case 10:
		if _, is := w.foreign[a]; is {
			delete(w.foreign, a)
		} else if len(w.answering(a)) == 0 {
			w.foreign[a] = w.r.IntN(2)
		}
		w.notef("somebody else has %s: %v", a, w.foreign)
	case 11: // all is well for a while
		for _, o := range w.hosts {
			o.cut, o.side, o.broken = false, 0, false
		}
		w.notef("no partition")
	case 12:
		if h.off {
			delete(w.beats, h.name)
			w.notef("the heartbeat of %s is deleted", h.name)
		}
	case 13:
		h.broken = !h.broken
		w.notef("%s can ask and add nothing: %v", h.name, h.broken)
	case 14:
		h.behindUntil = w.now.Add(time.Duration(w.r.IntN(50)) * tick)
		if w.r.IntN(3) == 0 { // its watch has ended, and begins again after a while
			h.behindUntil = w.now.Add(time.Minute)
		}
		w.notef("the cache of %s is behind", h.name)
	case 15: // a person flushes the interface
		clear(h.kernel)
		w.notef("%s has no addresses any more", h.name)
	case 17:
		if w.wanted[a] == nil { // it is deleted before the hosts have seen more than that it is wanted
			w.leases++
			w.wanted[a], w.hidden[a] = &Wanted{Address: a, Lease: fmt.Sprint(w.leases)}, false
			for _, o := range w.hosts {
				if !o.cut {
					o.cache, o.behindUntil = w.read(), w.now.Add(4*time.Second)
				}
			}
			w.wanted[a].Ends = true
			w.notef("%s is wanted, and ends at once", a)
		}
	case 16:
		if o := w.wanted[a]; o != nil {
			o.Nodes = map[string]bool{fmt.Sprintf("n%d", 1+w.r.IntN(4)): true}
			w.notef("%s is to be on %v", a, o.Nodes)
		}
	}
}

// begin starts a host: it remembers nothing, and its kernel has what has not gone yet.
func (w *world) begin(h *simulated) {
	w.notef("%s begins", h.name)
	h.off, h.frozenUntil, h.news = false, time.Time{}, true
	h.life++
	h.Memory, h.cache = NewMemory(h.host, DefaultTiming()), cache{}
}

// answering are the hosts that answer for an address.
func (w *world) answering(a netip.Addr) []*simulated {
	var out []*simulated
	for _, h := range w.hosts {
		if until, on := h.kernel[a]; on && w.now.Before(until) {
			out = append(out, h)
		}
	}
	return out
}

// step lets what is under way go on, and each host look, in any order, and checks the promise after each.
func (w *world) step() {
	for _, a := range addresses {
		if w.r.IntN(10) == 0 {
			w.manage(a)
		}
	}
	for a, side := range w.foreign { // who has it says so again and again
		if w.now.Sub(start)%time.Second == 0 {
			for _, h := range w.answering(a) {
				if h.side == side && !h.off {
					h.Claim(w.now, a, somebody)
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
	w.flights = slices.DeleteFunc(w.flights, func(f *flight) bool { return f.told })
	for _, i := range w.r.Perm(len(w.hosts)) {
		h := w.hosts[i]
		if h.cut || h.unheard(w.now) {
			h.cutAt = w.now
		}
		for a, until := range h.kernel {
			if !w.now.Before(until) {
				delete(h.kernel, a)
			}
		}
		if !h.off && !w.now.Before(h.frozenUntil) {
			w.look(h)
		}
		w.check()
	}
}

// unheard reports whether a host that runs has had an answer of the API server, and has had none for D: writes may take longer.
func (h *simulated) unheard(now time.Time) bool {
	return !h.off && !now.Before(h.frozenUntil) && h.lapses > 0 && !h.Fresh(now)
}

// manage gives an address back of a lease that ends (P6): an empty lock, or none, says that nobody shows it.
func (w *world) manage(a netip.Addr) {
	o, l := w.wanted[a], w.locks[a]
	if o == nil || !o.Ends || l.Holder != "" || l.Left != "" {
		return
	}
	w.notef("%s is given back", a)
	for _, h := range w.answering(a) {
		if !w.excused[h.name] && w.wrong == "" {
			w.wrong = fmt.Sprintf("%s is given back, and %s answers for it", a, h.name)
		}
	}
	delete(w.wanted, a)
	delete(w.locks, a)
}

func (w *world) check() {
	for _, a := range addresses {
		all, both := w.answering(a), false
		for i, x := range all {
			if w.wanted[a] == nil && !w.excused[x.name] && w.wrong == "" && len(w.foreign) == 0 {
				w.wrong = fmt.Sprintf("%s answers for %s, which was given back", x.name, a)
			}
			for _, y := range all[:i] {
				both = both || x.side == y.side
				if x.side == y.side && !w.excused[x.name] && !w.excused[y.name] && w.wrong == "" {
					w.notef("WRONG")
					w.wrong = fmt.Sprintf("%s and %s both answer for %s", y.name, x.name, a)
				}
			}
		}
		switch since, is := w.both[a]; {
		case !both:
			delete(w.both, a)
		case !is:
			w.both[a] = w.now
		case w.now.Sub(since) > w.bound(all) && !w.paused(all) && w.wrong == "":
			w.wrong = fmt.Sprintf("two hosts answer for %s for %s", a, w.now.Sub(since))
		}
	}
	for name := range w.excused { // until it has found out
		h := w.hosts[slices.IndexFunc(w.hosts, func(h *simulated) bool { return h.name == name })]
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(w.answering(a), h) && w.locks[a].Holder != name }) {
			delete(w.excused, name)
		}
	}
}

// bound is how long two hosts may answer of which one is excused: until that has asked the wire, or has tried for so long.
func (w *world) bound(all []*simulated) time.Duration {
	d := DefaultTiming().Lifetime + 2*time.Second
	if slices.ContainsFunc(all, func(h *simulated) bool { return h.broken }) {
		d += DefaultTiming().Lifetime
	}
	return d
}

// paused reports whether a host is frozen or killed, which finds nothing out.
func (w *world) paused(all []*simulated) bool {
	return slices.ContainsFunc(all, func(h *simulated) bool { return h.off || w.now.Before(h.frozenUntil) })
}

// look is what a host does each tick: it reads its cache, decides and acts.
func (w *world) look(h *simulated) {
	if !h.cut && !w.now.Before(h.behindUntil) {
		h.cache = w.read()
	}
	if h.cache.locks != nil {
		h.Read(w.now, h.cache.wanted, h.cache.locks, h.cache.hosts)
	}
	h.OnInterface(slices.Collect(maps.Keys(h.kernel)))
	ops, again := h.Next(w.now)
	w.waits(h, ops, again)
	for _, op := range ops {
		if op.Kind != Beat && op.Kind != Refresh && op.Kind != Announce {
			w.busy++
		}
		switch op.Kind {
		case Add, Refresh, Remove:
			h.Done(w.now, &op, w.change(h, &op))
		case Announce: // who is on that side hears it
			for _, o := range w.answering(op.Address) {
				if o != h && o.side == h.side && !o.off {
					o.Claim(w.now, op.Address, h.host.Networks[0].MAC)
				}
			}
		case Probe:
			w.flights = append(w.flights, &flight{h: h, life: h.life, op: op, at: w.now.Add(probing), sent: w.now})
		default:
			w.send(h, op)
		}
	}
	h.Forget()
}

// waits checks when a host is to look again, having decided on what to do: later, unless there was something to do; and it has done
// nothing before the time that it had named, unless there was news or it waits for an answer. A host that names a time in the past
// looks all the time, and one that names none sleeps through its turn; here all look at each tick, so neither shows otherwise.
func (w *world) waits(h *simulated, ops []Op, again time.Time) {
	has := slices.SortedFunc(maps.Keys(h.kernel), netip.Addr.Compare)
	news := func() bool { return h.news || !slices.Equal(has, h.had) || !reflect.DeepEqual(h.cache, h.seen) }
	switch {
	case w.wrong != "":
	case len(ops) == 0 && !again.IsZero() && !again.After(w.now):
		w.wrong = fmt.Sprintf("%s has nothing to do, and was to look again %s ago", h.name, w.now.Sub(again))
	case len(ops) > 0 && w.now.Before(h.due) && !h.unanswered() && !news():
		w.wrong = fmt.Sprintf("%s was to look again %s later, and has to %s already", h.name, h.due.Sub(w.now), ops[0].Kind)
	}
	if h.due = again; again.IsZero() {
		h.due = w.now.Add(h.Timing.Lifetime)
	}
	h.news, h.had, h.seen = false, has, h.cache
}

// unanswered reports whether a write of a lock or a question to the wire is under way, which wakes the host.
func (h *simulated) unanswered() bool {
	return len(h.asking) > 0 || slices.ContainsFunc(slices.Collect(maps.Values(h.locks)), func(l *lock) bool { return l.writing })
}

// read is all that the API server has.
func (w *world) read() cache {
	c := cache{locks: maps.Clone(w.locks)}
	for _, a := range addresses {
		if o := w.wanted[a]; o != nil && !w.hidden[a] {
			c.wanted = append(c.wanted, *o)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.beats)) {
		c.hosts = append(c.hosts, w.beats[name])
	}
	return c
}

// change changes the interface of a host.
func (w *world) change(h *simulated, op *Op) Result {
	a := op.Address
	_, on := h.kernel[a]
	switch {
	case op.Kind == Remove:
		w.notef("%s: takes %s off", h.name, a)
		delete(h.kernel, a)
		return Result{}
	case op.Kind == Refresh && !on, op.Kind == Add && h.broken:
		return Result{Err: errTrouble}
	case op.Kind == Add:
		w.notef("%s: adds %s", h.name, a)
	}
	h.kernel[a] = w.now.Add(op.LifetimeOf(w.now, DefaultTiming()))
	return Result{}
}

// send sends a write, which may land late, be lost, or its answer.
func (w *world) send(h *simulated, op Op) {
	f := &flight{h: h, life: h.life, op: op, at: w.now, sent: w.now}
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

// land makes the next step of what is under way, and reports whether there is another one, which may be due.
func (w *world) land(f *flight) (more bool) {
	switch {
	case f.told:
		return false
	case f.op.Kind == Probe:
		if f.result.MAC = w.answers(f.h, f.op.Address); f.result.MAC == "" || f.result.MAC == somebody {
			w.excuse(f.h, f.op.Address)
		}
		if f.h.broken {
			f.result = Result{Err: errTrouble}
		}
		w.tell(f)
		return false
	}
	switch f.step {
	case 0:
		if !w.alike(f) {
			f.result.Err, f.step = ErrAlive, 9
			return true
		}
		if f.step = 1; w.slow() {
			f.at = f.at.Add(time.Duration(w.r.IntN(20)) * tick)
		}
	case 1:
		f.step = 9
		w.apply(f)
		if f.op.Kind == Take && !f.op.Ends && f.result.Err == nil {
			if f.step = 2; w.slow() {
				f.at = f.at.Add(time.Duration(w.r.IntN(20)) * tick)
			}
		}
	case 2:
		f.step = 9
		if o := w.wanted[f.op.Address]; o == nil || o.Ends || o.Lease != f.op.Lease {
			f.result.Err = ErrGone
		}
	default:
		if f.lost {
			f.result = Result{Err: errTrouble}
			f.at = f.sent.Add(timeout)
			if w.now.Before(f.at) {
				f.step = 10
				return false
			}
		}
		w.tell(f)
		return false
	}
	return true
}

func (w *world) slow() bool { return !w.calm && w.r.IntN(5) == 0 }

// tell tells a host what became of something, if it is the one that began it.
func (w *world) tell(f *flight) {
	if f.h.off || w.now.Before(f.h.frozenUntil) {
		f.at = w.now.Add(tick)
		f.told = f.h.off
		return
	}
	if f.told = true; f.life == f.h.life {
		f.h.Done(w.now, &f.op, f.result)
	}
}

// alike reports whether the heartbeat of who has a lock is as it was, as it is read just before the lock is taken.
func (w *world) alike(f *flight) bool {
	return f.op.Kind != Take || f.op.Dead == "" || w.beats[f.op.Dead].Version == f.op.DeadVersion
}

// apply is a write that arrives.
func (w *world) apply(f *flight) {
	a, h := f.op.Address, f.h
	if f.op.Kind == Beat {
		w.version++
		w.beats[h.name] = ReadHost{h.host, fmt.Sprint(w.version)}
		return
	}
	if w.locks[a].Version != f.op.Lock.Version {
		f.result.Err = ErrChanged
		if l := w.locks[a]; f.op.Kind == Take && f.op.Lock.Holder == h.name {
			f.result.Read = &l
		}
		return
	}
	w.version++
	f.result.Version = fmt.Sprint(w.version)
	l := ReadLock{Version: f.result.Version}
	switch f.op.Kind { //nolint:exhaustive // the others write no lock
	case Take:
		l.Holder = h.name
	case Leave:
		l.Left = h.name
	case Tell:
		l.Holder, l.Report = h.name, f.op.Report
	case Empty:
		for _, o := range w.answering(a) {
			if o.side == h.side && !w.excused[o.name] && w.wrong == "" {
				w.wrong = fmt.Sprintf("%s empties the lock of %s, and %s answers", h.name, a, o.name)
			}
		}
	}
	w.locks[a] = l
	w.notef("%s: %s of %s: %+v", h.name, f.op.Kind, a, l)
}

// answers is the MAC that answers to a host which asks for an address.
func (w *world) answers(h *simulated, a netip.Addr) string {
	for _, o := range w.answering(a) {
		if o != h && o.side == h.side {
			return o.host.Networks[0].MAC
		}
	}
	if side, is := w.foreign[a]; is && side == h.side {
		return somebody
	}
	return ""
}

// excuse excuses who has an address that another host takes over, or says to be nobody's: he is cut off from the wire of that
// one, and was from the API server, or he would know.
func (w *world) excuse(h *simulated, a netip.Addr) {
	for _, o := range w.answering(a) {
		if o != h && o.side != h.side && (o.cut || w.now.Sub(o.cutAt) < 20*time.Second) {
			w.excused[o.name] = true
		}
	}
}
