package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// obstacle is an obstacle. The activity of managers is counted while it lasts, and not only when it is gone.
type obstacle struct {
	sim.Obstacle
	// webhook changes what is written; nil means that nothing does.
	webhook func(client.Object)
	// undone is the kind of the objects that report that the webhook changes what managers write for them.
	undone faults.Kind
	// hangs reports whether lookups of Machines hang.
	hangs bool
}

// newRefusal returns an obstacle that refuses the writes that match.
func newRefusal(name string, err error, matches func(*faults.Request) bool) obstacle {
	return obstacle{Obstacle: sim.Obstacle{Name: name, Err: sim.ErrAlways(err), Matches: func(r *faults.Request) bool { return r.IsWrite() && matches(r) }}}
}

// newWebhook returns an obstacle that changes what is written.
func newWebhook(name string, undone faults.Kind, webhook func(client.Object)) obstacle {
	return obstacle{Obstacle: sim.Obstacle{Name: name}, webhook: webhook, undone: undone}
}

// obstacleDuration is how long an obstacle lasts in a schedule: the backoffs have grown by then.
const obstacleDuration = 3 * time.Minute

var (
	claimants = []faults.Kind{faults.Claims, faults.Allocations, faults.Leases}
	poolKinds = []faults.Kind{faults.Pools, faults.GlobalPools}

	errForbidden     = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))
	errWebhookFailed = apierrors.NewInternalError(errors.New("failed calling webhook"))
)

func isOf(r *faults.Request, kinds ...faults.Kind) bool { return slices.Contains(kinds, r.Ref.Kind) }

var obstacles = []obstacle{
	newRefusal("claims-refused", errForbidden, func(r *faults.Request) bool { return isOf(r, claimants...) && !r.Status }),
	newRefusal("status-refused", errForbidden, func(r *faults.Request) bool { return isOf(r, claimants...) && r.Status }),
	newRefusal("addresses-refused", errForbidden, func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb == "create" }),
	newRefusal("addresses-fail", errWebhookFailed, func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb == "create" }),
	newRefusal("addresses-kept", errForbidden, func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb != "create" }),
	newRefusal("pools-refused", errForbidden, func(r *faults.Request) bool { return isOf(r, poolKinds...) && r.Status }),
	newRefusal("pools-kept", errForbidden, func(r *faults.Request) bool { return isOf(r, poolKinds...) && !r.Status }),
	newRefusal("no-rights", errForbidden, func(*faults.Request) bool { return true }),
	newWebhook("addresses-changed", faults.Claims, strips(faults.Addresses)),
	newWebhook("claims-changed", faults.Claims, strips(claimants...)),
	newWebhook("pools-changed", faults.Pools, strips(poolKinds...)),
}

// strips returns a webhook that removes our finalizers and records from objects of some kinds.
func strips(kinds ...faults.Kind) func(client.Object) {
	return func(o client.Object) {
		if slices.Contains(kinds, faults.RefForObject(o).Kind) {
			o.SetFinalizers(nil)
			delete(o.GetAnnotations(), v1alpha1.AddressAnnotation)
		}
	}
}

// stripOwners is a webhook that removes the owners of IPAddresses. An IPAddress whose claim is deleted meanwhile looks
// as if a user created it, and stays.
var stripOwners = newWebhook("owners-changed", faults.Claims, func(o client.Object) {
	if faults.RefForObject(o).Kind == faults.Addresses {
		o.SetOwnerReferences(nil)
	}
})

// startObstacle starts an obstacle that ends after a while.
func (w *world) startObstacle(o obstacle, d time.Duration) {
	if w.Obstacle != nil {
		return
	}
	w.StartObstacle(o.Obstacle)
	w.pace.since = time.Now()
	w.api.SetMutatingWebhook(o.webhook)
	w.hangs.Store(o.hangs)
	w.DelayStep(0, d, func() {
		w.EndObstacle()
		w.api.SetMutatingWebhook(nil)
		w.hangs.Store(false)
		w.LastChange = time.Now()
	})
}

// window is the time over which the activity of managers is counted. Within calm after the start of an obstacle, or
// after a write of another writer, the first tries of all are over.
const (
	window = time.Minute
	calm   = 20 * time.Second
)

// activityLog counts what managers do.
type activityLog struct {
	since time.Time
	// claims is the largest number of claims so far.
	claims int
	done   map[string][]time.Time
}

