package hostlb

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// A world is hosts on a wire that may be parted, an API server that may be out of reach of each, and addresses that come and
// go, in virtual time: a tick is a tenth of a second. After each step at most one host answers for an address on a wire, but
// for the one exception that docs/design.md has.
const tick = 100 * time.Millisecond

// probing is how long it takes to ask the wire: three times, 200 ms apart.
const probing = 600 * time.Millisecond

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type simulated struct {
	Host

	// off: it does not run; its kernel keeps addresses for their lifetime. frozen until a time: the same, and it remembers.
	off         bool
	frozenUntil time.Time
	cut         bool // from the API server
	side        int  // of the wire
	stopping    bool
	// kernel has the addresses, each with when it goes.
	kernel map[netip.Addr]time.Time

	// What the process remembers.
	locks    map[netip.Addr]Lock
	hosts    []Host
	heard    map[string]time.Time
	beat     map[string]int
	free     map[netip.Addr]time.Time
	ours     map[netip.Addr]time.Time
	wire     map[netip.Addr]Asked
	former   map[netip.Addr]string
	probes   map[netip.Addr]time.Time
	claimed  map[netip.Addr]bool
	wanted   []Wanted
	lastBeat time.Time
}

func (s *simulated) forget() {
	s.locks, s.heard, s.beat, s.free = nil, map[string]time.Time{}, map[string]int{}, map[netip.Addr]time.Time{}
	s.ours, s.wire, s.former, s.probes = map[netip.Addr]time.Time{}, map[netip.Addr]Asked{}, map[netip.Addr]string{}, map[netip.Addr]time.Time{}
	s.wanted, s.hosts, s.lastBeat, s.claimed = nil, nil, time.Time{}, map[netip.Addr]bool{}
}

type world struct {
	r     *rand.Rand
	now   time.Time
	hosts []*simulated
	// What the API server has.
	locks   map[netip.Addr]Lock
	beats   map[string]int
	wanted  map[netip.Addr]*Wanted
	version int
	// foreign answers for an address on a side of the wire.
	foreign map[netip.Addr]int
	// excused are hosts that were cut off from the API server, and from the wire of one that took an address over from them.
	excused map[string]bool
	// both is since when two answer on one wire of which one is excused.
	both  map[netip.Addr]time.Time
	texts []string
	wrong string
}

func (w *world) notef(format string, args ...any) {
	w.texts = append(w.texts, fmt.Sprintf("%7.1f %s", w.now.Sub(start).Seconds(), fmt.Sprintf(format, args...)))
}

var addresses = []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.11")}

func newWorld(seed uint64, n int) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 3)), now: start, locks: map[netip.Addr]Lock{}, beats: map[string]int{},
		wanted: map[netip.Addr]*Wanted{}, foreign: map[netip.Addr]int{}, excused: map[string]bool{}, both: map[netip.Addr]time.Time{},
	}
	for i := range n {
		h := &simulated{Host: Host{
			Name: fmt.Sprintf("h%d", i+1), Networks: []Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), MAC: fmt.Sprintf("02::%d", i+1)}}, Node: fmt.Sprintf("n%d", i+1),
		}, kernel: map[netip.Addr]time.Time{}}
		h.forget()
		w.hosts = append(w.hosts, h)
	}
	return w
}

// TestOneAnswers runs random stories: one host answers for an address, whatever is cut, frozen or killed; and when all is well
// again, each address is on one host.
func TestOneAnswers(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 300
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
	// All is well again.
	w.notef("all is well")
	for _, h := range w.hosts {
		if h.off || h.stopping {
			w.begin(h)
		}
		h.cut, h.side, h.frozenUntil = false, 0, time.Time{}
	}
	clear(w.foreign)
	for until := w.now.Add(time.Minute); w.now.Before(until) && w.wrong == ""; {
		w.now = w.now.Add(tick)
		w.step()
	}
	for _, a := range addresses {
		want := 0
		if o := w.wanted[a]; o != nil && !o.Ends {
			want = 1
		}
		if got := len(w.answering(a)); got != want && w.wrong == "" {
			w.wrong = fmt.Sprintf("%s is on %d hosts in the end, and is to be on %d", a, got, want)
		}
		if o := w.wanted[a]; o != nil && o.Ends && w.locks[a].Holder != "" && w.wrong == "" {
			w.wrong = fmt.Sprintf("the lock of %s is not given back: %s", a, w.locks[a].Holder)
		}
	}
}

