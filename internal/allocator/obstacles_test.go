package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// An obstacle keeps the API server from doing what managers ask, for as long as it lasts: a quota, a policy, missing rights,
// a webhook. While it lasts managers rest: how much they do is counted then, and not only when it is gone.

// obstacle is one.
type obstacle struct {
	name string
	// refuses is what writes that match are answered; nil: none are refused.
	refuses error
	matches func(*faults.Request) bool
	// webhook changes what is written; nil: nothing does.
	webhook func(client.Object)
	// undone is the kind of the objects that say that the webhook changes what managers write for them.
	undone faults.Kind
	// hangs: lookups of Machines do.
	hangs bool
}

// lasts is how long an obstacle lasts in a schedule: the backoffs have grown by then.
const lasts = 3 * time.Minute

var (
	claimants = []faults.Kind{faults.Claims, faults.Allocations, faults.Leases}
	poolKinds = []faults.Kind{faults.Pools, faults.GlobalPools}

	forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("a policy refuses it"))
	failing   = apierrors.NewInternalError(errors.New("failed calling webhook"))
)

func isOf(r *faults.Request, kinds ...faults.Kind) bool { return slices.Contains(kinds, r.Ref.Kind) }

var obstacles = []obstacle{
	{name: "claims-refused", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, claimants...) && !r.Status }},
	{name: "status-refused", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, claimants...) && r.Status }},
	{name: "addresses-refused", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb == "create" }},
	{name: "addresses-fail", refuses: failing, matches: func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb == "create" }},
	{name: "addresses-kept", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb != "create" }},
	{name: "pools-refused", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, poolKinds...) && r.Status }},
	{name: "pools-kept", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, poolKinds...) && !r.Status }},
	{name: "no-rights", refuses: forbidden, matches: func(*faults.Request) bool { return true }},
	{name: "addresses-changed", webhook: strips(faults.Addresses), undone: faults.Claims},
	{name: "claims-changed", webhook: strips(claimants...), undone: faults.Claims},
	{name: "pools-changed", webhook: strips(poolKinds...), undone: faults.Pools},
}

// strips is a webhook that takes our finalizers and records off objects of some kinds.
func strips(kinds ...faults.Kind) func(client.Object) {
	return func(o client.Object) {
		if slices.Contains(kinds, faults.RefOf(o).Kind) {
			o.SetFinalizers(nil)
			delete(o.GetAnnotations(), v1alpha1.AddressAnnotation)
		}
	}
}

// disowned: a webhook takes the owners off IPAddresses. One whose claim is deleted meanwhile looks as if it was made by hand,
// and stays.
var disowned = obstacle{name: "owners-changed", undone: faults.Claims, webhook: func(o client.Object) {
	if faults.RefOf(o).Kind == faults.Addresses {
		o.SetOwnerReferences(nil)
	}
}}

// obstruct has an obstacle begin, and end after a while.
func (w *world) obstruct(o obstacle, d time.Duration) {
	if w.obstacle != nil {
		return
	}
	w.Notef("    obstacle: %s", o.name)
	w.obstacle, w.obstructed, w.pace.since = &o, true, time.Now()
	w.api.Mutate(o.webhook)
	w.hangs.Store(o.hangs)
	w.After(0, d, func() {
		w.Notef("    the obstacle is gone")
		w.api.Mutate(nil)
		w.hangs.Store(false)
		w.obstacle, w.lastNews = nil, time.Now()
	})
}

// meets reports whether a call meets the obstacle that lasts, and has it answered then.
func (w *world) meets(r *faults.Request) bool {
	if w.obstacle == nil || !r.Write() {
		return false
	}
	w.vainly = 0 // how much is done in vain, the pace says
	if w.obstacle.refuses == nil || !w.obstacle.matches(r) {
		return false
	}
	w.answer(r, nil, w.obstacle.refuses)
	return true
}

// window is the time in which it is counted how much managers do. Within calm since an obstacle began, or another
// writer did something, the first tries of all are over.
const (
	window = time.Minute
	calm   = 20 * time.Second
)

// pace is how much managers do.
type pace struct {
	since time.Time
	// claims is how many there were at most.
	claims int
	done   map[string][]time.Time
}

