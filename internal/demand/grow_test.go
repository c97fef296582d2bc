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

// pool is open, and its name begins with 6 where it is of IPv6.
func pool(name string) tenancy.Pool {
	return tenancy.Pool{
		Ref: v1alpha1.PoolReference{Kind: v1alpha1.NetworkPoolKind, Name: name}, State: tenancy.Open, IPv6: strings.HasPrefix(name, "6"),
	}
}

func pools(names string) (out []tenancy.Pool) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, pool(name))
	}
	return out
}

// attempts were made in vain, for one address each.
func attempts(names string) (out []tenancy.Attempt) {
	for name := range strings.FieldsSeq(names) {
		out = append(out, tenancy.Attempt{Pool: pool(name).Ref, Count: 1, Reason: v1alpha1.PoolExhaustedReason})
	}
	return out
}

// spell is a step in words: what is done, with which pool, for how many addresses, about which request, and what was
// tried by then.
func spell(s Step) string {
	out := fmt.Sprint(s.Action)
	if s.Pool.Name != "" {
		out += fmt.Sprintf(" %s %d", s.Pool.Name, s.Count)
	}
	if s.Request != nil {
		out += " over " + s.Request.Name
	}
	for i, a := range s.Tried {
		out += []string{", tried ", " "}[min(i, 1)] + a.Pool.Name
	}
	return out
}

// B37, B40.
func TestGrow(t *testing.T) {
	first := asked(0, 1, has("10.0.0.1", "10.0.0.1", 1))
	tests := map[string]struct {
		reason      string
		pools       string // "a 6" where empty
		blocks      []*v1alpha1.IPAllocation
		lacks, asks [2]int64 // of each family: what is lacking, and what of it is planned to be asked for
		tried       string
		want        []string
	}{
		"Nothing":       {reason: "nothing is lacking", blocks: []*v1alpha1.IPAllocation{first}},
		"Asks":          {reason: "it has nothing on its way", blocks: []*v1alpha1.IPAllocation{first}, lacks: [2]int64{2}, asks: [2]int64{4}, want: []string{"Try a 4"}},
		"Both":          {reason: "a block of each family", blocks: []*v1alpha1.IPAllocation{first}, lacks: [2]int64{2, 1}, asks: [2]int64{2, 1}, want: []string{"Try a 2", "Try 6 1"}},
		"NotBegun":      {reason: "first what it begins with", blocks: []*v1alpha1.IPAllocation{asked(0, 1)}, lacks: [2]int64{2}, asks: [2]int64{4}},
		"NoFirst":       {reason: "its first block is to come", lacks: [2]int64{2}, asks: [2]int64{4}},
		"OnItsWay":      {reason: "enough was asked for", blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, lacks: [2]int64{2}},
		"MoreIsLacking": {reason: "it has an answer first", blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, lacks: [2]int64{3}, asks: [2]int64{1}, want: []string{"Wait over team-prod-lb-1"}},
		"Unneeded":      {reason: "nobody lacks it any more", blocks: []*v1alpha1.IPAllocation{first, asked(1, 2)}, want: []string{"Replace over team-prod-lb-1"}},
		"Refused":       {reason: "the next pool", pools: "a b", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, failed)}, lacks: [2]int64{1}, asks: [2]int64{1}, want: []string{"Replace b 1 over team-prod-lb-1, tried a", "Done, tried a"}},
		"RefusedByAll":  {reason: "it waits with the first", pools: "a", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, failed)}, lacks: [2]int64{1}, asks: [2]int64{1}, want: []string{"Exhausted over team-prod-lb-1, tried a", "Done, tried a"}},
		"QuotaReached":  {reason: "what failed is not asked for again", pools: "a", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, failed)}, lacks: [2]int64{1}, want: []string{"Replace over team-prod-lb-1"}},
		"Met":           {reason: "what was tried is forgotten", blocks: []*v1alpha1.IPAllocation{first}, tried: tenancy.FormatTried(attempts("a")), want: []string{"Done"}},
		"Garbage":       {reason: "what cannot be read is forgotten too", blocks: []*v1alpha1.IPAllocation{first}, tried: "?", want: []string{"Done"}},
		"OtherFamily": {
			reason: "what was tried with pools of the other family stays", pools: "a b 6", blocks: []*v1alpha1.IPAllocation{first},
			lacks: [2]int64{1}, asks: [2]int64{1}, tried: tenancy.FormatTried(attempts("6 a")), want: []string{"Try b 1, tried a 6", "Done, tried a"},
		},
		"OtherRequest":  {reason: "each family has its own", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, from("6"))}, lacks: [2]int64{1, 1}, asks: [2]int64{1}, want: []string{"Try a 1"}},
		"UnlistedPool":  {reason: "what asks a pool that is named no more is of the first family", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, from("z"))}, lacks: [2]int64{1}, asks: [2]int64{1}, want: []string{"Replace a 1 over team-prod-lb-1"}},
		"GrantedIsDone": {reason: "it is no request any more", blocks: []*v1alpha1.IPAllocation{first, asked(1, 1, has("10.0.0.2", "10.0.0.2", 1))}, lacks: [2]int64{1}, asks: [2]int64{1}, want: []string{"Try a 1"}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if c.pools == "" {
				c.pools = "a 6"
			}
			cluster := Cluster{
				Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools(c.pools), Blocks: c.blocks,
				Annotations: map[string]string{v1alpha1.TriedGrowthPoolsAnnotation: c.tried},
			}
			var plan elastic.Plan
			for f, n := range c.asks {
				if n > 0 {
					plan.Grow = append(plan.Grow, elastic.Growth{Family: elastic.Family(f), Count: n})
				}
			}
			var got []string
			for _, s := range cluster.grow(elastic.Assessment{Lacking: c.lacks}, plan, tenancy.Settings{Elastic: true}) {
				got = append(got, spell(s))
			}
			if strings.Join(got, "; ") != strings.Join(c.want, "; ") {
				t.Errorf("%s:\ngot  %q\nwant %q", c.reason, got, c.want)
			}
		})
	}
}