// disturb does something to somebody.
func (w *world) disturb() {
	h := w.hosts[w.r.IntN(len(w.hosts))]
	a := addresses[w.r.IntN(len(addresses))]
	switch w.r.IntN(13) {
	case 12:
		if h.off {
			delete(w.beats, h.Name)
			w.notef("the heartbeat of %s is deleted", h.Name)
		}
	case 0:
		h.cut = !h.cut
		w.notef("%s cut off from the API server: %v", h.Name, h.cut)
	case 1:
		h.side = w.r.IntN(2)
		w.notef("%s on side %d of the wire", h.Name, h.side)
	case 2:
		h.frozenUntil = w.now.Add(time.Duration(1+w.r.IntN(30)) * time.Second)
		w.notef("%s frozen until %.1f", h.Name, h.frozenUntil.Sub(start).Seconds())
	case 3:
		if h.off {
			w.begin(h)
		} else {
			h.off = true
			w.notef("%s killed", h.Name)
		}
	case 4:
		h.stopping = !h.stopping
		w.notef("%s stops: %v", h.Name, h.stopping)
	case 5, 6, 7:
		if w.wanted[a] == nil {
			w.wanted[a] = &Wanted{Address: a}
			w.notef("%s is wanted", a)
		}
	case 8:
		if w.wanted[a] != nil {
			w.wanted[a].Ends = true
			w.notef("%s ends", a)
		}
	case 9:
		if o := w.wanted[a]; o != nil && o.Ends && w.locks[a].Holder == "" {
			w.free(a)
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
			o.cut, o.side = false, 0
		}
		w.notef("no partition")
	}
}

// free gives an address back: an empty lock of an address that ends says that nobody shows it.
func (w *world) free(a netip.Addr) {
	w.notef("%s is given back", a)
	for _, h := range w.answering(a) {
		if !w.excused[h.Name] {
			w.wrong = fmt.Sprintf("%s is given back, and %s answers for it", a, h.Name)
		}
	}
	delete(w.wanted, a)
	delete(w.locks, a)
}

// begin starts a host: it remembers nothing, and its kernel has what has not gone yet.
func (w *world) begin(h *simulated) {
	w.notef("%s begins", h.Name)
	h.off, h.stopping, h.frozenUntil = false, false, time.Time{}
	h.forget()
	for a := range h.kernel {
		h.ours[a] = time.Time{} // with our mark, nobody knows since when
	}
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

// step lets each host look, in any order, and checks the promise after each.
func (w *world) step() {
	for _, i := range w.r.Perm(len(w.hosts)) {
		h := w.hosts[i]
		for a, until := range h.kernel {
			if !w.now.Before(until) {
				delete(h.kernel, a)
				delete(h.ours, a)
			}
		}
		if !h.off && !w.now.Before(h.frozenUntil) {
			w.look(h)
		}
		w.check()
	}
}

func (w *world) check() {
	for _, a := range addresses {
		all, both := w.answering(a), false
		for i, x := range all {
			for _, y := range all[:i] {
				both = both || x.side == y.side
				if x.side == y.side && !w.excused[x.Name] && !w.excused[y.Name] && w.wrong == "" {
					w.notef("WRONG")
					w.wrong = fmt.Sprintf("%s and %s both answer for %s", y.Name, x.Name, a)
				}
			}
		}
		switch since, is := w.both[a]; {
		case !both:
			delete(w.both, a)
		case !is:
			w.both[a] = w.now
		case w.now.Sub(since) > DefaultTiming().Lifetime+2*time.Second && !w.paused(all) && w.wrong == "":
			w.wrong = fmt.Sprintf("two hosts answer for %s for %s", a, w.now.Sub(since))
		}
	}
	for name := range w.excused { // until it has found out
		h := w.hosts[slices.IndexFunc(w.hosts, func(h *simulated) bool { return h.Name == name })]
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(w.answering(a), h) && w.locks[a].Holder != name }) {
			delete(w.excused, name)
		}
	}
}

// paused reports whether a host is frozen, killed or stopped, which finds nothing out.
func (w *world) paused(all []*simulated) bool {
	return slices.ContainsFunc(all, func(h *simulated) bool { return h.off || w.now.Before(h.frozenUntil) })
}

// look is what a host does each tick: it reads, decides and acts.
func (w *world) look(h *simulated) {
	if !h.cut {
		w.read(h)
	}
	for a, at := range h.probes {
		if word, mac := w.answers(h, a); word != Silent || !w.now.Before(at.Add(probing)) {
			delete(h.probes, a)
			h.wire[a] = Asked{word, w.now, mac}
		}
	}
	v := &View{
		Wanted: h.wanted, Fresh: !h.cut, Locks: h.locks, Hosts: h.hosts, Heard: h.heard, Free: h.free, Ours: h.ours, Wire: h.wire, Claimed: h.claimed, Stopping: h.stopping,
	}
	w.act(h, Decide(w.now, h.Name, v, DefaultTiming()))
}

