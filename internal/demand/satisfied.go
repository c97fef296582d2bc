package demand

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// DemandCondition returns the condition DemandSatisfied of a Cluster, nil while its demand is being met. unplaced
// names the Services that wait although there is room for them; empty if there are none.
func (d Decision) DemandCondition(unplaced string) *metav1.Condition {
	shortfall := d.Shortfall[elastic.IPv4] + d.Shortfall[elastic.IPv6]
	exhausted := d.exhaustedMessage()
	condition := &metav1.Condition{Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse}
	switch {
	case shortfall == 0 && unplaced != "":
		condition.Reason, condition.Message = v1alpha1.NotPlacedReason, unplaced
	case shortfall == 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.SatisfiedReason, "every Service that more addresses would help has an address, or is about to get one"
	case !d.Settings.Elastic:
		condition.Reason = v1alpha1.StaticReason
		condition.Message = fmt.Sprintf("Services wait for %s, and allocationMode is static; delete Services, or set loadBalancer.allocationMode of the ProviderConfig to elastic", formatMoreAddresses(shortfall))
	case d.UnreadablePool != "":
		condition.Reason, condition.Message = v1alpha1.NotPlacedReason, "Services wait, and the Cluster gets no more addresses until this pool in it is corrected or deleted: "+d.UnreadablePool
	case exhausted != "":
		condition.Reason, condition.Message = v1alpha1.PoolExhaustedReason, exhausted
	case d.QuotaReached:
		condition.Reason = v1alpha1.QuotaReachedReason
		condition.Message = fmt.Sprintf("Services wait for %s, and quotaPerTenant.maxLoadBalancerIPs is %d; delete Services, or raise the quota in the ProviderConfig", formatMoreAddresses(shortfall), d.Settings.Quota)
	default:
		return nil
	}
	return condition
}

// exhaustedMessage returns the message for a Cluster for which no pool has room, empty if that is not the case.
func (d Decision) exhaustedMessage() string {
	for i := len(d.GrowthSteps) - 1; i >= 0; i-- {
		if s := d.GrowthSteps[i]; s.Action == tenancy.ActionExhausted {
			return s.Message
		}
	}
	return ""
}

func formatMoreAddresses(n int64) string {
	return text.FormatCount(n, "more address", "more addresses")
}