func TestGrowsNot(t *testing.T) {
	c := Cluster{Ref: tenant, Pools: pools("a"), Blocks: []*v1alpha1.IPAllocation{asked(0, 1, has("10.0.0.1", "10.0.0.1", 1))}}
	lacks, plan := elastic.Assessment{Lacking: [2]int64{1}}, elastic.Plan{Grow: []elastic.Growth{{Count: 1}}}
	if got := c.grow(lacks, plan, tenancy.Settings{Elastic: true}); got != nil {
		t.Errorf("a Cluster that gets nothing new: %v", got)
	}
	c.Config = &v1alpha1.ProviderConfig{}
	if got := c.grow(lacks, plan, tenancy.Settings{}); got != nil {
		t.Errorf("a static one: %v", got)
	}
}

// B33.
func TestBegun(t *testing.T) {
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
		"Unreadable":  {reason: "nobody knows what it wants", lb: none, size: "?"},
		"ToCome":      {reason: "its first block was not made yet", lb: some},
		"Pending":     {reason: "nor granted", lb: some, blocks: []*v1alpha1.IPAllocation{asked(0, 1)}},
		"Granted":     {reason: "it has it", lb: some, blocks: []*v1alpha1.IPAllocation{asked(0, 1, has("10.0.0.1", "10.0.0.1", 1))}, want: true},
		"GrownOnly":   {reason: "others are not the first", lb: some, blocks: []*v1alpha1.IPAllocation{asked(1, 1, has("10.0.0.1", "10.0.0.1", 1))}},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := Cluster{
				Ref: tenant, Blocks: c.blocks, Annotations: map[string]string{},
				Config: &v1alpha1.ProviderConfig{Spec: v1alpha1.ProviderConfigSpec{Network: &v1alpha1.ProviderNetwork{LoadBalancer: c.lb}}},
			}
			if c.size != "" {
				cluster.Annotations[v1alpha1.LBPoolSizeAnnotation] = c.size
			}
			if got := cluster.begun(); got != c.want {
				t.Errorf("%s: %t", c.reason, got)
			}
		})
	}
}
