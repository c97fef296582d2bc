package allocator

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// poolReporter publishes the metrics and the events of pools.
type poolReporter struct {
	*Options
}

// reportPoolStatus publishes what a commit changed: gauges, and events where a condition turned.
func (rp *poolReporter) reportPoolStatus(p *grants.Pool, before v1alpha1.Pool) {
	m := p.Lock()
	s := m.Base.Pool.PoolStatus()
	waiting, resting := m.Queues.Waiting.Len(), m.Cooling.Periods.Len()
	base, growth := m.Base.Pool, m.Growth.GrowthCapacity()
	eventPending := m.Quarantine.TakeAdoptionEvent()
	m.Unlock()
	l := []string{p.Key.Kind, p.Key.Namespace, p.Key.Name}
	metrics.PoolTotal.WithLabelValues(l...).Set(float64(s.TotalIPs))
	metrics.PoolAllocated.WithLabelValues(l...).Set(float64(s.AllocatedIPs))
	metrics.PoolAvailable.WithLabelValues(l...).Set(float64(s.AvailableIPs))
	metrics.PoolOutOfRange.WithLabelValues(l...).Set(float64(s.OutOfRangeIPs))
	metrics.PoolLargestFree.WithLabelValues(l...).Set(float64(s.LargestFreeBlock))
	metrics.PoolFragmentation.WithLabelValues(l...).Set(float64(s.FragmentationPercent) / 100)
	metrics.PoolCooling.WithLabelValues(l...).Set(float64(resting))
	metrics.PoolGrowth.WithLabelValues(l...).Set(float64(growth))
	metrics.PoolWaiting.WithLabelValues(l...).Set(float64(waiting))
	metrics.PoolInFlight.WithLabelValues(l...).Set(float64(len(grants.InFlightFromStatus(s))))

	if base.PoolSpec().Carve != nil {
		rp.reportBlocks(base, before, l)
	}
	rp.reportCapacity(base, before)
	oldConditions := before.GetConditions()
	for _, name := range []string{v1alpha1.ReadyCondition, v1alpha1.OverlapCondition} {
		condition, old := meta.FindStatusCondition(s.Conditions, name), meta.FindStatusCondition(oldConditions, name)
		if condition == nil {
			continue // the first commit was refused
		}
		bad := (condition.Status == metav1.ConditionTrue) == (name == v1alpha1.OverlapCondition)
		turned := old == nil || old.Status != condition.Status || old.Reason != condition.Reason || (eventPending && condition.Reason == v1alpha1.AdoptingReason)
		if bad && turned && condition.Reason != v1alpha1.WaitingForBlockReason {
			rp.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "Pool"+strings.TrimPrefix(condition.Reason, "Pool"), "Allocate", "%s", condition.Message)
		}
	}
}

// reportCapacity records events for the tiers of its capacity that a pool has entered and left. Of the tiers that one
// commit enters, only the highest one gets an event: a pool of three addresses enters all of them with the third.
func (rp *poolReporter) reportCapacity(pool, old v1alpha1.Pool) {
	entered := false
	for _, tier := range slices.Backward(grants.CapacityTiers) {
		event := grants.LastCapacityEvent(pool.PoolStatus(), tier.Condition)
		now := meta.FindStatusCondition(pool.PoolStatus().Conditions, tier.Condition)
		switch {
		case event == nil || now == nil || equality.Semantic.DeepEqual(event, grants.LastCapacityEvent(old.PoolStatus(), tier.Condition)):
		case event.Status != metav1.ConditionTrue:
			// The recorder merges events of one reason and action: each tier has an action of its own.
			rp.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "PoolCapacityRecovered", tier.Condition,
				"%s, below %d%%", now.Message, tier.Percent)
		case !entered:
			entered = true
			rp.Recorder.Eventf(pool, nil, corev1.EventTypeWarning, tier.Event, "Allocate", "%s", now.Message)
		}
	}
}

// reportBlocks publishes the blocks of a carved pool.
func (rp *poolReporter) reportBlocks(pool, old v1alpha1.Pool, labels []string) {
	metrics.PoolBlocks.WithLabelValues(labels...).Set(float64(len(pool.PoolStatus().Blocks)))
	for _, b := range pool.PoolStatus().Blocks {
		if !grants.IsBlockOpenInStatus(old.PoolStatus(), b.Allocation) {
			rp.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "BlockOpened", "Grow", "addresses are granted from %s now (IPAllocation %s)", b.Range, b.Allocation)
		}
	}
	for _, b := range old.PoolStatus().Blocks {
		if !grants.IsBlockOpenInStatus(pool.PoolStatus(), b.Allocation) {
			rp.Recorder.Eventf(pool, nil, corev1.EventTypeNormal, "BlockClosed", "Shrink", "%s goes back to %s (IPAllocation %s)", b.Range, pool.PoolSpec().Carve.PoolRef.Name, b.Allocation)
		}
	}
}

// recordPoolRefusedEvent records an event that a pool cannot be written.
func (rp *poolReporter) recordPoolRefusedEvent(p *grants.Pool) {
	m := p.Lock()
	base, refusal := m.Base.Pool, m.Term.WriteRefusal
	m.Unlock()
	rp.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "PoolStatusRefused", "Allocate", "%s", refusal.Message)
}