// checkRate counts an activity of a manager: ever bounds how often it may happen in a window at any time, and
// obstructed how often while an obstacle lasts.
func (w *world) checkRate(kind string, ever, obstructed int) {
	now := time.Now()
	if w.pace.done == nil {
		w.pace.done = map[string][]time.Time{}
	}
	times := slices.DeleteFunc(w.pace.done[kind], func(t time.Time) bool { return now.Sub(t) >= window })
	times = append(times, now)
	w.pace.done[kind] = times
	most, when := ever, "at any time"
	switch {
	case w.Obstacle != nil && now.Sub(w.pace.since) > calm+window:
		most, when = obstructed, "while the obstacle "+w.Obstacle.Name+" lasts"
	case now.Sub(w.LastChange) > calm+window:
		most, when = obstructed, "while nothing changes"
	}
	if len(times) > most {
		w.Failf("rest: more than %d in %v %s: %s", most, window, when, kind)
		w.pace.done[kind] = nil
	}
}

// countReconcile counts a reconcile: one a second while an obstacle lasts, and otherwise some for each claim that is
// served.
func (w *world) countReconcile(m *manager, q *sim.Queue) {
	w.pace.claims = max(w.pace.claims, len(w.api.List(faults.Claims)))
	w.checkRate(m.Name+": reconcile "+q.Name, max(300, 5*w.pace.claims), int(window/time.Second))
}

// countWrite counts a write: of a pool, one a second; of any other object, those of one backoff while an obstacle
// lasts.
func (w *world) countWrite(r *faults.Request) {
	if !r.IsWrite() {
		return
	}
	most := 12
	if isOf(r, faults.Pools, faults.GlobalPools) {
		most = int(window / time.Second)
	}
	w.checkRate(r.String(), 100, most)
	if w.Obstacle != nil {
		w.StepsSinceChange = 0 // the activity log counts failed requests
	}
}

// withErrorCounter returns a context whose logger counts the errors that a manager logs: lines of a cause are bounded.
func (w *world) withErrorCounter(ctx context.Context, name string) context.Context {
	return sim.WithLog(ctx, func(text string, isError bool) {
		if isError {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lines = append(w.lines, name+": log "+text)
		}
	})
}

// countLogLines counts the lines that were logged.
func (w *world) countLogLines() {
	w.mu.Lock()
	lines := w.lines
	w.lines = nil
	w.mu.Unlock()
	for _, line := range lines {
		w.checkRate(line, 60, 4)
	}
}

// TestScenariosWithObstacles runs every scenario with every obstacle, which begins at a write, and the obstacles that
// only many claims meet.
func TestScenariosWithObstacles(t *testing.T) { // W30
	runs := 0
	for n, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			writes := s.run(t, func(*world) {})
			for j, o := range obstacles {
				for k, at := range []int{1, writes / 4, writes / 2, 3 * writes / 4} {
					if !*full && (n+j+k)%(len(obstacles)-1) != 0 {
						continue
					}
					runs++
					t.Run(fmt.Sprint(o.Name, "-", at), func(t *testing.T) {
						s.run(t, func(w *world) {
							w.Disturb = func(w *world, r *faults.Request) bool {
								if !r.IsWrite() || w.Writes != max(1, at) {
									return false
								}
								w.startObstacle(o, obstacleDuration)
								return w.MeetObstacle(r)
							}
						})
					})
				}
			}
		})
	}
	t.Logf("%d runs", runs)
	for name, c := range loadCases {
		t.Run(name, func(t *testing.T) {
			c.s.run(t, func(w *world) {
				w.DelayStep(0, c.at, func() { w.runLoadCase(c) })
			})
		})
	}
}

// loadCase is a load of many claims that meets an obstacle that a few claims would not show.
type loadCase struct {
	s scenario
	// o begins at a time, with an action of a user, and after retryTime all claims have been tried once.
	at        time.Duration
	o         obstacle
	do        action
	retryTime time.Duration
	// check runs twice while the obstacle lasts.
	check func(*world)
}

