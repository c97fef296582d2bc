package demand

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// TestDemandCondition checks the condition of a Cluster that the quota limits (B39), and the other reasons.
func TestDemandCondition(t *testing.T) {
	grows, exhausted := tenancy.LoadBalancerSettings{Elastic: true, Quota: 7}, []GrowthStep{
		{Decision: tenancy.Decision{Action: tenancy.ActionExhausted, Message: "no pool has IPv4"}},
		{Decision: tenancy.Decision{Action: tenancy.ActionExhausted, Message: "no pool has IPv6"}},
	}
	tests := map[string]struct {
		reason    string
		settings  tenancy.LoadBalancerSettings
		shortfall [2]int64
		quota     bool
		steps     []GrowthStep
		unplaced  string
		unread    string
		want      string // status, reason and a part of the message; empty: no condition
	}{
		"Met":        {reason: "no Service waits", settings: grows, want: "True Satisfied every Service that more addresses would help"},
		"MetStatic":  {reason: "in a static Cluster too", want: "True Satisfied"},
		"NotPlaced":  {reason: "MetalLB does not do its part", settings: grows, unplaced: "MetalLB sleeps", want: "False NotPlaced MetalLB sleeps"},
		"Lacks":      {reason: "it is being met", settings: grows, shortfall: [2]int64{1}},
		"LacksFirst": {reason: "what growth helps comes before what it does not", settings: grows, shortfall: [2]int64{1}, unplaced: "MetalLB sleeps"},
		"Static":     {reason: "it does not grow", shortfall: [2]int64{1, 2}, want: "False Static Services wait for 3 more addresses, and allocationMode is static"},
		"Exhausted":  {reason: "no pool has anything", settings: grows, shortfall: [2]int64{1}, steps: exhausted[:1], want: "False PoolExhausted no pool has IPv4"},
		"Both":       {reason: "one message has room for one family", settings: grows, shortfall: [2]int64{1, 1}, steps: exhausted, want: "False PoolExhausted no pool has IPv6"},
		"OneAsks":    {reason: "the other family is asked for", settings: grows, shortfall: [2]int64{1, 1}, steps: []GrowthStep{exhausted[0], {Decision: tenancy.Decision{Action: tenancy.ActionCreate}}}, want: "False PoolExhausted no pool has IPv4"},
		"Unread":     {reason: "what they may get is not known", settings: grows, shortfall: [2]int64{1}, quota: true, unread: "pool p has x", want: "False NotPlaced Services wait, and the Cluster gets no more addresses until this pool in it is corrected or deleted: pool p has x"},
		"UnreadMet":  {reason: "no Service waits", settings: grows, unread: "pool p has x", want: "True Satisfied"},
		"Quota":      {reason: "it may not have more", settings: grows, shortfall: [2]int64{0, 2}, quota: true, want: "False QuotaReached Services wait for 2 more addresses, and quotaPerTenant.maxLoadBalancerIPs is 7"},
		"QuotaFull":  {reason: "an empty pool is what is in the way first", settings: grows, shortfall: [2]int64{1}, quota: true, steps: exhausted[:1], want: "False PoolExhausted"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			d := Decision{Settings: c.settings, GrowthSteps: c.steps, UnreadablePool: c.unread}
			d.Shortfall, d.QuotaReached = c.shortfall, c.quota
			got := ""
			if condition := d.DemandCondition(c.unplaced); condition != nil {
				got = string(condition.Status) + " " + condition.Reason + " " + condition.Message
			}
			if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
				t.Errorf("%s: got %q", c.reason, got)
			}
		})
	}
}
