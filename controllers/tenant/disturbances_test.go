package tenant

import (
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// These disturbances change the result of a call.

// disturbance is what happens to a call; do returns false if the call is then executed as usual.
type disturbance struct {
	name string
	do   func(w *world, r *faults.Request) bool
}

// late executes a write after so many more writes; its client got the answer that the request timed out.
func late(writes int, wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool { return w.DelayCall(r, writes, wait) }
}

// sleep pauses the manager that calls before the call is sent, and makes another one take its place. It sends the call
// when it goes on.
func sleep(writes int, wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool { return w.PauseBefore(r, writes, wait) }
}

// sleepAfter pauses the manager that calls before the answer is read.
func sleepAfter(wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool { return w.PauseAfter(r, 0, wait) }
}

// unsent is like sleep, but the manager sends the call only if it still waits for it.
func unsent(wait time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool {
		w.PauseManager(w.Manager(r.Client), 0, wait, func() {
			if !r.IsAbandoned() {
				w.ExecuteAndAnswer(r)
			}
		})
		return true
	}
}

// mute makes watches of the manager that calls show nothing for a while. What happens meanwhile is shown later, or lost
// where the watch breaks: a new list makes up for it.
func mute(lose bool, kinds ...faults.Kind) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool {
		p := w.Manager(r.Client)
		which := slices.DeleteFunc(slices.Clone(kinds), p.IsMuted)
		p.MuteWatches(which...)
		w.DelayStep(0, 20*time.Second, func() {
			for _, kind := range which {
				if slices.Contains(workKinds, kind) && !p.connected {
					continue
				}
				if p.UnmuteWatches(kind); lose {
					w.relist(p, kind, 0)
				}
			}
		})
		return false
	}
}

// relisted makes all watches start again: what was shown is shown again, as it was when the list was taken.
func relisted(delay time.Duration) func(*world, *faults.Request) bool {
	return func(w *world, r *faults.Request) bool {
		p := w.Manager(r.Client)
		for _, kind := range allKinds {
			if !slices.Contains(workKinds, kind) || !p.IsMuted(kind) {
				w.relist(p, kind, delay)
			}
		}
		return false
	}
}

func refuseCall(w *world, r *faults.Request) bool {
	return w.Answer(r, nil, apierrors.NewInternalError(errors.New("etcd has no leader")))
}

var allKinds = slices.Concat(mgmtKinds, []faults.Kind{faults.Allocations}, workKinds)

var disturbances = []disturbance{
	{"crash-before", (*world).CrashBefore},
	{"crash-after", (*world).CrashAfter},
	{"crash-late", func(w *world, r *faults.Request) bool { return w.CrashLate(r, 3, pause) }},
	{"answer-lost", (*world).LoseAnswer},
	{"refused", refuseCall},
	{"conflict", func(w *world, r *faults.Request) bool {
		w.Change("another hand touches "+r.Ref.Name, func() {
			_ = r.Server.EditObject(r.Ref, func(o client.Object) {
				l := maps.Clone(o.GetLabels())
				if l == nil {
					l = map[string]string{}
				}
				l["touched"] = "yes"
				o.SetLabels(l)
			})
		})
		return false
	}},
	{"sent-twice", func(w *world, r *faults.Request) bool {
		_, _ = w.Execute(r)
		return false
	}},
	{"late-1", late(1, pause)},
	{"late-3", late(3, pause)},
	{"late-rest", late(0, clientTimeout)},
	{"twin", func(w *world, _ *faults.Request) bool {
		w.start()
		return false
	}},
	{"paused-2", sleep(2, pause)},
	{"paused-5", sleep(5, pause)},
	{"paused-rest", sleep(0, 40*time.Second)},
	{"paused-long", sleep(0, 4*grace)},
	{"paused-answer", sleepAfter(10 * time.Second)},
	{"blocks-late", mute(false, faults.Allocations)},
	{"blocks-lost", mute(true, faults.Allocations)},
	{"services-late", mute(false, faults.Services)},
	{"services-lost", mute(true, faults.Services)},
	{"objects-late", mute(false, objectKinds...)},
	{"cluster-late", mute(false, faults.Clusters)},
	{"pools-late", mute(false, faults.Pools)},
	{"watches-late", mute(false, allKinds...)},
	{"watches-lost", mute(true, allKinds...)},
	{"balancer-stuck", func(w *world, _ *faults.Request) bool {
		w.lb.currentMood().stuck = true
		w.DelayStep(0, 20*time.Second, func() { w.lb.currentMood().stuck = false })
		return false
	}},
	{"balancer-frozen", func(w *world, _ *faults.Request) bool {
		if !w.cilium && (w.separatePools || w.initial == 0) {
			return false // a pool is deleted there, and nothing acknowledges that (ADR 7)
		}
		w.lb.currentMood().frozen = true
		w.DelayStep(0, 20*time.Second, func() { w.lb.currentMood().frozen = false })
		return false
	}},
	{"relist", relisted(0)},
	{"relist-slow", relisted(pause)},
}

// liveReadDisturbances is what can happen to a live read.
var liveReadDisturbances = []disturbance{
	{"crash", (*world).CrashBefore},
	{"refused", refuseCall},
	{"lost", (*world).LoseAnswer},
	{"paused", sleepAfter(40 * time.Second)},
}
