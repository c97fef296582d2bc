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

// patience is how long a Service may wait for its load balancer while there is room for it.
const patience = 30 * time.Second

// reportedAtOnce is how many Services are told at one look why they have no address.
const reportedAtOnce = 20

// report says whether the Services of the Cluster have what they ask for, and those that no growth can help why not.
func (l *look) report(ctx context.Context, live client.Client, observed balancer.Observed, d demand.Decision, all allocations) (wait, error) {
	unplaced, next, err := l.unplaced(ctx, live, observed, d, all)
	is := d.Satisfied(unplaced)
	if foreign := observed.ForeignAdvertisement(d.Show); foreign != "" {
		is = &metav1.Condition{
			Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ForeignAdvertisementReason, Message: foreign,
		}
	}
	if l.serving.Kept() && (is == nil || is.Status == metav1.ConditionTrue) {
		is = l.kept(d)
	}
	_, unsaid := l.say(ctx, is, all)
	telling, untold := l.tellServices(ctx, live, d)
	return next.or(telling), errors.Join(err, unsaid, untold)
}

// kept says that the ProviderConfig names another load balancer than the one that is shown the blocks.
func (l *look) kept(d demand.Decision) *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.TypeChangedReason,
		Message: fmt.Sprintf("%s is shown the blocks of the Cluster, and ProviderConfig %s names %s; they stay where they are, as Services would lose "+
			"their addresses: set loadBalancer.type back, or delete the IPAllocations of the Cluster, which are made anew",
			l.serving.By, d.Config.Name, l.serving.Wanted),
	}
}

// say writes whether the Services of a Cluster have what they ask for, and an event on the Cluster where they come
// to lack something. Nil: nothing is said.
func (l *look) say(ctx context.Context, is *metav1.Condition, all allocations) (allocations, error) {
	on, was := demand.Speaker(all), demand.Said(all)
	if on == nil || is == nil {
		return all, nil
	}
	is.Message = text.Message(is.Message) // it may be what the workload cluster says
	lacks := is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason)
	all, err := l.patchStatus(ctx, all, on, func(c *[]metav1.Condition) { meta.SetStatusCondition(c, *is) })
	if err != nil {
		return all, err
	}
	if lacks && all.named(on.Name) != on { // it is written
		l.Recorder.Eventf(l.cluster, nil, corev1.EventTypeWarning, "LoadBalancer"+is.Reason, "Allocate", "%s", is.Message)
	}
	return l.unsay(ctx, all, on.UID)
}

// unsay takes off the blocks of a Cluster, but for the one that speaks, whether its Services have what they ask for: what was said
// on another block before, or of a Cluster that nothing more is asked for, is never said anew.
func (l *look) unsay(ctx context.Context, all allocations, speaks types.UID) (_ allocations, err error) {
	for _, a := range all {
		if a.UID == speaks || !tenancy.Speaks(a) {
			continue
		}
		if all, err = l.patchStatus(ctx, all, a, func(c *[]metav1.Condition) { meta.RemoveStatusCondition(c, v1alpha1.DemandSatisfiedCondition) }); err != nil {
			return all, err
		}
	}
	return all, nil
}

// unplaced says which Services wait although there is room for them, and why if that is known.
// Who has not yet known all of them for long leaves what is said of them already: another manager, that knows them longer,
// would write its own again, and so on.
func (l *look) unplaced(ctx context.Context, live client.Client, observed balancer.Observed, d demand.Decision, all allocations) (string, wait, error) {
	late, left := l.notes.unplaced(l.key, d.Verdicts, patience, l.now)
	next := wait(0)
	if left > 0 {
		next = in(left)
	}
	if was := demand.Said(all); left > 0 && was != nil && was.Reason == v1alpha1.NotPlacedReason {
		return was.Message, next, nil
	}
	if len(late) == 0 {
		return "", next, nil
	}
	why, err := observed.Unplaced(ctx, live, late[0])
	return fmt.Sprintf("%s has a free address for Service %s but has not assigned it for %s (Services affected: %d): %s",
		l.balancer().Name(), late[0].Key(), patience, len(late), why), next, err
}

func tenantUnreachable() *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason,
		Message: "the API server of the Cluster does not answer; the Cluster keeps all of its blocks",
	}
}

// measure keeps the metrics of a Cluster, and takes the time that Services wait for growth.
func (l *look) measure(d demand.Decision) {
	metrics.Lacking.WithLabelValues(l.key.Namespace, l.key.Name).Set(float64(d.Lacking[elastic.IPv4] + d.Lacking[elastic.IPv6]))
	metrics.Stuck.WithLabelValues(l.key.Namespace, l.key.Name).Set(float64(d.Count(elastic.Stuck)))
	metrics.Supply.WithLabelValues(l.key.Namespace, l.key.Name).Set(float64(elastic.Free(d.Blocks, d.Used)))
	for _, waited := range l.notes.waiting(l.key, d.Verdicts, l.now) {
		metrics.ServiceWait.Observe(waited.Seconds())
	}
}

// tellServices says on the Services that no growth can help why they have no address, once. A workload cluster may have
// any number of them: the rest is told the next time, so that others are not kept waiting.
func (l *look) tellServices(ctx context.Context, live client.Client, d demand.Decision) (wait, error) {
	l.notes.keepReported(l.key, d.Verdicts)
	reported := 0
	for _, v := range d.Verdicts {
		if v.State != elastic.Stuck || !l.notes.report(l.key, v.Service.Key(), text.Note(v.Why)) {
			continue
		}
		if reported++; reported > reportedAtOnce {
			l.notes.unreport(l.key, v.Service.Key())
			return in(time.Second), nil
		}
		if err := balancer.Tell(ctx, live, v.Service, "NoAddress", "this Service has no address, and more addresses would not help: "+v.Why); err != nil {
			l.notes.unreport(l.key, v.Service.Key())
			return 0, err
		}
	}
	return 0, nil
}
