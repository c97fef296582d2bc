package tenant

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metallb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// patience is how long a Service may wait for MetalLB while there is room for it.
const patience = 30 * time.Second

// toldAtOnce is how many Services are told at one look why they have no address.
const toldAtOnce = 20

// satisfaction is what is said of the demand of a Cluster; nothing while it is being met.
func satisfaction(a elastic.Assessment, plan elastic.Plan, s settings, exhausted, unplaced string) *metav1.Condition {
	lacking := a.Lacking[elastic.IPv4] + a.Lacking[elastic.IPv6]
	is := &metav1.Condition{Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse}
	switch {
	case lacking == 0 && unplaced != "":
		is.Reason, is.Message = v1alpha1.NotPlacedReason, unplaced
	case lacking == 0:
		is.Status, is.Reason, is.Message = metav1.ConditionTrue, v1alpha1.SatisfiedReason, "every Service that growth can help has an address, or is about to have one"
	case !s.elastic:
		is.Reason = v1alpha1.StaticReason
		is.Message = fmt.Sprintf("Services wait for %d more addresses, and allocationMode is static; delete Services, or set loadBalancer.allocationMode of the ProviderConfig to elastic", lacking)
	case exhausted != "":
		is.Reason, is.Message = v1alpha1.PoolExhaustedReason, exhausted
	case plan.QuotaReached:
		is.Reason = v1alpha1.QuotaReachedReason
		is.Message = fmt.Sprintf("Services wait for %d more addresses, and quotaPerTenant.maxLoadBalancerIPs is %d; delete Services, or raise the quota in the ProviderConfig", lacking, s.Quota)
	default:
		return nil
	}
	return is
}

// unplaced says which Services MetalLB leaves waiting although there is room for them, and why if that is known.
// Who has just begun to look does not take back what another manager said of them.
func (t *tenant) unplaced(ctx context.Context, observed *metallb.Observed, a elastic.Assessment) (string, error) {
	late, next := t.notes.unplaced(t.key, a.Verdicts, patience, t.now)
	if next > 0 {
		t.soon(next)
	}
	if len(late) == 0 {
		if _, was := t.demanded(); next > 0 && was != nil && was.Reason == v1alpha1.NotPlacedReason {
			return was.Message, nil
		}
		return "", nil
	}
	why, err := metallb.Refusal(ctx, t.live)
	if why == "" && len(observed.Problems) > 0 {
		why = observed.Problems[0].Error()
	}
	if why == "" {
		why = "see whether its controller runs, what it logs, and the events of the Service"
	}
	return fmt.Sprintf("MetalLB has room for Service %s and has given it no address for %s (Services like it: %d): %s",
		late[0].Key(), patience, len(late), why), err
}

func metalLBMissing() *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.MetalLBMissingReason,
		Message: "the Cluster has no MetalLB (" + metallb.Namespace + "); its blocks are shown to it as soon as that is installed",
	}
}

func tenantUnreachable() *metav1.Condition {
	return &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantUnreachableReason,
		Message: "the API server of the Cluster does not answer; it keeps all that it has",
	}
}

// demanded is the block that reports whether the Services of a Cluster have what they ask for, and what it tells now:
// the one that the Cluster began with, else its oldest.
func (t *tenant) demanded() (on *v1alpha1.IPAllocation, was *metav1.Condition) {
	for _, a := range t.blocks {
		if _, granted := rangeOf(a); granted && living(a) && (on == nil || tenancy.Role(on) == v1alpha1.GrowthRole && tenancy.Role(a) != v1alpha1.GrowthRole) {
			on = a
		}
	}
	if on == nil {
		return nil, nil
	}
	return on, meta.FindStatusCondition(on.Status.Conditions, v1alpha1.DemandSatisfiedCondition)
}

// demand writes whether the Services of a Cluster have what they ask for, and an event on the Cluster where they come
// to lack something.
func (t *tenant) demand(ctx context.Context, is *metav1.Condition) error {
	on, was := t.demanded()
	if on == nil || is == nil {
		return nil
	}
	is.Message = text.Message(is.Message) // it may be what the workload cluster says
	if is.Status == metav1.ConditionFalse && (was == nil || was.Reason != is.Reason) {
		t.Recorder.Eventf(t.cluster, nil, corev1.EventTypeWarning, "LoadBalancer"+is.Reason, "Allocate", "%s", is.Message)
	}
	return t.patchStatus(ctx, on, func(c *[]metav1.Condition) { meta.SetStatusCondition(c, *is) })
}

// observeServices keeps the metrics of a Cluster, and takes the time that Services wait for growth.
func (t *tenant) observeServices(a elastic.Assessment, described []elastic.Block) {
	metrics.Lacking.WithLabelValues(t.key.Namespace, t.key.Name).Set(float64(a.Lacking[elastic.IPv4] + a.Lacking[elastic.IPv6]))
	metrics.Stuck.WithLabelValues(t.key.Namespace, t.key.Name).Set(float64(a.Count(elastic.Stuck)))
	var total, used int64
	for _, r := range elastic.Living(described) {
		total += poolutil.Size(r)
		for addr := range a.Used {
			if r.Contains(addr) {
				used++
			}
		}
	}
	metrics.Supply.WithLabelValues(t.key.Namespace, t.key.Name).Set(float64(total - used))
	for _, waited := range t.notes.waiting(t.key, a.Verdicts, t.now) {
		metrics.ServiceWait.Observe(waited.Seconds())
	}
}

// tellServices says on the Services that no growth can help why they have no address, once. A workload cluster may have
// any number of them: the rest is told the next time, so that others are not kept waiting.
func (t *tenant) tellServices(ctx context.Context, a elastic.Assessment) error {
	t.notes.toldStuck(t.key, a.Verdicts)
	told := 0
	for _, v := range a.Verdicts {
		if v.State != elastic.Stuck || !t.notes.tell(t.key, v.Service.Key(), text.Note(v.Why)) {
			continue
		}
		if told++; told > toldAtOnce {
			t.notes.untell(t.key, v.Service.Key())
			t.soon(time.Second)
			return nil
		}
		if err := metallb.Tell(ctx, t.live, v.Service, "NoAddress", "more addresses for the cluster would not help: "+v.Why); err != nil {
			t.notes.untell(t.key, v.Service.Key())
			return err
		}
	}
	return nil
}
