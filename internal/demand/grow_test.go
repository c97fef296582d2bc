package demand

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// pool returns an open pool, of IPv6 if its name begins with 6.
func pool(name string) tenancy.Pool {
	return tenancy.Pool{
		Ref: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: name}, Availability: tenancy.PoolOpen, IsIPv6: strings.HasPrefix(name, "6"),
	}
}

func pools(names string) (out []tenancy.Pool) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, pool(name))
	}
	return out
}

// attempts returns failed attempts for one address each.
func attempts(names string) (out []tenancy.PoolAttempt) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, tenancy.PoolAttempt{Pool: pool(name).Ref, Count: 1, Reason: v1alpha1.PoolExhaustedReason})
	}
	return out
}

// formatStep formats a step: the action, the pool, the number of addresses, the pending request, and the attempts so
// far.
func formatStep(s GrowthStep) string {
	out := fmt.Sprint(s.Action)
	if s.Pool.Name != "" {
		out += fmt.Sprintf(" %s %d", s.Pool.Name, s.Count)
	}
	if s.PendingAllocation != nil {
		out += " over " + s.PendingAllocation.Name
	}
	for i, a := range s.Attempts {
		out += []string{", tried ", " "}[min(i, 1)] + a.Pool.Name
	}
	return out
}

// TestPlanGrowth checks that what is on its way is subtracted (B37), and that a pool that has refused is not asked
// again before it has room (B40).
func TestPlanGrowth(t *testing.T) {
	first := newAllocation(0, 1, withRange("10.0.0.1", "10.0.0.1", 1))
	tests := map[string]struct {
		reason          string
		pools           string // empty means "a 6"
		blocks          []*v1alpha1.IPAllocation
		shortfall, asks [2]int64 // of each family: the shortfall, and the part of it that the plan requests
		tried           string
		want            []string
	}{
		"Nothing":       {reason: "nothing is lacking", blocks: []*v1alpha1.IPAllocation{first}},
		"Asks":          {reason: "it has nothing on its way", blocks: []*v1alpha1.IPAllocation{first}, shortfall: [2]int64{2}, asks: [2]int64{4}, want: []string{"Try a 4"}},
		"Both":          {reason: "a block of each family", blocks: []*v1alpha1.IPAllocation{first}, shortfall: [2]int64{2, 1}, asks: [2]int64{2, 1}, want: []string{"Try a 2", "Try 6 1"}},
		"NotBegun":      {reason: "first what it begins with", blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1)}, shortfall: [2]int64{2}, asks: [2]int64{4}},
		"NoFirst":       {reason: "its first block is to come", shortfall: [2]int64{2}, asks: [2]int64{4}},
		"OnItsWay":      {reason: "enough was asked for", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, shortfall: [2]int64{2}},
		"MoreIsLacking": {reason: "it has an answer first", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, shortfall: [2]int64{3}, asks: [2]int64{1}, want: []string{"Wait over team-prod-lb-1"}},
		"Unneeded":      {reason: "no Service is short of it any more", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 2)}, want: []string{"Replace over team-prod-lb-1"}},
		"Refused":       {reason: "the next pool", pools: "a b", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, failed)}, shortfall: [2]int64{1}, asks: [2]int64{1}, want: []string{"Replace b 1 over team-prod-lb-1, tried a", "Done, tried a"}},
		"RefusedByAll":  {reason: "it waits with the first", pools: "a", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, failed)}, shortfall: [2]int64{1}, asks: [2]int64{1}, want: []string{"Exhausted over team-prod-lb-1, tried a", "Done, tried a"}},
		"QuotaReached":  {reason: "what failed is not asked for again", pools: "a", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, failed)}, shortfall: [2]int64{1}, want: []string{"Replace over team-prod-lb-1"}},
		"Met":           {reason: "what was tried is forgotten", blocks: []*v1alpha1.IPAllocation{first}, tried: tenancy.FormatAttempts(attempts("a")), want: []string{"Done"}},
		"Garbage":       {reason: "what cannot be read is forgotten too", blocks: []*v1alpha1.IPAllocation{first}, tried: "?", want: []string{"Done"}},
		"OtherFamily": {
			reason: "what was tried with pools of the other family stays", pools: "a b 6", blocks: []*v1alpha1.IPAllocation{first},
			shortfall: [2]int64{1}, asks: [2]int64{1}, tried: tenancy.FormatAttempts(attempts("6 a")), want: []string{"Try b 1, tried a 6", "Done, tried a"},
		},
		"OtherRequest":  {reason: "each family has its own", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, from("6"))}, shortfall: [2]int64{1, 1}, asks: [2]int64{1}, want: []string{"Try a 1"}},
		"UnlistedPool":  {reason: "what asks a pool that is named no more is of the first family", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, from("z"))}, shortfall: [2]int64{1}, asks: [2]int64{1}, want: []string{"Replace a 1 over team-prod-lb-1"}},
		"GrantedIsDone": {reason: "it is no request any more", blocks: []*v1alpha1.IPAllocation{first, newAllocation(1, 1, withRange("10.0.0.2", "10.0.0.2", 1))}, shortfall: [2]int64{1}, asks: [2]int64{1}, want: []string{"Try a 1"}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if c.pools == "" {
				c.pools = "a 6"
			}
			cluster := Cluster{
				Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools(c.pools), Blocks: c.blocks,
				Annotations: map[string]string{v1alpha1.TriedGrowthPoolsAnnotation: c.tried},
			}
			var plan elastic.Plan
			for f, n := range c.asks {
				if n > 0 {
					plan.Growths = append(plan.Growths, elastic.Growth{Family: elastic.Family(f), Count: n})
				}
			}
			var got []string
			for _, s := range cluster.planGrowth(elastic.Assessment{Shortfall: c.shortfall}, plan, tenancy.LoadBalancerSettings{Elastic: true}) {
				got = append(got, formatStep(s))
			}
			if strings.Join(got, "; ") != strings.Join(c.want, "; ") {
				t.Errorf("%s:\ngot  %q\nwant %q", c.reason, got, c.want)
			}
		})
	}
}

