package grants

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
)

// eventPause is the least time between two events of one tier of one pool.
const eventPause = 10 * time.Minute

// CapacityTiers are the conditions that say how full a pool is, from which utilization each is True,
// and the event of that.
var CapacityTiers = []struct {
	Condition string
	Percent   int64
	Event     string
}{
	{v1alpha1.CapacityWarningCondition, 70, "PoolCapacityWarning"},
	{v1alpha1.CapacityCriticalCondition, 85, "PoolCapacityCritical"},
	{v1alpha1.CapacityExhaustedCondition, 95, "PoolCapacityExhausted"},
}

// Capacity says how full a pool is, of the addresses that it has and of those that it may get by growing.
func Capacity(n ledger.Counts, growth int64) []metav1.Condition {
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

// exhaustedByItsSpec has a pool whose spec leaves nothing be exhausted, whatever share of nothing is in use. It is
// no matter of growth, so no warning goes before it.
func exhaustedByItsSpec(all []metav1.Condition, nothingLeft string) {
	if c := meta.FindStatusCondition(all, v1alpha1.CapacityExhaustedCondition); nothingLeft != "" && c != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.AboveThresholdReason, nothingLeft
	}
}

// CapacityEvents decides which events are due: one where a condition is not what the last event of its
// tier said, unless that was a short while ago. Then it is due later, if it is still so: whoever reads the
// events knows how it ended. They are part of the status, so a restart repeats none.
func CapacityEvents(s *v1alpha1.NetworkPoolStatus, now time.Time) []v1alpha1.CapacityEvent {
	var out []v1alpha1.CapacityEvent
	for _, tier := range CapacityTiers {
		status := metav1.ConditionFalse
		if meta.IsStatusConditionTrue(s.Conditions, tier.Condition) {
			status = metav1.ConditionTrue
		}
		last := LastEvent(s, tier.Condition)
		switch {
		case last == nil && status == metav1.ConditionFalse:
			continue
		case last == nil, last.Status != status && now.Sub(last.Time.Time) >= eventPause:
			last = &v1alpha1.CapacityEvent{Condition: tier.Condition, Status: status, Time: metav1.NewTime(now.Truncate(time.Second))}
		}
		out = append(out, *last)
	}
	return out
}

// LastEvent returns the last event of a tier, nil if there was none.
func LastEvent(s *v1alpha1.NetworkPoolStatus, condition string) *v1alpha1.CapacityEvent {
	for i := range s.CapacityEvents {
		if s.CapacityEvents[i].Condition == condition {
			return &s.CapacityEvents[i]
		}
	}
	return nil
}
