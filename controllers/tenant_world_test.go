package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
)

// A world is the API servers of a management cluster and of a workload cluster, managers, the allocator, MetalLB and
// a user, driven step by step in virtual time: whenever every goroutine waits, the order says which of the
// possible steps is next. A step is atomic: a call happens, an answer arrives, a watch shows a change, a reconcile
// begins, MetalLB or the allocator writes, the user does something.
//
// The API servers are fakes (internal/faults), as are MetalLB and the allocator: here every schedule counts. That
// the real ones are like that is what test/e2e and test/integration find out.

const (
	// grace is how long an unused block stays.
	grace = time.Minute
	// latency is how long a call takes.
	latency = 5 * time.Millisecond
	// clientTimeout is when a call without an answer fails, probed when a lost connection is known to be lost.
	clientTimeout, probed = 10 * time.Second, 30 * time.Second
	// pause is how long nothing is written before the user does the next thing, or a fault ends.
	pause = 6 * time.Second
	// stillness is how long nothing is written before all is taken to be at rest: longer than the backstops.
	stillness = servedBackstop + 20*time.Second
	// tooLong is when a world that does not come to rest is given up.
	tooLong = 3 * time.Hour
	// tooMany steps are too many in which nothing changes, and nobody is shown anything.
	tooMany = 400
	// tooBusy calls are too many for any scenario.
	tooBusy = 5000
)

// mgmtKinds and workKinds are those that are watched, blocks apart.
var (
	mgmtKinds    = []faults.Kind{faults.Clusters, faults.Configs, faults.Pools, faults.Namespaces}
	metalLBKinds = []faults.Kind{faults.MetalLBPools, faults.Advertisements}
	workKinds    = append([]faults.Kind{faults.Services}, metalLBKinds...)
)

// class is a kind of step.
type class int

const (
	happening class = iota
	answer
	kick
	call
	user
	allocating
	placing
	taking
	counting
)

// step is something that can happen next.
type step struct {
	class class
	text  string
	do    func()
}

// order says which of the possible steps is next. Steps come in a fixed order.
type order func([]step) step

// first prefers some classes to others.
func first(classes ...class) order {
	return func(steps []step) step {
		return slices.MinFunc(steps, func(a, b step) int {
			return cmp.Compare(slices.Index(classes, a.class), slices.Index(classes, b.class))
		})
	}
}

// shuffled takes any step.
func shuffled(r *rand.Rand) order {
	return func(steps []step) step { return steps[r.IntN(len(steps))] }
}

var orders = map[string]order{
	// Watches are faster than answers, and the managers than MetalLB, which places before it looks at its pools.
	"eager": first(happening, answer, kick, call, allocating, placing, taking, counting, user),
	// Watches come last, and MetalLB counts before it acts.
	"lazy": first(answer, call, kick, allocating, taking, counting, placing, happening, user),
	// Answers come last, and MetalLB and the allocator are faster than the managers.
	"tardy": first(allocating, taking, placing, counting, happening, kick, call, user, answer),
}

// asked is a call, and the server that it asks.
type asked struct {
	*faults.Request
	at *faults.Server
}

// told is an answer that is on its way.
type told struct {
	call  asked
	value any
	err   error
}

// deferred happens when so many more writes have happened, or at its time.
type deferred struct {
	writes int
	at     time.Time
	do     func()
}

// world is one run.
type world struct {
	scenario // of which script is what is still to be done

	t          *testing.T
	mgmt, work *faults.Server
	managers   []*process
	metal      announcer
	order      order
	// disturb decides what becomes of a call; false: nothing special.
	disturb func(*world, asked) bool
	// hurry is the write before which the script begins; 0: it waits for rest. anytime: it waits for nothing.
	hurry   int
	anytime bool
	// down: the workload cluster does not answer. ended: its machines are gone.
	down, ended bool

	answers       []told
	later         []deferred
	writes, reads int
	// shown is how many changes watches have shown, unshown how many steps there were since the last.
	shown, unshown int
	// lastNews is when a server changed, or something went wrong; vainly counts steps that lead nowhere.
	lastNews time.Time
	vainly   int
	// version is that of both servers together when they were checked, content when the allocator had nothing to do.
	version, content int64
	history          invariants.History
	bad              []string
	trace            []string
}