// answers is what the wire says to a host that asks for an address.
func (w *world) answers(h *simulated, a netip.Addr) (Word, string) {
	for _, o := range w.answering(a) {
		if o == h || o.side != h.side {
			continue
		}
		if o.Name == h.former[a] {
			return Former, o.Networks[0].MAC
		}
		return Foreign, o.Networks[0].MAC
	}
	if side, is := w.foreign[a]; is && side == h.side {
		return Foreign, "somebody"
	}
	return Silent, ""
}

// read reads the API server, and writes the heartbeat.
func (w *world) read(h *simulated) {
	if !h.stopping && !w.now.Before(h.lastBeat.Add(DefaultTiming().refresh())) {
		w.beats[h.Name]++
		h.lastBeat = w.now
	}
	h.hosts, h.wanted = nil, nil
	for _, o := range w.hosts {
		if w.beats[o.Name] == 0 {
			continue
		}
		h.hosts = append(h.hosts, o.Host)
		if h.beat[o.Name] != w.beats[o.Name] {
			h.beat[o.Name], h.heard[o.Name] = w.beats[o.Name], w.now
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(w.wanted), netip.Addr.Compare) {
		h.wanted = append(h.wanted, *w.wanted[a])
	}
	h.locks = maps.Clone(w.locks)
	for _, a := range addresses {
		holder := h.locks[a].Holder
		if _, known := h.heard[holder]; !known && holder != "" {
			h.heard[holder] = w.now // it has no heartbeat
		}
		heard, known := h.heard[holder]
		if holder == "" || (known && w.now.Sub(heard) >= DefaultTiming().patience()) {
			if _, seen := h.free[a]; !seen {
				h.free[a] = w.now
			}
		} else {
			delete(h.free, a)
		}
		if holder != h.Name {
			delete(h.wire, a) // it is asked for anew once the lock is ours
			delete(h.probes, a)
		}
	}
}

// act does what a plan says.
func (w *world) act(h *simulated, p Plan) {
	write := func(a netip.Addr, holder string) bool {
		if h.cut || w.locks[a].Version != h.locks[a].Version {
			return false
		}
		w.version++
		w.locks[a] = Lock{fmt.Sprint(w.version), holder}
		h.locks[a] = w.locks[a]
		w.notef("%s: lock of %s is %q", h.Name, a, holder)
		return w.r.IntN(8) > 0 // the answer may be lost: it is read then
	}
	for _, a := range p.Lock {
		former := h.locks[a].Holder
		if write(a, h.Name); true {
			h.former[a] = former
		}
	}
	for _, a := range p.Probe {
		if _, asks := h.probes[a]; !asks {
			h.probes[a] = w.now
		}
	}
	for _, a := range p.Remove {
		w.notef("%s: takes %s off", h.Name, a)
		delete(h.kernel, a)
		delete(h.ours, a)
		delete(h.claimed, a)
	}
	for _, a := range p.Add {
		w.notef("%s: adds %s", h.Name, a)
		w.excuse(h, a)
		for _, o := range w.answering(a) { // it is announced: who is on that side hears it
			if o != h && o.side == h.side {
				o.claimed[a] = true
			}
		}
		h.kernel[a], h.ours[a] = w.now.Add(DefaultTiming().Lifetime), w.now
	}
	for _, a := range p.Refresh {
		if _, on := h.kernel[a]; on {
			h.kernel[a], h.ours[a] = w.now.Add(DefaultTiming().Lifetime), w.now
		}
	}
	for _, a := range p.Empty {
		for _, o := range w.answering(a) {
			if o != h && o.side == h.side && w.wrong == "" {
				w.wrong = fmt.Sprintf("%s empties the lock of %s, and %s answers", h.Name, a, o.Name)
			}
		}
		w.excuse(h, a)
		write(a, "")
	}
}

// excuse excuses who has an address that another host takes over, or says to be nobody's: he is cut off from the wire of that
// one, and from the API server, or he would know.
func (w *world) excuse(h *simulated, a netip.Addr) {
	for _, o := range w.answering(a) {
		if o != h && o.side != h.side && (o.cut || w.now.Before(o.frozenUntil) || o.off) {
			w.excused[o.Name] = true
		}
	}
}