// count counts something that a manager does: so often may it be done in a window at any time, and so often while an
// obstacle lasts.
func (w *world) count(what string, ever, obstructed int) {
	now := time.Now()
	if w.pace.done == nil {
		w.pace.done = map[string][]time.Time{}
	}
	times := slices.DeleteFunc(w.pace.done[what], func(t time.Time) bool { return now.Sub(t) >= window })
	times = append(times, now)
	w.pace.done[what] = times
	most, when := ever, "at any time"
	switch {
	case w.obstacle != nil && now.Sub(w.pace.since) > calm+window:
		most, when = obstructed, "while the obstacle "+w.obstacle.name+" lasts"
	case now.Sub(w.lastNews) > calm+window:
		most, when = obstructed, "while nothing changes"
	}
	if len(times) > most {
		w.Wrongf("rest: more than %d in %v %s: %s", most, window, when, what)
		w.pace.done[what] = nil
	}
}

// kicked counts a reconcile: one a second while an obstacle lasts, and otherwise some for each claim that is served.
func (w *world) kicked(m *manager, pool string) {
	w.kicks++
	w.pace.claims = max(w.pace.claims, len(w.api.List(faults.Claims)))
	w.count(m.name+": reconcile "+pool, max(300, 5*w.pace.claims), int(window/time.Second))
}

// asked counts a write: of a pool, one a second, of any other object, those of one backoff while an obstacle
// lasts.
func (w *world) asked(r *faults.Request) {
	if !r.Write() {
		return
	}
	most := 12
	if isOf(r, faults.Pools, faults.GlobalPools) {
		most = int(window / time.Second)
	}
	w.count(r.String(), 100, most)
}

// logged returns a context whose logger counts what a manager logs as an error: lines of a cause are bounded.
func (w *world) logged(ctx context.Context, name string) context.Context {
	sink := funcr.New(func(_, _ string) {}, funcr.Options{})
	return log.IntoContext(ctx, sink.WithSink(&counted{LogSink: sink.GetSink(), note: func(text string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lines = append(w.lines, name+": log "+text)
	}}))
}

// counted is a sink that counts errors.
type counted struct {
	logr.LogSink
	note func(string)
}

func (c *counted) Error(_ error, text string, _ ...any) { c.note(text) }
func (c *counted) WithValues(...any) logr.LogSink       { return c }
func (c *counted) WithName(string) logr.LogSink         { return c }
func (c *counted) Enabled(int) bool                     { return false }

// readLog counts what was logged.
func (w *world) readLog() {
	w.mu.Lock()
	lines := w.lines
	w.lines = nil
	w.mu.Unlock()
	for _, line := range lines {
		w.count(line, 60, 4)
	}
}

// TestObstacles runs every scenario with every obstacle, which begins at a write, and what only many meet.
func TestObstacles(t *testing.T) { // W30
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
					t.Run(fmt.Sprint(o.name, "-", at), func(t *testing.T) {
						s.run(t, func(w *world) {
							w.disturb = func(w *world, r *faults.Request) bool {
								if !r.Write() || w.Writes != max(1, at) {
									return false
								}
								w.obstruct(o, lasts)
								return w.meets(r)
							}
						})
					})
				}
			}
		})
	}
	t.Logf("%d runs", runs)
	for name, c := range crowds {
		t.Run(name, func(t *testing.T) {
			c.s.run(t, func(w *world) {
				w.After(0, c.at, func() { w.meet(c) })
			})
		})
	}
}

// A crowd meets an obstacle of which few would not tell.
type crowd struct {
	s scenario
	// o begins at a time, when a user does something, and all have been tried once when it has lasted for so long.
	at    time.Duration
	o     obstacle
	do    action
	tried time.Duration
	// check is of what there is while the obstacle lasts, twice.
	check func(*world)
}