var loadCases = map[string]loadCase{
	"more hang than are looked for at once": {
		s:  scenario{name: "hanging", spec: manyInZones, before: []action{addManyIn(grants.MaxMachineLookups+1, "a")}, capacity: grants.MaxMachineLookups + 2},
		o:  obstacle{Obstacle: sim.Obstacle{Name: "lookups-hang"}, hangs: true},
		do: add("plain"), retryTime: 4 * time.Minute, // some at once, each for as long as a request
		check: func(w *world) {
			if served, _ := countServed(w); served[""] != 1 {
				w.Failf("%d claims are served, not the one that has no Machine", served[""])
			}
		},
	},
	"more are left of a move than one backoff has seconds": {
		s:  scenario{name: "moved", spec: Pool("10.0.0.1-10.0.0.100"), before: []action{addMany(80)}},
		at: pause,
		o:  newRefusal("moved-addresses-kept", errForbidden, func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb != "create" }),
		do: sim.NewAttempt("what is left of a move, a part after the other", func(w *world) bool {
			for i := range 4 {
				w.DelayStep(0, time.Duration(i)*time.Second, func() {
					w.ChangeAsUser("what is left of a move", func() { leaveMoved(w, 20) })
				})
			}
			return true
		}),
		check: func(w *world) {
			if n := len(w.api.List(faults.Addresses)); n != 80 {
				w.Failf("%d IPAddresses are left of the move", n)
			}
		},
	},
	"as many fail as put a namespace into trouble": {
		s: scenario{name: "in trouble", spec: Pool("10.0.0.1-10.0.0.60"), before: []action{addMany(term.SerialRetryThreshold)}, capacity: term.SerialRetryThreshold + 1},
		o: newRefusal("some-refused", errForbidden, createsAddressOfMany),
		do: sim.NewAttempt("later, a claim that cannot be served, and one that can", func(w *world) bool {
			w.DelayStep(0, 2*pause, func() {
				w.PerformAction(request("claim-vain", "10.0.0.200"))
				w.PerformAction(add("healthy"))
			})
			return true
		}),
		check: func(w *world) {
			for _, o := range w.objects().Claims {
				if o.Name == "healthy" && o.Status.AddressRef.Name == "" {
					w.Failf("a claim to which something can be granted is not tried; its refusal is %v", o.Status.Conditions)
				}
				if ready := meta.FindStatusCondition(o.GetConditions(), v1alpha1.ReadyCondition); o.Name == "claim-vain" && (ready == nil || !strings.Contains(ready.Message, "10.0.0.200")) {
					w.Failf("the refusal of the claim that cannot be served is %v", ready)
				}
			}
		},
	},
}

// runLoadCase lets a load meet its obstacle now.
func (w *world) runLoadCase(c loadCase) {
	w.startObstacle(c.o, c.retryTime+obstacleDuration)
	w.PerformAction(c.do)
	w.pace.since = time.Now().Add(c.retryTime)
	for _, at := range []time.Duration{obstacleDuration / 2, obstacleDuration - time.Second} {
		w.DelayStep(0, c.retryTime+at, func() { c.check(w) })
	}
}

// createsAddressOfMany reports whether a request creates the IPAddress of a claim of addMany.
func createsAddressOfMany(r *faults.Request) bool {
	return isOf(r, faults.Addresses) && r.Verb == "create" && strings.HasPrefix(r.Ref.Name, "claim-")
}

var manyInZones = v1alpha1.NetworkPoolSpec{
	Addresses: []string{"10.0.0.1-10.0.0.9", "10.0.1.1-10.0.1.200"},
	Subnets:   []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}, {CIDR: "10.0.1.0/24", FailureDomains: []string{"a"}}},
}

// addManyIn adds n claims of Machines in a failure domain.
func addManyIn(n int, domain string) action {
	return sim.NewAttempt(fmt.Sprintf("add %d claims of Machines in %s", n, domain), func(w *world) bool {
		for i := range n {
			addIn(fmt.Sprintf("claim-%03d", i), domain).Do(w)
		}
		return true
	})
}

