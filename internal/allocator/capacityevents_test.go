package allocator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestOneGrantIsOneCapacityEvent checks that a small pool that enters several tiers with one grant records one event,
// and one event for each tier that it leaves (B76).
func TestOneGrantIsOneCapacityEvent(t *testing.T) {
	commit := func(was *v1alpha1.NetworkPool, allocated int64, at time.Time) *v1alpha1.NetworkPool {
		pool := was.DeepCopy()
		pool.Status.Conditions = grants.CapacityConditions(ledger.Counts{Total: 20, Allocated: allocated}, 0)
		pool.Status.CapacityEvents = grants.DueCapacityEvents(&pool.Status, at)
		return pool
	}
	for name, tc := range map[string]struct {
		steps []int64
		want  []string
	}{
		"all at once":        {steps: []int64{0, 20}, want: []string{"PoolCapacityExhausted"}},
		"one after another":  {steps: []int64{14, 17, 19}, want: []string{"PoolCapacityWarning", "PoolCapacityCritical", "PoolCapacityExhausted"}},
		"two, and the third": {steps: []int64{17, 20}, want: []string{"PoolCapacityCritical", "PoolCapacityExhausted"}},
		"up and down":        {steps: []int64{20, 0}, want: []string{"PoolCapacityExhausted", "PoolCapacityRecovered", "PoolCapacityRecovered", "PoolCapacityRecovered"}},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(20)
			a := New(Options{Recorder: recorder})
			pool := &v1alpha1.NetworkPool{}
			for i, allocated := range tc.steps {
				next := commit(pool, allocated, grantstest.Noon.Add(time.Duration(i)*time.Hour))
				a.reports.reportCapacity(next, pool)
				pool = next
			}
			var got []string
			for len(recorder.Events) > 0 {
				got = append(got, strings.Fields(<-recorder.Events)[1])
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%v, not %v", got, tc.want)
			}
		})
	}
}
