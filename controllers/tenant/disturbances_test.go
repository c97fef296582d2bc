package tenant

import (
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// These disturbances change the result of a call.

// disturbance is what happens to a call; do returns false if the call is then executed as usual.
type disturbance struct {
	name string
	do   func(w *world, r request) bool
}

// late executes a write after so many more writes; its client got the answer that the request timed out.
func late(writes int, wait time.Duration) func(*world, request) bool {
	return func(w *world, r request) bool {
		w.answer(r, nil, schedule.ErrTimeout)
		w.DelayStep(writes, wait, func() { _, _ = w.do(r) })
		return true
	}
}

// sleep pauses the manager that calls, before the call is sent or before its answer is read, and makes another one take
// its place.
func sleep(writes int, wait time.Duration, sent bool) func(*world, request) bool {
	return func(w *world, r request) bool {
		paused(w, r, writes, wait, func() {
			if !sent {
				answered(w, r)
			}
		})
		return !sent || answered(w, r)
	}
}

// unsent pauses the manager that calls before the call is sent. When it continues, it sends what it still waits for.
func unsent(wait time.Duration) func(*world, request) bool {
	return func(w *world, r request) bool {
		paused(w, r, 0, wait, func() {
			if !r.IsAbandoned() {
				answered(w, r)
			}
		})
		return true
	}
}

// paused pauses the manager that calls, and makes another one take its place; then is called when it continues.
func paused(w *world, r request, writes int, wait time.Duration, then func()) {
	p := w.manager(r.Client)
	p.asleep = true
	w.Tracef("manager %s is paused", p.name)
	w.start()
	w.DelayStep(writes, wait, func() {
		p.asleep = false
		w.Tracef("manager %s goes on", p.name)
		then()
	})
}

// answered executes a call.
func answered(w *world, r request) bool {
	value, err := w.do(r)
	w.answer(r, value, err)
	return true
}

// mute makes watches of the manager that calls show nothing for a while. What happens meanwhile is shown later, or lost
// where the watch breaks: a new list makes up for it.
func mute(lose bool, kinds ...faults.Kind) func(*world, request) bool {
	return func(w *world, r request) bool {
		p := w.manager(r.Client)
		var which []watched
		for _, kind := range kinds {
			k := watched{w.mgmt, kind}
			if slices.Contains(workKinds, kind) {
				k.at = w.work
			}
			if !p.mute[k] {
				p.mute[k] = true
				which = append(which, k)
			}
		}
		w.DelayStep(0, 20*time.Second, func() {
			for _, k := range which {
				p.mute[k] = k.at == w.work && !p.connected
				if lose && !p.mute[k] {
					w.relist(p, k, 0)
				}
			}
		})
		return false
	}
}

// relisted makes all watches start again: what was shown is shown again, as it was when the list was taken.
func relisted(delay time.Duration) func(*world, request) bool {
	return func(w *world, r request) bool {
		p := w.manager(r.Client)
		for _, kind := range slices.Concat(mgmtKinds, []faults.Kind{faults.Allocations}) {
			w.relist(p, watched{w.mgmt, kind}, delay)
		}
		for _, kind := range workKinds {
			if k := (watched{w.work, kind}); !p.mute[k] {
				w.relist(p, k, delay)
			}
		}
		return false
	}
}

func crashBefore(w *world, r request) bool {
	w.crash(w.manager(r.Client))
	return true
}

func refuseCall(w *world, r request) bool {
	w.answer(r, nil, apierrors.NewInternalError(errors.New("etcd has no leader")))
	return true
}

func loseAnswer(w *world, r request) bool {
	_, _ = w.do(r)
	w.answer(r, nil, schedule.ErrTimeout)
	return true
}

var allKinds = slices.Concat(mgmtKinds, []faults.Kind{faults.Allocations}, workKinds)

var disturbances = []disturbance{
	{"crash-before", crashBefore},
	{"crash-after", func(w *world, r request) bool {
		_, _ = w.do(r)
		w.crash(w.manager(r.Client))
		return true
	}},
	{"crash-late", func(w *world, r request) bool {
		w.crash(w.manager(r.Client))
		w.DelayStep(3, pause, func() { _, _ = w.do(r) })
		return true
	}},
	{"answer-lost", loseAnswer},
	{"refused", refuseCall},
	{"conflict", func(w *world, r request) bool {
		_ = r.at.EditObject(r.Ref, func(o client.Object) {
			l := maps.Clone(o.GetLabels())
			if l == nil {
				l = map[string]string{}
			}
			l["touched"] = "yes"
			o.SetLabels(l)
		})
		w.changed("another hand touches " + r.Ref.Name)
		return false
	}},
	{"sent-twice", func(w *world, r request) bool {
		_, _ = w.do(r)
		return false
	}},
	{"late-1", late(1, pause)},
	{"late-3", late(3, pause)},
	{"late-rest", late(0, clientTimeout)},
	{"twin", func(w *world, _ request) bool {
		w.start()
		return false
	}},
	{"paused-2", sleep(2, pause, false)},
	{"paused-5", sleep(5, pause, false)},
	{"paused-rest", sleep(0, 40*time.Second, false)},
	{"paused-long", sleep(0, 4*grace, false)},
	{"paused-answer", sleep(0, 10*time.Second, true)},
	{"blocks-late", mute(false, faults.Allocations)},
	{"blocks-lost", mute(true, faults.Allocations)},
	{"services-late", mute(false, faults.Services)},
	{"services-lost", mute(true, faults.Services)},
	{"objects-late", mute(false, objectKinds...)},
	{"cluster-late", mute(false, faults.Clusters)},
	{"pools-late", mute(false, faults.Pools)},
	{"watches-late", mute(false, allKinds...)},
	{"watches-lost", mute(true, allKinds...)},
	{"balancer-stuck", func(w *world, _ request) bool {
		w.lb.currentMood().stuck = true
		w.DelayStep(0, 20*time.Second, func() { w.lb.currentMood().stuck = false })
		return false
	}},
	{"balancer-frozen", func(w *world, _ request) bool {
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
	{"crash", crashBefore},
	{"refused", refuseCall},
	{"lost", loseAnswer},
	{"paused", sleep(0, 40*time.Second, true)},
}
