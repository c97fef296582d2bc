package grants

import (
	"testing"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/carve"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// R10: the quarantine of a pool counts from the last arrival of an object that has addresses, and the next manager
// counts from the same time.
func TestQuarantineCountsFromLastArrival(t *testing.T) {
	const length = 75 * time.Second
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		reason     string
		holder     bool
		adopting   bool
		from       string
		arrived    time.Time
		now, until time.Time
	}{
		"while it waits":   {"it may be one of many", true, true, "", noon.Add(time.Minute), noon.Add(time.Minute), noon.Add(time.Minute + length)},
		"by another clock": {"nothing arrives later than now", true, true, "", noon.Add(time.Hour), noon.Add(time.Minute), noon.Add(time.Minute + length)},
		"before the list":  {"the list of a takeover is of what is there", false, true, "", noon.Add(time.Minute), noon.Add(time.Minute), noon.Add(length)},
		"long ago":         {"the wait is over", true, true, "", noon.Add(-time.Hour), noon.Add(time.Minute), noon.Add(length)},
		"afterwards":       {"a record that comes later is a user's", true, false, "", noon.Add(time.Minute), noon.Add(time.Minute), noon.Add(length)},
		"from elsewhere":   {"a resumed move brings more", true, false, "there", noon.Add(time.Minute), noon.Add(time.Minute), noon.Add(time.Minute + length)},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
			pool.Annotations = map[string]string{v1alpha1.ManagementClusterAnnotation: tc.from}
			m := NewPoolState(pools.Key{}, nil, nil)
			m.Base.Pool, m.Quarantine.ManagementCluster, m.Term.Holder, m.Quarantine.Adopting, m.Quarantine.Until = pool, "here", tc.holder, tc.adopting, noon.Add(length)
			m.Quarantine.recordArrival(tc.arrived)
			m.Quarantine.ExtendQuarantine(tc.now, length)
			if !m.Quarantine.Until.Equal(tc.until) {
				t.Errorf("%s: until %v, not %v", tc.reason, m.Quarantine.Until, tc.until)
			}
			ready := &metav1.Condition{Reason: v1alpha1.AdoptingReason, LastTransitionTime: metav1.NewTime(noon)}
			m.Quarantine.keepQuarantineStart(ready)
			if since := ready.LastTransitionTime.Time; !since.Add(length).Equal(tc.until) {
				t.Errorf("%s: the condition counts from %v", tc.reason, since)
			}
		})
	}
}

// A block that arrives extends the quarantine of its carved pool if the block has addresses: the objects that use
// them may arrive later. Another event of the same block does not extend it.
func TestArrivedBlockExtendsQuarantine(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	had := []netipx.IPRange{netipx.MustParseIPRange("10.0.0.0-10.0.0.63")}
	m := NewPoolState(pools.Key{}, nil, nil)
	m.Base.Pool, m.Term.Holder, m.Quarantine.Adopting, m.Quarantine.Until = &v1alpha1.NetworkPool{}, true, true, noon
	see := func(uid types.UID, version string, second int, had []netipx.IPRange, want int) {
		t.Helper()
		m.ObserveBlock(&Block{Allocation: carve.Allocation{Name: "b-1", UID: uid, ResourceVersion: version, Created: noon.Add(time.Duration(second) * time.Second), RecordedRanges: had}})
		m.Quarantine.ExtendQuarantine(noon.Add(time.Hour), 2*time.Hour)
		if until := noon.Add(2*time.Hour + time.Duration(want)*time.Second); want > 0 && !m.Quarantine.Until.Equal(until) {
			t.Errorf("%s at %s: until %v, not %v", uid, version, m.Quarantine.Until, until)
		} else if want == 0 && !m.Quarantine.Until.Equal(noon) {
			t.Errorf("%s at %s: until %v", uid, version, m.Quarantine.Until)
		}
	}
	see("a", "1", 10, nil, 0)
	see("b", "2", 20, had, 20)
	see("b", "3", 30, had, 20)
	see("c", "4", 40, had, 40)
}

// The start of the quarantine is by the clock of the API server, which sets the creation times of objects. The clock
// of the manager may be ahead or behind.
func TestArrivalsUseAPIServerClock(t *testing.T) {
	const length = 75 * time.Second
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, wrong := range []time.Duration{0, time.Hour, -time.Hour} {
		now := noon.Add(wrong + time.Minute)
		m := NewPoolState(pools.Key{}, nil, nil)
		m.Base.Pool, m.Term.Holder, m.Quarantine.Adopting, m.Quarantine.Until = &v1alpha1.NetworkPool{}, true, true, noon.Add(wrong+length)
		m.Clock.ToAPIServerTime = func(at time.Time) time.Time { return at.Add(-wrong) }
		m.Quarantine.recordArrival(noon.Add(50 * time.Second))
		m.Quarantine.ExtendQuarantine(now, length)
		if wait := m.Quarantine.Until.Sub(now); wait != length-10*time.Second {
			t.Errorf("by a clock that is wrong by %v it waits %v", wrong, wait)
		}
		ready := &metav1.Condition{Reason: v1alpha1.AdoptingReason, LastTransitionTime: metav1.NewTime(noon)}
		m.Quarantine.keepQuarantineStart(ready)
		if since := ready.LastTransitionTime.Time; !since.Equal(noon.Add(50 * time.Second)) {
			t.Errorf("by a clock that is wrong by %v the condition counts from %v", wrong, since)
		}
	}
}
