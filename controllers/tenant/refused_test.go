package tenant

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// refusalDuration is for how long something is refused, or does not answer.
const refusalDuration = 15 * time.Minute

// longestPause is longer than any delay of a queue.
const longestPause = guard.MaxBackoff + 10*time.Second

// maxWritesPerPause is how often an object is written at most after each action of the user: a delay that begins with 5
// ms and doubles is a minute after fourteen writes, and as many minutes are left.
const maxWritesPerPause = 30

// TestTenantRestsWhileRefused checks that a refusal that lasts is met with a growing delay: while it lasts there is at
// most one reconcile a second of each controller, and each object is written as often as the delay of its queue allows,
// which doubles. When it ends, all that wait are served.
func TestTenantRestsWhileRefused(t *testing.T) { // B57
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "ipaddresspools"}, "", errors.New("the webhook says no"))
	deleted := []action{add("a"), add("b"), remove("b"), deleteBlock("ns-prod-lb-1")}
	grown := []action{add("a"), add("b"), add("c")}
	for name, c := range map[string]struct {
		script []action
		// matches reports whether a call is concerned; err is the answer to it.
		matches func(*world, *faults.Request) bool
		err     error
	}{
		"the webhook of MetalLB refuses growth": {grown, func(w *world, r *faults.Request) bool { return r.Server == w.work && r.IsWrite() }, forbidden},
		"it refuses that a range is taken away": {deleted, func(w *world, r *faults.Request) bool { return r.Server == w.work && r.IsWrite() && len(w.Script) < 2 }, forbidden},
		"the workload cluster does not answer":  {grown, func(w *world, r *faults.Request) bool { return r.Server == w.work && len(w.Script) < 2 }, sim.ErrTimeout},
		"its live reads fail":                   {deleted, func(w *world, r *faults.Request) bool { return r.Server == w.work && !r.IsWrite() && len(w.Script) < 2 }, sim.ErrTimeout},
		"the status of blocks cannot be written": {deleted, func(w *world, r *faults.Request) bool {
			return r.Server == w.mgmt && r.IsWrite() && r.Ref.Kind == faults.Allocations && len(w.Script) < 2
		}, forbidden},
		"the pool has no room": {[]action{resize("10.0.0.1"), add("a"), add("b c")}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ends := sim.NewAction("it ends some time later", func(w *world) {
				w.DelayStep(0, refusalDuration, func() {
					w.CheckObstacleCosts(int(refusalDuration/time.Second), maxWritesPerPause*len(c.script))
					w.EndObstacle()
					w.PerformAction(resize("10.0.0.1-10.0.0.40"))
					w.DelayStep(0, longestPause, func() {})
				})
			})
			scenario{name: name, initial: 1, increment: 1, script: append(c.script, ends)}.run(t, func(w *world) {
				o := sim.Obstacle{Name: name, Err: sim.ErrAlways(c.err), IsChange: true}
				if c.matches != nil {
					o.Matches = func(r *faults.Request) bool { return c.matches(w, r) }
				}
				w.StartObstacle(o)
			})
		})
	}
}
