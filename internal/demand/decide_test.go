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

// A Cluster with a block that is used, one that is idle for longer than the grace, and one that is drained: what is
// assessed are all that it may use, what is shown are those that stay, and growth is asked for of the family that lacks
// addresses.
func TestDecide(t *testing.T) {
	c := Cluster{
		Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a 6"),
		Blocks: []*v1alpha1.IPAllocation{
			asked(1, 1, has("10.0.0.1", "10.0.0.1", 1), says(v1alpha1.DrainingCondition, metav1.ConditionTrue, "x")),
			asked(0, 1, has("10.0.0.2", "10.0.0.2", 1)),
			asked(2, 1, has("10.0.0.3", "10.0.0.3", 1), says(v1alpha1.InUseCondition, metav1.ConditionFalse, "x")),
		},
	}
	service := func(name string, f elastic.Family, has ...netip.Addr) elastic.Service {
		return elastic.Service{Namespace: "ns", Name: name, Families: []elastic.Family{f}, Has: has}
	}
	usable := ""
	w := Workload{
		Assess: func(shown []elastic.Desired, grows string, families [2]bool) elastic.Assessment {
			usable = fmt.Sprint(grows, shown[0].Ranges)
			in := elastic.Inventory{Grows: families, Services: []elastic.Service{service("a", elastic.IPv4, netip.MustParseAddr("10.0.0.2")), service("b", elastic.IPv6)}}
			for _, d := range shown {
				in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, Grows: d.Name == grows})
			}
			return elastic.Assess(in)
		},
		Pool: "all", Emptied: func(types.UID) bool { return false },
	}
	d := Decide(c, w, tenancy.Settings{Elastic: true, Increment: 2, Quota: -1}, time.Minute, epoch.Add(time.Hour))
	var steps []string
	for _, s := range d.Steps {
		steps = append(steps, spell(s))
	}
	for what, is := range map[string][2]any{
		"assessed": {usable, "all[10.0.0.2-10.0.0.2 10.0.0.3-10.0.0.3 10.0.0.1-10.0.0.1]"},
		"shown":    {fmt.Sprint(d.Show), "[{all [10.0.0.2-10.0.0.2 10.0.0.3-10.0.0.3] true false}]"},
		"lacking":  {d.Lacking, [2]int64{0, 1}},
		"steps":    {steps, []string{"Try 6 2"}},
		"drained":  {d.Drain, []string{"team-prod-lb-2"}},
		"marked":   {d.Marks, []elastic.Mark{{Block: "team-prod-lb-1"}}},
		"resumed":  {len(d.Resume), 0},
	} {
		if diff := cmp.Diff(is[1], is[0]); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
}
