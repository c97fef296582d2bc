package tenant

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// A world is the API servers of a management cluster and of a workload cluster, managers, the allocator, a load
// balancer and a user.
//
// The API servers (test/faults), the load balancer and the allocator are fakes, so that every schedule can be run.
// test/e2e and test/integration check that the real ones behave in the same way.

const (
	// grace is how long an unused block stays.
	grace = time.Minute
	// clientTimeout is when a call without an answer fails; connectionLostAfter is when a lost connection is known to
	// be lost.
	clientTimeout, connectionLostAfter = 10 * time.Second, 30 * time.Second
	// pause is how long nothing is written before the user does the next action, or a fault ends.
	pause = 6 * time.Second
	// restPeriod is how long nothing is written before everything counts as at rest: longer than the backstops.
	restPeriod = guard.ServedResyncPeriod + 20*time.Second
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

// The classes of the steps of the allocator and of load balancers.
const (
	allocating = sim.OwnClass + iota
	placing
	taking
	counting
)

var orders = map[string]sim.Order{
	// Watches are faster than answers, and the managers than MetalLB, which places before it reads its pools.
	"eager": sim.PreferClasses(sim.WatchEvent, sim.Answer, sim.Reconcile, sim.Call, allocating, placing, taking, counting, sim.User),
	// Watches come last, and MetalLB counts before it acts.
	"lazy": sim.PreferClasses(sim.Answer, sim.Call, sim.Reconcile, allocating, taking, counting, placing, sim.WatchEvent, sim.User),
	// Answers come last, and MetalLB and the allocator are faster than the managers.
	"tardy": sim.PreferClasses(allocating, taking, placing, counting, sim.WatchEvent, sim.Reconcile, sim.Call, sim.User, sim.Answer),
}

// action is an action of a user: at rest, after a wait, or when a condition holds.
type action = sim.Action[*world]

// world is one run.
type world struct {
	scenario
	*sim.World[*world, *process]

	mgmt, work *faults.Server
	lb         fakeBalancer
	// down reports whether the workload cluster does not answer; ended reports whether its machines are gone.
	down, ended bool
	// shownChanges is how many changes watches have shown; stepsSinceShown is how many steps there were since the last
	// one.
	shownChanges, stepsSinceShown int
	// allocatorIdleVersion is the version at which the allocator had nothing to do.
	allocatorIdleVersion int64
	history              invariants.History
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
		w := &world{scenario: s, mgmt: faults.NewServer(), work: faults.NewServer(), lb: s.balancer()}
		w.World = sim.NewWorld(t, w, sim.Config[*process]{
			Servers: []*faults.Server{w.mgmt, w.work}, StartInPlaceOf: func(*process) { w.start() },
			Pause: pause, Rest: restPeriod, MaxIdleSteps: tooMany, IdleStepDecay: 40, NextTime: w.nextTime,
			ManagerSteps: w.connectionSteps, OtherSteps: w.otherSteps, SelectStep: w.selectStep, Intercept: w.loseCallsOfDownCluster,
			BeforeStep: w.boundCalls, OnWatchEvent: func(*process, faults.Change) { w.shownChanges++ }, OnChange: func(bool) { w.check() },
		})
		w.Order, w.Script = orders["eager"], s.script
		s.build(w)
		setup(w)
		w.start()
		w.Play(w.examine)
		out = result{w.Writes, w.Reads(), w.outcome()}
	})
	return out
}

// start starts another manager.
func (w *world) start() {
	p := newProcess(w.T.Context(), w.NewProcess(), w.mgmt, w.work)
	p.relist = func(kind faults.Kind) { w.relist(p, kind, 0) }
	for _, kind := range mgmtKinds {
		w.relist(p, kind, 0)
	}
	p.MuteWatches(faults.Allocations)
	p.MuteWatches(workKinds...)
	w.AddManager(p)
}

// relist breaks a watch: it shows nothing, until a list that is taken now arrives.
func (w *world) relist(p *process, kind faults.Kind, delay time.Duration) {
	w.Relist(p, kind, 3, delay)
}

// connect makes a manager reach the workload cluster, with everything in it.
func (w *world) connect(p *process) {
	p.connected, p.connectFailures, p.live = true, 0, w.work.NewClient(p.Name).LiveClient()
	w.relist(p, faults.Services, 0)
	p.queues[1].Wake()
}

// outage makes the workload cluster not answer any more; up ends that. Both are noticed some time later.
func (w *world) outage() {
	w.down = true
	w.DelayStep(0, connectionLostAfter, func() {
		for _, p := range w.Managers {
			p.connected, p.connectFailures = p.connected && !w.down, 5
			if w.down {
				p.MuteWatches(workKinds...)
			}
			p.queues[1].Wake()
		}
	})
}

func (w *world) up() { w.down = false }
