package allocator_test

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// TestStandbyCorrectsCountsOfDeadHolder checks that another manager corrects the counts of a pool whose holder died
// after it released the last claim, and before it wrote that to the status: no claim is left that would be work for the
// other manager.
func TestStandbyCorrectsCountsOfDeadHolder(t *testing.T) {
	for name, order := range sim.Orders {
		t.Run(name, func(t *testing.T) {
			s := scenario{
				name: "death before the count", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, claims: []string{"a"},
				script: []action{remove("a")}, want: map[string]string{},
			}
			var ended *world
			deaths := 0
			s.run(t, func(w *world) {
				ended, w.elected, w.Order = w, false, order
				w.start()
				w.Disturb = func(w *world, r *faults.Request) bool {
					if r.Ref != ref(faults.Claims, "a") {
						return false
					}
					w.ExecuteAndAnswer(r)
					if len(w.api.List(faults.Claims)) == 0 {
						w.Kill(w.Manager(r.Client))
						deaths++
					}
					return true
				}
			})
			if deaths != 1 || len(ended.Managers) != 2 {
				t.Fatalf("%d of %d managers died", deaths, len(ended.Managers))
			}
			for _, pool := range ended.objects().Pools {
				if n := pool.PoolStatus().AllocationCount; n != 0 {
					t.Errorf("%d allocations are counted, and there is none", n)
				}
			}
		})
	}
}

// TestRefusedTakeoverRests checks the neighbour of that death: the API server refuses what the other manager writes to
// the pool, for a while. It retries with growing pauses, and corrects the counts when it may.
func TestRefusedTakeoverRests(t *testing.T) {
	const refusals = 5
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "networkpools"}, poolName, errors.New("a policy refuses it"))
	s := scenario{
		name: "death before the count, refused", spec: Pool("10.0.0.1-10.0.0.4"), capacity: 4, claims: []string{"a"},
		script: []action{remove("a")}, want: map[string]string{},
	}
	var ended *world
	var refusedAt []time.Time
	died := false
	s.run(t, func(w *world) {
		ended, w.elected = w, false
		w.start()
		w.Disturb = func(w *world, r *faults.Request) bool {
			if died && r.Verb == "update" && len(refusedAt) < refusals {
				refusedAt = append(refusedAt, time.Now())
				return w.Answer(r, nil, forbidden)
			}
			if r.Ref != ref(faults.Claims, "a") {
				return false
			}
			w.ExecuteAndAnswer(r)
			if len(w.api.List(faults.Claims)) == 0 {
				w.Kill(w.Manager(r.Client))
				died = true
			}
			return true
		}
	})
	if len(refusedAt) != refusals {
		t.Fatalf("%d writes were refused, not %d", len(refusedAt), refusals)
	}
	for i := 2; i < refusals; i++ {
		if pause, before := refusedAt[i].Sub(refusedAt[i-1]), refusedAt[i-1].Sub(refusedAt[i-2]); pause < term.MinRetryPause || pause < min(before, term.MaxRetryPause) {
			t.Errorf("refusal %d comes %v after the one before, and that after %v", i, pause, before)
		}
	}
	for _, pool := range ended.objects().Pools {
		if n := pool.PoolStatus().AllocationCount; n != 0 {
			t.Errorf("%d allocations are counted, and there is none", n)
		}
	}
}
