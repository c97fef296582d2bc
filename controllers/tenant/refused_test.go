package tenant

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults/schedule"
)

// lasting is for how long something is refused, or does not answer.
const lasting = 15 * time.Minute

// longestPause is longer than a queue waits at most.
const longestPause = guard.MostBackoff + 10*time.Second

// perPause is how often an object is written at most after each thing that the user does: a pause that begins with 5 ms and
// doubles is a minute after fourteen, and as many minutes are left.
const perPause = 30

// A refusal that lasts is met with a growing pause: while it lasts there is at most one reconcile a second of each controller,
// and each object is written as often as the pause of its queue allows, which doubles. When it ends, all that wait are served.
func TestTenantRestsWhileRefused(t *testing.T) { // B57
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresspools"}, "", errors.New("the webhook says no"))
	deleted := []action{add("a"), add("b"), remove("b"), deleteBlock("ns-prod-lb-1")}
	grown := []action{add("a"), add("b"), add("c")}
	for name, c := range map[string]struct {
		script []action
		// is reports whether a call is concerned, and err is what it is answered.
		is  func(*world, request) bool
		err error
	}{
		"the webhook of MetalLB refuses growth": {grown, func(w *world, r request) bool { return r.at == w.work && r.Write() }, forbidden},
		"it refuses that a range is taken away": {deleted, func(w *world, r request) bool { return r.at == w.work && r.Write() && len(w.script) < 2 }, forbidden},
		"the workload cluster does not answer":  {grown, func(w *world, r request) bool { return r.at == w.work && len(w.script) < 2 }, schedule.ErrTimeout},
		"its live reads fail":                   {deleted, func(w *world, r request) bool { return r.at == w.work && !r.Write() && len(w.script) < 2 }, schedule.ErrTimeout},
		"the status of blocks cannot be written": {deleted, func(w *world, r request) bool {
			return r.at == w.mgmt && r.Write() && r.Ref.Kind == faults.Allocations && len(w.script) < 2
		}, forbidden},
		"the pool has no room": {[]action{resize("10.0.0.1"), add("a"), add("b c")}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			writes, runs, over := map[faults.Ref]int{}, [2]int{}, false
			ends := action{text: "it ends some time later", do: func(w *world) {
				w.After(0, lasting, func() {
					over = true
					resize("10.0.0.1-10.0.0.40").do(w)
					w.changed("it is over")
					w.After(0, longestPause, func() {})
					for i, l := range w.managers[0].lines {
						runs[i] = l.runs
					}
				})
			}}
			scenario{name: name, initial: 1, increment: 1, script: append(c.script, ends)}.run(t, func(w *world) {
				w.disturb = func(w *world, r request) bool {
					if over || c.is == nil || !c.is(w, r) {
						return false
					}
					if r.Write() {
						writes[r.Ref]++
					}
					w.answer(r, nil, c.err)
					return true
				}
			})
			for ref, n := range writes {
				if n > perPause*len(c.script) {
					t.Errorf("%v was written %d times in vain", ref, n)
				}
			}
			for i, n := range runs {
				if n > int(lasting/time.Second) {
					t.Errorf("controller %d: %d reconciles in %v", i, n, lasting)
				}
			}
			t.Logf("%v reconciles, writes in vain: %v", runs, writes)
		})
	}
}
