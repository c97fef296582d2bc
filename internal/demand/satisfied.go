package demand

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Satisfied is what is said of the demand of a Cluster; nothing while it is being met. unplaced says which Services wait
// although there is room for them; empty: none.
func (d Decision) Satisfied(unplaced string) *metav1.Condition {
	lacking := d.Lacking[elastic.IPv4] + d.Lacking[elastic.IPv6]
	exhausted := d.exhausted()
	is := &metav1.Condition{Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse}
	switch {
	case lacking == 0 && unplaced != "":
		is.Reason, is.Message = v1alpha1.NotPlacedReason, unplaced
	case lacking == 0:
		is.Status, is.Reason, is.Message = metav1.ConditionTrue, v1alpha1.SatisfiedReason, "every Service that more addresses would help has an address, or is about to get one"
	case !d.Settings.Elastic:
		is.Reason = v1alpha1.StaticReason
		is.Message = fmt.Sprintf("Services wait for %s, and allocationMode is static; delete Services, or set loadBalancer.allocationMode of the ProviderConfig to elastic", more(lacking))
	case d.Unread != "":
		is.Reason, is.Message = v1alpha1.NotPlacedReason, "Services wait, and the Cluster gets no more addresses until this pool in it is corrected or deleted: "+d.Unread
	case exhausted != "":
		is.Reason, is.Message = v1alpha1.PoolExhaustedReason, exhausted
	case d.QuotaReached:
		is.Reason = v1alpha1.QuotaReachedReason
		is.Message = fmt.Sprintf("Services wait for %s, and quotaPerTenant.maxLoadBalancerIPs is %d; delete Services, or raise the quota in the ProviderConfig", more(lacking), d.Settings.Quota)
	default:
		return nil
	}
	return is
}

// exhausted is what is said where no pool has anything.
func (d Decision) exhausted() string {
	for i := len(d.Steps) - 1; i >= 0; i-- {
		if s := d.Steps[i]; s.Action == tenancy.Exhausted {
			return s.Message
		}
	}
	return ""
}

func more(n int64) string { return text.Count(n, "more address", "more addresses") }
