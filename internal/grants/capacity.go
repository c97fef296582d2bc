package grants

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// minEventInterval is the minimum time between two events of one tier of one pool.
const minEventInterval = 10 * time.Minute

// CapacityTiers are the conditions that report how full a pool is, with the utilization in percent from which each is
// True, and its event.
var CapacityTiers = []struct {
	Condition string
	Percent   int64
	Event     string
}{
	{v1alpha1.CapacityWarningCondition, 70, "PoolCapacityWarning"},
	{v1alpha1.CapacityCriticalCondition, 85, "PoolCapacityCritical"},
	{v1alpha1.CapacityExhaustedCondition, 95, "PoolCapacityExhausted"},
}

// CapacityConditions returns the conditions that report how full a pool is. The utilization is relative to the
// addresses of the pool plus growth, the addresses that it may get from more blocks.
func CapacityConditions(n ledger.Counts, growth int64) []metav1.Condition {
	percent, yet := int64(0), ""
	if n.Total > 0 {
		percent = int64(float64(n.Allocated) / (float64(n.Total) + float64(growth)) * 100)
	}
	if growth > 0 {
		yet = " of those that it has and may get"
	}
	var out []metav1.Condition
	for _, tier := range CapacityTiers {
		c := metav1.Condition{
			Type: tier.Condition, Status: metav1.ConditionFalse, Reason: v1alpha1.BelowThresholdReason,
			Message: fmt.Sprintf("utilization is %d%%%s (%d/%d IPs)", percent, yet, n.Allocated, n.Total),
		}
		if n.Total > 0 && percent >= tier.Percent {
			c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.AboveThresholdReason
		}
		out = append(out, c)
	}
	return out
}

// setExhaustedBySpec sets CapacityExhausted to True for a pool whose spec leaves no address, whatever the
// utilization. Such a pool did not fill up over time, so no warning precedes the condition.
func setExhaustedBySpec(all []metav1.Condition, nothingLeft string) {
	if c := meta.FindStatusCondition(all, v1alpha1.CapacityExhaustedCondition); nothingLeft != "" && c != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.AboveThresholdReason, nothingLeft
	}
}

// DueCapacityEvents returns the last event of each tier, with those that are due now among them. An event is due when
// a condition differs from the last event of its tier, unless that event was recorded less than minEventInterval ago.
// Then the event is due later if the condition still differs, so the events always show the final state. They are
// part of the status, so a restart repeats none.
func DueCapacityEvents(s *v1alpha1.NetworkPoolStatus, now time.Time) []v1alpha1.CapacityEvent {
	var out []v1alpha1.CapacityEvent
	for _, tier := range CapacityTiers {
		status := metav1.ConditionFalse
		if meta.IsStatusConditionTrue(s.Conditions, tier.Condition) {
			status = metav1.ConditionTrue
		}
		last := LastCapacityEvent(s, tier.Condition)
		switch {
		case last == nil && status == metav1.ConditionFalse:
			continue
		case last == nil, last.Status != status && now.Sub(last.Time.Time) >= minEventInterval:
			last = &v1alpha1.CapacityEvent{Condition: tier.Condition, Status: status, Time: metav1.NewTime(now.Truncate(time.Second))}
		}
		out = append(out, *last)
	}
	return out
}

// LastCapacityEvent returns the last event of a tier, or nil if there was none.
func LastCapacityEvent(s *v1alpha1.NetworkPoolStatus, condition string) *v1alpha1.CapacityEvent {
	for i := range s.CapacityEvents {
		if s.CapacityEvents[i].Condition == condition {
			return &s.CapacityEvents[i]
		}
	}
	return nil
}