func TestNoGrowth(t *testing.T) {
	c := Cluster{Ref: tenant, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1, withRange("10.0.0.1", "10.0.0.1", 1))}}
	assessment, plan := elastic.Assessment{Shortfall: [2]int64{1}}, elastic.Plan{Growths: []elastic.Growth{{Count: 1}}}
	if got := c.planGrowth(assessment, plan, tenancy.LoadBalancerSettings{Elastic: true}); got != nil {
		t.Errorf("a Cluster that gets nothing new: %v", got)
	}
	c.ProviderConfig = &v1alpha1.ProviderConfig{}
	if got := c.planGrowth(assessment, plan, tenancy.LoadBalancerSettings{}); got != nil {
		t.Errorf("a static one: %v", got)
	}
}

// TestHasInitialBlock checks that only Clusters with their first block grow (B33).
func TestHasInitialBlock(t *testing.T) {
	none := &v1alpha1.LoadBalancerPool{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](0)}
	some := &v1alpha1.LoadBalancerPool{AllocationMode: v1alpha1.ElasticAllocation}
	tests := map[string]struct {
		reason string
		lb     *v1alpha1.LoadBalancerPool
		size   string
		blocks []*v1alpha1.IPAllocation
		want   bool
	}{
		"FromNothing": {reason: "initialPoolSize is 0", lb: none, want: true},
		"Annotated":   {reason: "the Cluster says so itself", lb: some, size: "0", want: true},
		"Unreadable":  {reason: "what it needs is unknown", lb: none, size: "?"},
		"ToCome":      {reason: "its first block was not made yet", lb: some},
		"Pending":     {reason: "nor granted", lb: some, blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1)}},
		"Granted":     {reason: "it has it", lb: some, blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1, withRange("10.0.0.1", "10.0.0.1", 1))}, want: true},
		"GrownOnly":   {reason: "others are not the first", lb: some, blocks: []*v1alpha1.IPAllocation{newAllocation(1, 1, withRange("10.0.0.1", "10.0.0.1", 1))}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := Cluster{
				Ref: tenant, Blocks: c.blocks, Annotations: map[string]string{},
				ProviderConfig: &v1alpha1.ProviderConfig{Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{LoadBalancer: c.lb}}},
			}
			if c.size != "" {
				cluster.Annotations[v1alpha1.LBPoolSizeAnnotation] = c.size
			}
			if got := cluster.hasInitialBlock(); got != c.want {
				t.Errorf("%s: %t", c.reason, got)
			}
		})
	}
}
