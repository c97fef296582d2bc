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
func (sc *scope) reportDemand(ctx context.Context, live client.Client, observed balancer.ObservedCluster, d demand.Decision, all allocations) (requeueDelay, error) {
	unplaced, next, err := sc.describeUnplaced(ctx, live, observed, d, all)
	condition := d.DemandCondition(unplaced)
	if foreign := observed.DescribeForeignAdvertisement(d.DesiredPools); foreign != "" {
		condition = &metav1.Condition{
			Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ForeignAdvertisementReason, Message: foreign,
		}
	}
	if sc.loadBalancer.KeepsPrevious() && (condition == nil || condition.Status == metav1.ConditionTrue) {
		condition = sc.typeChangedCondition(d)
	}
	_, conditionErr := sc.setDemandCondition(ctx, condition, all)
	eventDelay, eventErr := sc.recordEventsForServices(ctx, live, d)
	return next.minWait(eventDelay), errors.Join(err, conditionErr, eventErr)
}

// typeChangedCondition returns the condition that the ProviderConfig names another load balancer than the one that is
// shown the blocks.
func (sc *scope) typeChangedCondition(d demand.Decision) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.TypeChangedReason,
		Message: fmt.Sprintf("%s is shown the blocks of the Cluster, and ProviderConfig %s names %s; they stay where they are, as Services would lose "+
			"their addresses: set loadBalancer.type back, or delete the IPAllocations of the Cluster, which are then recreated",
			sc.loadBalancer.Active, d.ProviderConfig.Name, sc.loadBalancer.Configured),
	}
}

// setDemandCondition writes whether the Services of a Cluster have what they request, and an event on the Cluster when
// something begins to be missing. If condition is nil, nothing is written.
func (sc *scope) setDemandCondition(ctx context.Context, condition *metav1.Condition, all allocations) (allocations, error) {
	on, old := demand.ConditionHolder(all), demand.CurrentCondition(all)
	if on == nil || condition == nil {
		return all, nil
	}
	condition.Message = text.SanitizeMessage(condition.Message) // it may come from the workload cluster
	startsShortfall := condition.Status == metav1.ConditionFalse && (old == nil || old.Reason != condition.Reason)
	all, err := sc.patchConditions(ctx, all, on, func(c *[]metav1.Condition) { meta.SetStatusCondition(c, *condition) })
	if err != nil {
		return all, err
	}
	if startsShortfall && all.findByName(on.Name) != on { // the condition is written
		sc.Recorder.Eventf(sc.cluster, nil, corev1.EventTypeWarning, "LoadBalancer"+condition.Reason, "Allocate", "%s", condition.Message)
	}
	return sc.removeDemandConditions(ctx, all, on.UID)
}

// removeDemandConditions removes the condition DemandSatisfied from all blocks of a Cluster except the one whose UID is
// holder. A condition on another block, or of a Cluster that requests nothing more, would never be updated again.
func (sc *scope) removeDemandConditions(ctx context.Context, all allocations, holder types.UID) (_ allocations, err error) {
	for _, a := range all {
		if a.UID == holder || !tenancy.HasDemandCondition(a) {
			continue
		}
		if all, err = sc.patchConditions(ctx, all, a, func(c *[]metav1.Condition) { meta.RemoveStatusCondition(c, v1alpha1.DemandSatisfiedCondition) }); err != nil {
			return all, err
		}
	}
	return all, nil
}

// describeUnplaced returns which Services wait although there is room for them, and why if that is known. A manager
// that has not known all of them for long enough keeps the current message: another manager, which has known them
// longer, would write its own again, and so on.
func (sc *scope) describeUnplaced(ctx context.Context, live client.Client, observed balancer.ObservedCluster, d demand.Decision, all allocations) (string, requeueDelay, error) {
	late, left := sc.tracker.trackPlacementWaits(sc.clusterKey, d.ServiceAssessments, placementTimeout, sc.now)
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
		sc.activeBalancer().Name(), late[0].Key(), placementTimeout, len(late), why), next, err
}

func unreachableCondition() *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason,
		Message: "the API server of the Cluster does not answer; the Cluster keeps all of its blocks",
	}
}

// updateMetrics sets the metrics of a Cluster, and observes how long Services wait for growth.
func (sc *scope) updateMetrics(d demand.Decision) {
	metrics.TenantShortfall.WithLabelValues(sc.clusterKey.Namespace, sc.clusterKey.Name).Set(float64(d.Shortfall[elastic.IPv4] + d.Shortfall[elastic.IPv6]))
	metrics.TenantStuckServices.WithLabelValues(sc.clusterKey.Namespace, sc.clusterKey.Name).Set(float64(d.CountInState(elastic.ServiceStuck)))
	metrics.TenantFreeAddresses.WithLabelValues(sc.clusterKey.Namespace, sc.clusterKey.Name).Set(float64(elastic.CountFreeAddresses(d.Blocks, d.UsedAddresses)))
	for _, waited := range sc.tracker.trackGrowthWaits(sc.clusterKey, d.ServiceAssessments, sc.now) {
		metrics.TenantServiceWait.Observe(waited.Seconds())
	}
}

// recordEventsForServices records events on the Services that no growth can help: why they have no address, once. A
// workload cluster may have any number of them: the rest follows in the next reconcile, so that other Clusters do not
// wait.
func (sc *scope) recordEventsForServices(ctx context.Context, live client.Client, d demand.Decision) (requeueDelay, error) {
	sc.tracker.pruneReported(sc.clusterKey, d.ServiceAssessments)
	reported := 0
	for _, v := range d.ServiceAssessments {
		if v.State != elastic.ServiceStuck || !sc.tracker.addReported(sc.clusterKey, v.Service.Key(), text.SanitizeNote(v.Message)) {
			continue
		}
		if reported++; reported > maxServiceEvents {
			sc.tracker.removeReported(sc.clusterKey, v.Service.Key())
			return newRequeueDelay(time.Second), nil
		}
		if err := balancer.EmitEvent(ctx, live, v.Service, "NoAddress", "this Service has no address, and more addresses would not help: "+v.Message); err != nil {
			sc.tracker.removeReported(sc.clusterKey, v.Service.Key())
			return 0, err
		}
	}
	return 0, nil
}
