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

// A world is the API servers of a management cluster and of a workload cluster, managers, the allocator, a load
// balancer and a user, driven step by step in virtual time: whenever every goroutine waits, the order determines which
// of the possible steps is next. A step is atomic: a call is executed, an answer arrives, a watch shows a change, a
// reconcile begins, the load balancer or the allocator writes, the user does something.
//
// The API servers (test/faults), the load balancer and the allocator are fakes, so that every schedule can be run.
// test/e2e and test/integration check that the real ones behave in the same way.

const (
	// grace is how long an unused block stays.
	grace = time.Minute
	// latency is how long a call takes.
	latency = 5 * time.Millisecond
	// clientTimeout is when a call without an answer fails; connectionLostAfter is when a lost connection is known to
	// be lost.
	clientTimeout, connectionLostAfter = 10 * time.Second, 30 * time.Second
	// pause is how long nothing is written before the user does the next action, or a fault ends.
	pause = 6 * time.Second
	// restPeriod is how long nothing is written before everything counts as at rest: longer than the backstops.
	restPeriod = guard.ServedResyncPeriod + 20*time.Second
	// tooLong is when a world that does not come to rest is aborted.
	tooLong = 3 * time.Hour
	// tooMany is the number of steps in which nothing changes, and nothing is shown, at which the managers count as
	// spinning.
	tooMany = 400
	// tooBusy is a number of calls that no scenario may need.
	tooBusy = 5000
)

// mgmtKinds and workKinds are the watched kinds, except blocks.
var (
	mgmtKinds   = []faults.Kind{faults.Clusters, faults.ProviderConfigs, faults.Pools, faults.Namespaces}
	objectKinds = []faults.Kind{faults.MetalLBPools, faults.L2Advertisements, faults.CiliumPools}
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
	// Watches are faster than answers, and the managers than MetalLB, which places before it reads its pools.
	"eager": schedule.PreferClasses(watchEvent, answer, reconciling, call, allocating, placing, taking, counting, user),
	// Watches come last, and MetalLB counts before it acts.
	"lazy": schedule.PreferClasses(answer, call, reconciling, allocating, taking, counting, placing, watchEvent, user),
	// Answers come last, and MetalLB and the allocator are faster than the managers.
	"tardy": schedule.PreferClasses(allocating, taking, placing, counting, watchEvent, reconciling, call, user, answer),
}

// request is a call, and the server that it is sent to.
type request struct {
	*faults.Request
	at *faults.Server
}

// response is an answer in flight.
type response struct {
	call  request
	value any
	err   error
}

// world is one run.
type world struct {
	scenario // its script is what is still to do
	schedule.Run

	t          *testing.T
	mgmt, work *faults.Server
	managers   []*process
	lb         fakeBalancer
	order      order
	// disturb decides what happens to a call; it returns false if nothing special does.
	disturb func(*world, request) bool
	// hurry is the write before which the script begins, 0 if it waits for rest; anytime reports whether it waits for
	// nothing.
	hurry   int
	anytime bool
	// down reports whether the workload cluster does not answer; ended reports whether its machines are gone.
	down, ended bool

	answers []response
	reads   int
	// shownChanges is how many changes watches have shown; stepsSinceShown is how many steps there were since the last
	// one.
	shownChanges, stepsSinceShown int
	// lastChange is when a server changed, or a fault happened; stepsSinceChange counts steps without a change.
	lastChange       time.Time
	stepsSinceChange int
	// version is that of both servers together when they were checked; allocatorIdleVersion is the version at which the
	// allocator had nothing to do.
	version, allocatorIdleVersion int64
	history                       invariants.History
}

// result is the result of a run.
type result struct {
	writes, reads int
	end           string
}

// run runs a scenario to its end.
func (s scenario) run(t *testing.T, setup func(*world)) (out result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, scenario: s, mgmt: faults.NewServer(), work: faults.NewServer(), order: orders["eager"], lb: s.balancer()}
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
	for _, l := range p.queues {
		l.onPanic = func(text string) { w.Failf("%s", text) }
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
	w.Tracef("manager %s starts", p.name)
}

// relist breaks a watch: it shows nothing, until a list that is taken now arrives.
func (w *world) relist(p *process, k watched, delay time.Duration) {
	listed, seen := k.at.List(k.kind), len(k.at.ChangesSince(k.kind, 0))
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
	w.DelayStep(3, delay, arrive)
}

// connect makes a manager reach the workload cluster, with everything in it.
func (w *world) connect(p *process) {
	p.connected, p.connectFailures, p.live = true, 0, w.work.NewClient(p.name).LiveClient()
	w.relist(p, watched{w.work, faults.Services}, 0)
	p.queues[1].queue.Wake()
}

// outage makes the workload cluster not answer any more; up ends that. Both are noticed some time later.
func (w *world) outage() {
	w.down = true
	w.DelayStep(0, connectionLostAfter, func() {
		for _, p := range w.managers {
			p.connected, p.connectFailures = p.connected && !w.down, 5
			for _, kind := range workKinds {
				p.mute[watched{w.work, kind}] = p.mute[watched{w.work, kind}] || w.down
			}
			p.queues[1].queue.Wake()
		}
	})
}

func (w *world) up() { w.down = false }

func (w *world) manager(name string) *process {
	return w.managers[slices.IndexFunc(w.managers, func(p *process) bool { return p.name == name })]
}

// crash kills a manager between two instructions, and starts another one.
func (w *world) crash(p *process) {
	w.Tracef("manager %s is killed", p.name)
	p.dead = true
	p.kill()
	w.start()
}