var errKilled = errors.New("killed")

// result is what a run came to.
type result struct {
	writes, reads int
	end           string
}

// run runs a scenario to its end.
func (s scenario) run(t *testing.T, setup func(*world)) (out result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, scenario: s, mgmt: faults.New(), work: faults.New(), order: orders["eager"]}
		s.build(w)
		setup(w)
		w.start()
		w.toRest()
		if len(w.bad) == 0 {
			w.examine()
		}
		out = result{w.writes, w.reads, w.outcome()}
		w.end()
		if os.Getenv("TRACE") != "" {
			t.Log("\n" + strings.Join(w.trace, "\n"))
		}
		if len(w.bad) > 0 {
			t.Errorf("%s\n--- what happened\n%s", strings.Join(w.bad, "\n"), strings.Join(w.trace, "\n"))
		}
	})
	return out
}

func (w *world) notef(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%8.3fs %s", time.Since(epoch).Seconds(), fmt.Sprintf(format, args...)))
}

// epoch is when synctest's time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) wrongf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(w.bad, text) {
		w.bad = append(w.bad, text)
		w.notef("WRONG: %s", text)
	}
}

// start starts another manager.
func (w *world) start() {
	p := newProcess(w.t.Context(), string(rune('a'+len(w.managers))), w.mgmt, w.work)
	for _, l := range p.lines {
		l.broken = func(text string) { w.wrongf("%s", text) }
	}
	p.relist = func(k watched) { w.relist(p, k, 0) }
	for _, kind := range mgmtKinds {
		w.relist(p, watched{w.mgmt, kind}, 0)
	}
	p.mute[watched{w.mgmt, faults.Allocations}] = true
	for _, kind := range workKinds {
		p.mute[watched{w.work, kind}] = true
	}
	w.managers = append(w.managers, p)
	w.notef("manager %s starts", p.name)
}

// relist breaks a watch: it shows nothing, until a list that is taken now arrives.
func (w *world) relist(p *process, k watched, delay time.Duration) {
	listed, seen := k.at.List(k.kind), len(k.at.Changes(k.kind, 0))
	arrive := func() {
		p.seen[k], p.mute[k] = seen, false
		if !p.dead {
			p.replace(k, listed)
		}
	}
	if delay == 0 {
		arrive()
		return
	}
	p.mute[k] = true
	w.after(3, delay, arrive)
}

// connect has a manager reach the workload cluster, with all that it has.
func (w *world) connect(p *process) {
	p.connected, p.failed, p.live = true, 0, w.work.Client(p.name).Direct()
	w.relist(p, watched{w.work, faults.Services}, 0)
	p.lines[1].queued = true
}

// outage has the workload cluster not answer any more; up ends that. Both are noticed some time later.
func (w *world) outage() {
	w.down = true
	w.after(0, probed, func() {
		for _, p := range w.managers {
			p.connected, p.failed = p.connected && !w.down, 5
			for _, kind := range workKinds {
				p.mute[watched{w.work, kind}] = p.mute[watched{w.work, kind}] || w.down
			}
			p.lines[1].queued = true
		}
	})
}

func (w *world) up() { w.down = false }

// after does something when so many more writes have happened (0: whatever happens), or after a time.
func (w *world) after(writes int, d time.Duration, do func()) {
	if writes > 0 {
		writes += w.writes
	}
	w.later = append(w.later, deferred{writes, time.Now().Add(d), do})
}

func (w *world) manager(name string) *process {
	return w.managers[slices.IndexFunc(w.managers, func(p *process) bool { return p.name == name })]
}

// crash kills a manager between two instructions, and starts another.
func (w *world) crash(p *process) {
	w.notef("manager %s is killed", p.name)
	p.dead = true
	p.kill()
	w.start()
}