// leaveMoved leaves at most so many more IPAddresses as clusterctl does when it is ended while it deletes what it has
// moved: their claims are gone.
func leaveMoved(w *world, most int) {
	for _, o := range w.api.List(faults.Addresses) {
		if o.GetDeletionTimestamp() != nil || most == 0 {
			continue
		}
		most--
		name := faults.RefForObject(o)
		marked := w.api.EditObject(name, func(o client.Object) {
			annotations.AddAnnotations(o, map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
		})
		if err := errors.Join(marked, w.api.Delete(name, false)); err != nil {
			w.Failf("%v", err)
		}
		forceDelete(faults.Claims, o.GetName()).Do(w)
	}
}

// addMany creates n claims of the Cluster in a namespace.
func addMany(n int) action {
	return sim.NewAttempt(fmt.Sprintf("add %d claims", n), func(w *world) bool {
		for i := range n {
			c := claim(fmt.Sprintf("claim-%02d", i))
			c.Spec.ClusterName = "tenant"
			w.create(c)
		}
		return true
	})
}

// TestManyClaimsMeetObstacle checks that managers do little also when more claims of a namespace meet an obstacle than
// may fail at once, and meanwhile their Cluster or their pool is paused, or deleted, or its spec becomes invalid.
func TestManyClaimsMeetObstacle(t *testing.T) {
	const n = 40
	pausePool := func(paused bool) action {
		return sim.NewAttempt("pause the pool", func(w *world) bool { return w.api.EditObject(ref(faults.Pools, poolName), setPaused(paused)) == nil })
	}
	spoil := sim.NewAttempt("an invalid spec", func(w *world) bool {
		return faults.EditObject(w.api, ref(faults.Pools, poolName), func(o *v1alpha1.NetworkPool) { o.Spec.Gateway = "192.0.2.1" }) == nil
	})
	const twoManagers = "two managers"
	nothing := sim.NewAttempt("nothing", func(*world) bool { return true })
	for name, then := range map[string]struct{ do, undo action }{
		"nothing": {nothing, nothing}, "cluster paused": {setClusterPaused(true), setClusterPaused(false)}, "pool paused": {pausePool(true), pausePool(false)},
		"pool deleted": {dropPool, nothing}, "pool invalid": {spoil, nothing}, twoManagers: {another, nothing},
	} {
		for i, o := range append(slices.Clone(obstacles), stripOwners) {
			if testing.Short() && name != "nothing" && (i+len(name))%4 != 0 && o.Name != "addresses-refused" {
				continue
			}
			t.Run(name+"/"+o.Name, func(t *testing.T) {
				// A claim with a record is served whatever the condition of the pool, others are not.
				s := scenario{name: "many", spec: Pool("10.0.0.1-10.0.0.60"), before: []action{addMany(n)}, ordered: true}
				s.run(t, func(w *world) {
					w.elected = name != twoManagers
					w.startObstacle(o, 5*time.Minute)
					for at, a := range map[time.Duration]action{90 * time.Second: then.do, 6 * time.Minute: then.undo} {
						w.DelayStep(0, at, func() {
							w.pace.since, w.LastChange = time.Now(), time.Now()
							w.PerformAction(a)
						})
					}
					w.DelayStep(0, 30*time.Second, func() { w.checkWaitReasons(o) })
					w.DelayStep(0, 5*time.Minute-time.Second, func() {
						w.checkWaitReasons(o)
						w.checkRevertReported(o)
					})
				})
			})
		}
	}
}

// checkWaitReasons checks that every claim that waits while an obstacle lasts shows why, unless nothing can be written.
func (w *world) checkWaitReasons(o obstacle) {
	if o.Name == "status-refused" || o.Name == "no-rights" {
		return
	}
	if _, unreported := countServed(w); len(unreported) > 0 {
		w.Failf("%d claims have no reason why they wait, as %s", len(unreported), unreported[0].Name)
	}
}

// checkRevertReported checks that each object that an obstacle changes at every write reports that. A single change is
// no obstacle: a few tries come first.
func (w *world) checkRevertReported(o obstacle) {
	for _, undone := range w.api.List(o.undone) {
		messages := w.lastMessages(undone.GetUID())
		if undone.GetDeletionTimestamp() == nil && !strings.Contains(messages, "changes it; exempt the manager from it") {
			w.Failf("while %s lasts, %s says %q", o.Name, faults.RefForObject(undone), messages)
		}
	}
}

// lastMessages returns the messages of the last event of an object and, for a claim, of its conditions.
func (w *world) lastMessages(uid types.UID) string {
	w.mu.Lock()
	messages := w.events[uid]
	w.mu.Unlock()
	for _, c := range w.objects().Claims {
		for _, cond := range c.Status.Conditions {
			if c.UID == uid {
				messages += "; " + cond.Message
			}
		}
	}
	return messages
}

// TestRefusedCommitThatFrees checks that a pool whose status is refused waits for its next commit, also where that
// would free an address that a claim waits for.
func TestRefusedCommitThatFrees(t *testing.T) {
	s := scenario{name: "refused", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, claims: []string{"a"}, script: []action{forceDelete(faults.Claims, "a"), add("b")}}
	s.run(t, func(w *world) {
		refused := obstacles[slices.IndexFunc(obstacles, func(o obstacle) bool { return o.Name == "pools-refused" })]
		w.Disturb = func(w *world, r *faults.Request) bool {
			if r.Verb != "create" || r.Ref.Kind != faults.Addresses {
				return false
			}
			w.Disturb = nil
			w.ExecuteAndAnswer(r)
			w.startObstacle(refused, obstacleDuration)
			for len(w.Script) > 0 {
				w.Act()
			}
			return true
		}
	})
}