var crowds = map[string]crowd{
	"more hang than are looked for at once": {
		s:  scenario{name: "hanging", spec: manyInZones, before: []action{addManyIn(grants.MaxLookups+1, "a")}, capacity: grants.MaxLookups + 2},
		o:  obstacle{name: "lookups-hang", hangs: true},
		do: add("plain"), tried: 4 * time.Minute, // some at once, each for as long as a request
		check: func(w *world) {
			if served, _ := whoIsServed(w); served[""] != 1 {
				w.Wrongf("%d claims are served, not the one that has no Machine", served[""])
			}
		},
	},
	"more are left of a move than one backoff has seconds": {
		s:  scenario{name: "moved", spec: Pool("10.0.0.1-10.0.0.100"), before: []action{many(80)}},
		at: pause,
		o:  obstacle{name: "moved-addresses-kept", refuses: forbidden, matches: func(r *faults.Request) bool { return isOf(r, faults.Addresses) && r.Verb != "create" }},
		do: action{"what is left of a move, a part after the other", func(w *world) bool {
			for i := range 4 {
				w.After(0, time.Duration(i)*time.Second, func() {
					before := w.api.Version()
					leaveMoved(w, 20)
					w.changed(before, "the user: what is left of a move")
				})
			}
			return true
		}},
		check: func(w *world) {
			if n := len(w.api.List(faults.Addresses)); n != 80 {
				w.Wrongf("%d IPAddresses are left of the move", n)
			}
		},
	},
	"as many fail as put a namespace into trouble": {
		s: scenario{name: "in trouble", spec: Pool("10.0.0.1-10.0.0.60"), before: []action{many(term.MaxTroubled)}, capacity: term.MaxTroubled + 1},
		o: obstacle{name: "some-refused", refuses: forbidden, matches: isOfMany},
		do: action{"later, a claim that cannot be served, and one that can", func(w *world) bool {
			w.After(0, 2*pause, func() {
				before := w.api.Version()
				request("claim-vain", "10.0.0.200").do(w)
				add("healthy").do(w)
				w.changed(before, "the user: adds two claims")
			})
			return true
		}},
		check: func(w *world) {
			for _, o := range w.objects().Claims {
				if o.Name == "healthy" && o.Status.AddressRef.Name == "" {
					w.Wrongf("a claim to which something can be granted has no turn, and is told %v", o.Status.Conditions)
				}
				if ready := meta.FindStatusCondition(o.GetConditions(), v1alpha1.ReadyCondition); o.Name == "claim-vain" && (ready == nil || !strings.Contains(ready.Message, "10.0.0.200")) {
					w.Wrongf("the claim that cannot be served is told %v", ready)
				}
			}
		},
	},
}

// meet has a crowd meet its obstacle now.
func (w *world) meet(c crowd) {
	w.obstruct(c.o, c.tried+lasts)
	before := w.api.Version()
	c.do.do(w)
	w.changed(before, "the user: "+c.do.text)
	w.pace.since = time.Now().Add(c.tried)
	for _, at := range []time.Duration{lasts / 2, lasts - time.Second} {
		w.After(0, c.tried+at, func() { c.check(w) })
	}
}

// isOfMany reports whether a request makes the IPAddress of one of many.
func isOfMany(r *faults.Request) bool {
	return isOf(r, faults.Addresses) && r.Verb == "create" && strings.HasPrefix(r.Ref.Name, "claim-")
}

var manyInZones = v1alpha1.NetworkPoolSpec{
	Addresses: []string{"10.0.0.1-10.0.0.9", "10.0.1.1-10.0.1.200"},
	Subnets:   []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}, {CIDR: "10.0.1.0/24", FailureDomains: []string{"a"}}},
}

// addManyIn adds so many claims of Machines in a failure domain.
func addManyIn(n int, domain string) action {
	return action{fmt.Sprintf("add %d claims of Machines in %s", n, domain), func(w *world) bool {
		for i := range n {
			addIn(fmt.Sprintf("claim-%03d", i), domain).do(w)
		}
		return true
	}}
}

// leaveMoved leaves some more IPAddresses as clusterctl does that is ended while it deletes what it has moved: their claims are
// gone.
func leaveMoved(w *world, most int) {
	for _, o := range w.api.List(faults.Addresses) {
		if o.GetDeletionTimestamp() != nil || most == 0 {
			continue
		}
		most--
		name := faults.RefOf(o)
		marked := w.api.Edit(name, func(o client.Object) {
			annotations.AddAnnotations(o, map[string]string{v1alpha1.DeleteForMoveAnnotation: ""})
		})
		if err := errors.Join(marked, w.api.Delete(name, false)); err != nil {
			w.Wrongf("%v", err)
		}
		forceDelete(faults.Claims, o.GetName()).do(w)
	}
}

// many makes so many claims of the Cluster in a namespace.
func many(n int) action {
	return action{fmt.Sprintf("add %d claims", n), func(w *world) bool {
		for i := range n {
			c := claim(fmt.Sprintf("claim-%02d", i))
			c.Spec.ClusterName = "tenant"
			w.create(c)
		}
		return true
	}}
}

