package sim

import (
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// revertDelay is how long after a write another writer reverts it.
const revertDelay = 20 * time.Millisecond

// Obstacle keeps an API server from doing what managers request, for as long as it lasts: missing rights, a policy, a
// quota, a webhook that fails; or another writer reverts what they write. While it lasts managers must do little.
type Obstacle struct {
	Name string
	// Matches selects the calls that meet the obstacle; nil means that none does.
	Matches func(*faults.Request) bool
	// Err returns the answer to them.
	Err func(*faults.Request) error
	// Revert is what another writer does to the object after each of these calls, which is executed then; nil means that
	// the calls are refused.
	Revert func(client.Object)
	// IsChange reports whether a call that meets the obstacle counts as a change.
	IsChange bool

	// reconciles counts the reconciles of each queue, writes those of each manager and object.
	reconciles, writes map[string]int
}

// ErrAlways returns an answer that does not depend on the call.
func ErrAlways(err error) func(*faults.Request) error {
	return func(*faults.Request) error { return err }
}

// StartObstacle starts an obstacle, which lasts until EndObstacle.
func (w *World[W, M]) StartObstacle(o Obstacle) {
	w.Tracef("obstacle: %s", o.Name)
	o.reconciles, o.writes = map[string]int{}, map[string]int{}
	w.Obstacle, w.Obstructed = &o, true
}

// EndObstacle ends the obstacle.
func (w *World[W, M]) EndObstacle() {
	w.Tracef("the obstacle is gone")
	w.Obstacle = nil
}

// MeetObstacle returns true if a call meets the obstacle, and is refused.
func (w *World[W, M]) MeetObstacle(r *faults.Request) bool {
	o := w.Obstacle
	if o == nil {
		return false
	}
	if r.IsWrite() {
		o.writes[r.Client+": "+string(r.Ref.Kind)+" "+r.Ref.Name]++
	}
	if o.Matches == nil || !o.Matches(r) {
		return false
	}
	if o.IsChange {
		w.LastChange = time.Now()
	}
	if o.Revert == nil {
		return w.Answer(r, nil, o.Err(r))
	}
	w.DelayStep(0, revertDelay, func() {
		if w.Obstacle == o && r.Server.EditObject(r.Ref, o.Revert) == nil { // it may be gone by now
			w.Tracef("another writer reverts %s", r.Ref.Name)
		}
	})
	return false
}

// CheckObstacleCosts checks how often each queue was reconciled, and each object was written, since the obstacle began.
func (w *World[W, M]) CheckObstacleCosts(maxReconciles, maxWrites int) {
	for _, queue := range slices.Sorted(maps.Keys(w.Obstacle.reconciles)) {
		if n := w.Obstacle.reconciles[queue]; n > maxReconciles {
			w.Failf("rest: %d reconciles of %s while an obstacle lasts: %s", n, queue, w.Obstacle.Name)
		}
	}
	for _, object := range slices.Sorted(maps.Keys(w.Obstacle.writes)) {
		if n := w.Obstacle.writes[object]; n > maxWrites {
			w.Failf("rest: %d writes by %s while an obstacle lasts: %s", n, object, w.Obstacle.Name)
		}
	}
}
