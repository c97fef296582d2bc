package tenant

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// A world is the API servers of a management cluster and of a workload cluster, managers, the allocator, a load balancer and
// a user, driven step by step in virtual time: whenever every goroutine waits, the order says which of the
// possible steps is next. A step is atomic: a call happens, an answer arrives, a watch shows a change, a reconcile
// begins, the load balancer or the allocator writes, the user does something.
//
// The API servers are fakes (test/faults), as are the load balancer and the allocator: here every schedule counts. That
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
	stillness = guard.ServedBackstop + 20*time.Second
	// tooLong is when a world that does not come to rest is given up.
	tooLong = 3 * time.Hour
	// tooMany steps are too many in which nothing changes, and nobody is shown anything.
	tooMany = 400
	// tooBusy calls are too many for any scenario.
	tooBusy = 5000
)

// mgmtKinds and workKinds are those that are watched, blocks apart.
var (
	mgmtKinds   = []faults.Kind{faults.Clusters, faults.Configs, faults.Pools, faults.Namespaces}
	objectKinds = []faults.Kind{faults.MetalLBPools, faults.Advertisements, faults.CiliumPools}
	workKinds   = append([]faults.Kind{faults.Services}, objectKinds...)
)

// class is a kind of step.
type class int

const (
	watchEvent class = iota
	answer
	reconciling
	call
	user
	allocating
	placing
	taking
	counting
)

type (
	step  = schedule.Step[class]
	order = schedule.Order[class]
)

var orders = map[string]order{
	// Watches are faster than answers, and the managers than MetalLB, which places before it looks at its pools.
	"eager": schedule.First(watchEvent, answer, reconciling, call, allocating, placing, taking, counting, user),
	// Watches come last, and MetalLB counts before it acts.
	"lazy": schedule.First(answer, call, reconciling, allocating, taking, counting, placing, watchEvent, user),
	// Answers come last, and MetalLB and the allocator are faster than the managers.
	"tardy": schedule.First(allocating, taking, placing, counting, watchEvent, reconciling, call, user, answer),
}

// request is a call, and the server that it asks.
type request struct {
	*faults.Request
	at *faults.Server
}

// response is an answer that is on its way.
type response struct {
	call  request
	value any
	err   error
}

// world is one run.
type world struct {
	scenario // of which script is what is still to be done
	schedule.Run

	t          *testing.T
	mgmt, work *faults.Server
	managers   []*process
	lb         standIn
	order      order
	// disturb decides what becomes of a call; false: nothing special.
	disturb func(*world, request) bool
	// hurry is the write before which the script begins; 0: it waits for rest. anytime: it waits for nothing.
	hurry   int
	anytime bool
	// down: the workload cluster does not answer. ended: its machines are gone.
	down, ended bool

	answers []response
	reads   int
	// shown is how many changes watches have shown, unshown how many steps there were since the last.
	shown, unshown int
	// lastNews is when a server changed, or something went wrong; stalled counts steps that lead nowhere.
	lastNews time.Time
	stalled  int
	// version is that of both servers together when they were checked, content when the allocator had nothing to do.
	version, content int64
	history          invariants.History
}

// result is what a run came to.
type result struct {
	writes, reads int
	end           string
}

// run runs a scenario to its end.
func (s scenario) run(t *testing.T, setup func(*world)) (out result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, scenario: s, mgmt: faults.New(), work: faults.New(), order: orders["eager"], lb: s.balancer()}
		s.build(w)
		setup(w)
		w.start()
		w.toRest()
		if !w.Failed() {
			w.examine()
		}
		out = result{w.Writes, w.reads, w.outcome()}
		w.end()
		w.Report(t, w.mgmt, w.work)
	})
	return out
}

// start starts another manager.
func (w *world) start() {
	p := newProcess(w.t.Context(), string(rune('a'+len(w.managers))), w.mgmt, w.work)
	for _, l := range p.lines {
		l.broken = func(text string) { w.Wrongf("%s", text) }
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
	w.Notef("manager %s starts", p.name)
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
	w.After(3, delay, arrive)
}

// connect has a manager reach the workload cluster, with all that it has.
func (w *world) connect(p *process) {
	p.connected, p.failed, p.live = true, 0, w.work.Client(p.name).Direct()
	w.relist(p, watched{w.work, faults.Services}, 0)
	p.lines[1].queue.Wake()
}

// outage has the workload cluster not answer any more; up ends that. Both are noticed some time later.
func (w *world) outage() {
	w.down = true
	w.After(0, probed, func() {
		for _, p := range w.managers {
			p.connected, p.failed = p.connected && !w.down, 5
			for _, kind := range workKinds {
				p.mute[watched{w.work, kind}] = p.mute[watched{w.work, kind}] || w.down
			}
			p.lines[1].queue.Wake()
		}
	})
}

func (w *world) up() { w.down = false }

func (w *world) manager(name string) *process {
	return w.managers[slices.IndexFunc(w.managers, func(p *process) bool { return p.name == name })]
}

// crash kills a manager between two instructions, and starts another.
func (w *world) crash(p *process) {
	w.Notef("manager %s is killed", p.name)
	p.dead = true
	p.kill()
	w.start()
}
