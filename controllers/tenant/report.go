package tenant

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// placementTimeout is how long a Service may wait for its load balancer while there is room for it.
const placementTimeout = 30 * time.Second

// maxServiceEvents is how many Services get an event in one reconcile that explains why they have no address.
const maxServiceEvents = 20

// reportDemand sets the condition whether the Services of the Cluster have what they request, and records on the
// Services that no growth can help why they have not.
func (l *scope) reportDemand(ctx context.Context, live client.Client, observed balancer.ObservedCluster, d demand.Decision, all allocations) (requeueDelay, error) {
	unplaced, next, err := l.describeUnplaced(ctx, live, observed, d, all)
	condition := d.DemandCondition(unplaced)
	if foreign := observed.DescribeForeignAdvertisement(d.DesiredPools); foreign != "" {
		condition = &metav1.Condition{
			Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ForeignAdvertisementReason, Message: foreign,
		}
	}
	if l.loadBalancer.KeepsPrevious() && (condition == nil || condition.Status == metav1.ConditionTrue) {
		condition = l.typeChangedCondition(d)
	}
	_, conditionErr := l.setDemandCondition(ctx, condition, all)
	eventDelay, eventErr := l.recordEventsForServices(ctx, live, d)
	return next.minWait(eventDelay), errors.Join(err, conditionErr, eventErr)
}

// typeChangedCondition returns the condition that the ProviderConfig names another load balancer than the one that is
// shown the blocks.
func (l *scope) typeChangedCondition(d demand.Decision) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.TypeChangedReason,
		Message: fmt.Sprintf("%s is shown the blocks of the Cluster, and ProviderConfig %s names %s; they stay where they are, as Services would lose "+
			"their addresses: set loadBalancer.type back, or delete the IPAllocations of the Cluster, which are then recreated",
			l.loadBalancer.Active, d.ProviderConfig.Name, l.loadBalancer.Configured),
	}
}

// setDemandCondition writes whether the Services of a Cluster have what they request, and an event on the Cluster when
// something begins to be missing. If condition is nil, nothing is written.
func (l *scope) setDemandCondition(ctx context.Context, condition *metav1.Condition, all allocations) (allocations, error) {
	on, old := demand.ConditionHolder(all), demand.CurrentCondition(all)
	if on == nil || condition == nil {
		return all, nil
	}
	condition.Message = text.SanitizeMessage(condition.Message) // it may come from the workload cluster
	startsShortfall := condition.Status == metav1.ConditionFalse && (old == nil || old.Reason != condition.Reason)
	all, err := l.patchConditions(ctx, all, on, func(c *[]metav1.Condition) { meta.SetStatusCondition(c, *condition) })
	if err != nil {
		return all, err
	}
	if startsShortfall && all.findByName(on.Name) != on { // the condition is written
		l.Recorder.Eventf(l.cluster, nil, corev1.EventTypeWarning, "LoadBalancer"+condition.Reason, "Allocate", "%s", condition.Message)
	}
	return l.removeDemandConditions(ctx, all, on.UID)
}

// removeDemandConditions removes the condition DemandSatisfied from all blocks of a Cluster except the one whose UID is
// holder. A condition on another block, or of a Cluster that requests nothing more, would never be updated again.
func (l *scope) removeDemandConditions(ctx context.Context, all allocations, holder types.UID) (_ allocations, err error) {
	for _, a := range all {
		if a.UID == holder || !tenancy.HasDemandCondition(a) {
			continue
		}
		if all, err = l.patchConditions(ctx, all, a, func(c *[]metav1.Condition) { meta.RemoveStatusCondition(c, v1alpha1.DemandSatisfiedCondition) }); err != nil {
			return all, err
		}
	}
	return all, nil
}

// describeUnplaced returns which Services wait although there is room for them, and why if that is known. A manager
// that has not known all of them for long enough keeps the current message: another manager, which has known them
// longer, would write its own again, and so on.
func (l *scope) describeUnplaced(ctx context.Context, live client.Client, observed balancer.ObservedCluster, d demand.Decision, all allocations) (string, requeueDelay, error) {
	late, left := l.tracker.trackPlacementWaits(l.clusterKey, d.ServiceAssessments, placementTimeout, l.now)
	next := requeueDelay(0)
	if left > 0 {
		next = newRequeueDelay(left)
	}
	if old := demand.CurrentCondition(all); left > 0 && old != nil && old.Reason == v1alpha1.NotPlacedReason {
		return old.Message, next, nil
	}
	if len(late) == 0 {
		return "", next, nil
	}
	why, err := observed.DescribeUnplaced(ctx, live, late[0])
	return fmt.Sprintf("%s has a free address for Service %s but has not assigned it for %s (Services affected: %d): %s",
		l.activeBalancer().Name(), late[0].Key(), placementTimeout, len(late), why), next, err
}

func unreachableCondition() *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason,
		Message: "the API server of the Cluster does not answer; the Cluster keeps all of its blocks",
	}
}

// updateMetrics sets the metrics of a Cluster, and observes how long Services wait for growth.
func (l *scope) updateMetrics(d demand.Decision) {
	metrics.TenantShortfall.WithLabelValues(l.clusterKey.Namespace, l.clusterKey.Name).Set(float64(d.Shortfall[elastic.IPv4] + d.Shortfall[elastic.IPv6]))
	metrics.TenantStuckServices.WithLabelValues(l.clusterKey.Namespace, l.clusterKey.Name).Set(float64(d.CountInState(elastic.ServiceStuck)))
	metrics.TenantFreeAddresses.WithLabelValues(l.clusterKey.Namespace, l.clusterKey.Name).Set(float64(elastic.CountFreeAddresses(d.Blocks, d.UsedAddresses)))
	for _, waited := range l.tracker.trackGrowthWaits(l.clusterKey, d.ServiceAssessments, l.now) {
		metrics.TenantServiceWait.Observe(waited.Seconds())
	}
}

// recordEventsForServices records events on the Services that no growth can help: why they have no address, once. A
// workload cluster may have any number of them: the rest follows in the next reconcile, so that other Clusters do not
// wait.
func (l *scope) recordEventsForServices(ctx context.Context, live client.Client, d demand.Decision) (requeueDelay, error) {
	l.tracker.pruneReported(l.clusterKey, d.ServiceAssessments)
	reported := 0
	for _, v := range d.ServiceAssessments {
		if v.State != elastic.ServiceStuck || !l.tracker.addReported(l.clusterKey, v.Service.Key(), text.SanitizeNote(v.Message)) {
			continue
		}
		if reported++; reported > maxServiceEvents {
			l.tracker.removeReported(l.clusterKey, v.Service.Key())
			return newRequeueDelay(time.Second), nil
		}
		if err := balancer.EmitEvent(ctx, live, v.Service, "NoAddress", "this Service has no address, and more addresses would not help: "+v.Message); err != nil {
			l.tracker.removeReported(l.clusterKey, v.Service.Key())
			return 0, err
		}
	}
	return 0, nil
}
