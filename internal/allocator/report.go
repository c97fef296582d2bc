package allocator

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// capacityEvents names the event of each capacity condition (B76).
var capacityEvents = map[string]string{
	v1alpha1.CapacityWarningCondition:   "PoolCapacityWarning",
	v1alpha1.CapacityCriticalCondition:  "PoolCapacityCritical",
	v1alpha1.CapacityExhaustedCondition: "PoolCapacityExhausted",
}

// report publishes what a commit changed: gauges, and events where a condition turned.
func (a *Allocator) report(p *pool, before v1alpha1.Pool) {
	p.mu.Lock()
	now, s := a.now(), p.base.PoolStatus()
	waiting := p.pending.Len()
	base := p.base
	p.mu.Unlock()
	l := []string{p.key.Kind, p.key.Namespace, p.key.Name}
	metrics.PoolTotal.WithLabelValues(l...).Set(float64(s.TotalIPs))
	metrics.PoolAllocated.WithLabelValues(l...).Set(float64(s.AllocatedIPs))
	metrics.PoolAvailable.WithLabelValues(l...).Set(float64(s.AvailableIPs))
	metrics.PoolOutOfRange.WithLabelValues(l...).Set(float64(s.OutOfRangeIPs))
	metrics.PoolLargestFree.WithLabelValues(l...).Set(float64(s.LargestFreeBlock))
	metrics.PoolFragmentation.WithLabelValues(l...).Set(float64(s.FragmentationPercent))
	metrics.PoolCooling.WithLabelValues(l...).Set(float64(len(s.Cooling)))
	metrics.PoolWaiting.WithLabelValues(l...).Set(float64(waiting))
	metrics.PoolInFlight.WithLabelValues(l...).Set(float64(len(inFlightOf(s))))

	was := before.GetConditions()
	for _, tier := range capacityTiers {
		is := meta.FindStatusCondition(s.Conditions, tier.condition)
		if is == nil || meta.IsStatusConditionTrue(was, tier.condition) == (is.Status == metav1.ConditionTrue) {
			continue
		}
		if last, said := p.lastEvent[tier.condition]; said && now.Sub(last) < eventPause {
			continue // B77
		}
		p.lastEvent[tier.condition] = now
		if is.Status == metav1.ConditionTrue {
			a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, capacityEvents[tier.condition], "Allocate", "%s", is.Message)
		} else {
			a.Recorder.Eventf(base, nil, corev1.EventTypeNormal, "PoolCapacityRecovered", "Release",
				"%s, below %d%%", is.Message, tier.percent)
		}
	}
	for _, name := range []string{v1alpha1.ReadyCondition, v1alpha1.OverlapCondition} {
		is, old := meta.FindStatusCondition(s.Conditions, name), meta.FindStatusCondition(was, name)
		bad := (is.Status == metav1.ConditionTrue) == (name == v1alpha1.OverlapCondition)
		if bad && (old == nil || old.Status != is.Status || old.Reason != is.Reason) {
			a.Recorder.Eventf(base, nil, corev1.EventTypeWarning, "Pool"+is.Reason, "Allocate", "%s", is.Message)
		}
	}
}
