package demand

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// TestDecideBlocksOfCluster checks a Cluster with a block in use, one that has been idle for longer than the grace
// period, and one that is draining: the assessment covers all blocks that the Cluster may use, those that stay are
// projected, and growth is requested for the family with a shortfall.
func TestDecideBlocksOfCluster(t *testing.T) {
	c := Cluster{
		Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a 6"),
		Blocks: []*v1alpha1.IPAllocation{
			newAllocation(1, 1, withRange("10.0.0.1", "10.0.0.1", 1), withCondition(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")),
			newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1)),
			newAllocation(2, 1, withRange("10.0.0.3", "10.0.0.3", 1), withCondition(v1alpha1.InUseCondition, metav1.ConditionFalse, "x")),
		},
	}
	service := func(name string, f elastic.Family, addresses ...netip.Addr) elastic.Service {
		return elastic.Service{Namespace: "ns", Name: name, Families: []elastic.Family{f}, Addresses: addresses}
	}
	usable := ""
	w := Workload{
		AssessServices: func(shown []elastic.DesiredPool, grows string, families [2]bool) elastic.Assessment {
			usable = fmt.Sprint(grows, shown[0].Ranges)
			in := elastic.Inventory{GrowableFamilies: families, Services: []elastic.Service{service("a", elastic.IPv4, netip.MustParseAddr("10.0.0.2")), service("b", elastic.IPv6)}}
			for _, d := range shown {
				in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, ReceivesGrowth: d.Name == grows})
			}
			return elastic.AssessServices(in)
		},
		SharedPool: "all", IsEmptied: func(types.UID) bool { return false },
	}
	d := DecideBlocks(c, w, tenancy.LoadBalancerSettings{Elastic: true, Increment: 2, Quota: -1}, time.Minute, epoch.Add(time.Hour))
	var steps []string
	for _, s := range d.GrowthSteps {
		steps = append(steps, formatStep(s))
	}
	for name, pair := range map[string][2]any{
		"assessed": {usable, "all[10.0.0.2-10.0.0.2 10.0.0.3-10.0.0.3 10.0.0.1-10.0.0.1]"},
		"shown":    {fmt.Sprint(d.DesiredPools), "[{all [10.0.0.2-10.0.0.2 10.0.0.3-10.0.0.3] true false}]"},
		"lacking":  {d.Shortfall, [2]int64{0, 1}},
		"steps":    {steps, []string{"Try 6 2"}},
		"drained":  {d.BlocksToDrain, []string{"team-prod-lb-2"}},
		"marked":   {d.UsageChanges, []elastic.UsageChange{{Block: "team-prod-lb-1"}}},
		"resumed":  {len(d.BlocksToResume), 0},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
