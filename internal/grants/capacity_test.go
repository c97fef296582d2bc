package grants_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestCapacityEvents checks a sequence of states of a pool of 100 addresses: how full it is at a minute, and which
// events are new then (H26).
func TestCapacityEvents(t *testing.T) {
	const warning, critical, exhausted = v1alpha1.CapacityWarningCondition, v1alpha1.CapacityCriticalCondition, v1alpha1.CapacityExhaustedCondition
	s := &v1alpha1.NetworkPoolStatus{}
	for _, step := range []struct {
		minute int
		used   int64
		want   []string
		reason string
	}{
		{0, 69, nil, "a new pool has nothing to say"},
		{1, 70, []string{warning + "=True"}, "at the threshold counts"},
		{2, 95, []string{critical + "=True", exhausted + "=True"}, "each tier has its own limit"},
		{3, 94, nil, "exhausted has spoken a minute ago"},
		{4, 95, nil, "nothing has changed since it spoke"},
		{11, 60, []string{warning + "=False"}, "its ten minutes are over, the others' are not"},
		{12, 60, []string{critical + "=False", exhausted + "=False"}, "the end is reported at last"},
		{13, 99, nil, "all have spoken"},
		{22, 99, []string{warning + "=True", critical + "=True", exhausted + "=True"}, "still so"},
		{60, 99, nil, "once is enough"},
	} {
		now := grantstest.Noon.Add(time.Duration(step.minute) * time.Minute)
		s.Conditions = grants.CapacityConditions(ledger.Counts{Total: 100, Allocated: step.used}, 0)
		next := grants.DueCapacityEvents(s, now)
		var events []string
		for _, e := range next {
			if last := grants.LastCapacityEvent(s, e.Condition); last == nil || !last.Time.Equal(&e.Time) {
				events = append(events, e.Condition+"="+string(e.Status))
			}
		}
		s.CapacityEvents = next
		if diff := cmp.Diff(step.want, events); diff != "" {
			t.Errorf("minute %d, %s (-want +got):\n%s", step.minute, step.reason, diff)
		}
	}
}

// TestCapacityTiers checks that each tier begins at its own share of the pool, and not below.
func TestCapacityTiers(t *testing.T) { // B75, H26
	tiers := []string{v1alpha1.CapacityWarningCondition, v1alpha1.CapacityCriticalCondition, v1alpha1.CapacityExhaustedCondition}
	for used, want := range map[int64]int{0: 0, 699: 0, 700: 1, 849: 1, 850: 2, 949: 2, 950: 3, 1000: 3} {
		var got []string
		for _, c := range grants.CapacityConditions(ledger.Counts{Total: 1000, Allocated: used}, 0) {
			if c.Status == metav1.ConditionTrue {
				got = append(got, c.Type)
			}
		}
		if diff := cmp.Diff(tiers[:want], got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%d of 1000 are used (-want +got):\n%s", used, diff)
		}
	}
}

func TestCapacityOfAnEmptyPool(t *testing.T) {
	for _, c := range grants.CapacityConditions(ledger.Counts{}, 0) {
		if c.Status != metav1.ConditionFalse || c.Message != "utilization is 0% (0/0 IPs)" {
			t.Errorf("%s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
}

// TestCapacityOfAPoolThatGrows checks that a carved pool that is full and can grow is not exhausted.
func TestCapacityOfAPoolThatGrows(t *testing.T) {
	full := ledger.Counts{Total: 10, Allocated: 10}
	for growth, want := range map[int64]map[string]bool{
		0:  {v1alpha1.CapacityWarningCondition: true, v1alpha1.CapacityCriticalCondition: true, v1alpha1.CapacityExhaustedCondition: true},
		4:  {v1alpha1.CapacityWarningCondition: true},
		30: {},
	} {
		for _, c := range grants.CapacityConditions(full, growth) {
			if isTrue := c.Status == metav1.ConditionTrue; isTrue != want[c.Type] {
				t.Errorf("%s is %s with %d more: %s", c.Type, c.Status, growth, c.Message)
			}
		}
	}
}