// More claims of a namespace meet an obstacle than may fail at once, and meanwhile their Cluster or their pool is paused, or
// deleted, or its spec becomes invalid: managers rest all the same.
func TestManyMeetAnObstacle(t *testing.T) {
	const n = 40
	pausePool := func(paused bool) action {
		return action{"pause the pool", func(w *world) bool { return w.api.Edit(ref(faults.Pools, poolName), setPaused(paused)) == nil }}
	}
	spoil := action{"an invalid spec", func(w *world) bool {
		return w.api.Edit(ref(faults.Pools, poolName), func(o client.Object) { o.(*v1alpha1.NetworkPool).Spec.Gateway = "192.0.2.1" }) == nil
	}}
	const twoManagers = "two managers"
	nothing := action{"nothing", func(*world) bool { return true }}
	for name, then := range map[string]struct{ do, undo action }{
		"nothing": {nothing, nothing}, "cluster paused": {holdCluster(true), holdCluster(false)}, "pool paused": {pausePool(true), pausePool(false)},
		"pool deleted": {dropPool, nothing}, "pool invalid": {spoil, nothing}, twoManagers: {another, nothing},
	} {
		for i, o := range append(slices.Clone(obstacles), disowned) {
			if testing.Short() && name != "nothing" && (i+len(name))%4 != 0 && o.name != "addresses-refused" {
				continue
			}
			t.Run(name+"/"+o.name, func(t *testing.T) {
				// Who has a record is served whatever the pool says, others are not.
				s := scenario{name: "many", spec: Pool("10.0.0.1-10.0.0.60"), before: []action{many(n)}, ordered: true}
				s.run(t, func(w *world) {
					w.elected = name != twoManagers
					w.obstruct(o, 5*time.Minute)
					for at, a := range map[time.Duration]action{90 * time.Second: then.do, 6 * time.Minute: then.undo} {
						w.After(0, at, func() {
							before := w.api.Version()
							w.pace.since, w.lastNews = time.Now(), time.Now()
							a.do(w)
							w.changed(before, "the user: "+a.text)
						})
					}
					w.After(0, 30*time.Second, func() { w.tellsWhy(o) })
					w.After(0, 5*time.Minute-time.Second, func() {
						w.tellsWhy(o)
						w.tellsOfUndone(o)
					})
				})
			})
		}
	}
}

// tellsWhy checks that every claim that waits while an obstacle lasts says why, unless nothing can be said.
func (w *world) tellsWhy(o obstacle) {
	if o.name == "status-refused" || o.name == "no-rights" {
		return
	}
	if _, untold := whoIsServed(w); len(untold) > 0 {
		w.Wrongf("%d claims are not told why they wait, as %s", len(untold), untold[0].Name)
	}
}

// tellsOfUndone checks that what an obstacle changes each time that it is written says so. What is changed once is no obstacle:
// a few tries come first.
func (w *world) tellsOfUndone(o obstacle) {
	for _, undone := range w.api.List(o.undone) {
		said := w.saidOf(undone.GetUID())
		if undone.GetDeletionTimestamp() == nil && !strings.Contains(said, "changes what is written; exempt the manager from it") {
			w.Wrongf("while %s lasts, %s says %q", o.name, faults.RefOf(undone), said)
		}
	}
}

// saidOf is what the last event of an object and, of a claim, its conditions say.
func (w *world) saidOf(uid types.UID) string {
	w.mu.Lock()
	said := w.events[uid]
	w.mu.Unlock()
	for _, c := range w.objects().Claims {
		for _, cond := range c.Status.Conditions {
			if c.UID == uid {
				said += "; " + cond.Message
			}
		}
	}
	return said
}

// A pool whose status is refused waits for its next commit, also where that would free an address that a claim waits
// for.
func TestRefusedCommitThatFrees(t *testing.T) {
	s := scenario{name: "refused", spec: Pool("10.0.0.1-10.0.0.2"), capacity: 1, claims: []string{"a"}, script: []action{forceDelete(faults.Claims, "a"), add("b")}}
	s.run(t, func(w *world) {
		refused := obstacles[slices.IndexFunc(obstacles, func(o obstacle) bool { return o.name == "pools-refused" })]
		w.disturb = func(w *world, r *faults.Request) bool {
			if r.Verb != "create" || r.Ref.Kind != faults.Addresses {
				return false
			}
			w.disturb = nil
			value, err := w.do(r)
			w.answer(r, value, err)
			w.obstruct(refused, lasts)
			for len(w.script) > 0 {
				w.act()
			}
			return true
		}
	})
}
