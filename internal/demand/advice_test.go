package demand

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// TestWaitingServiceMessagesNameStepsThatHelp checks that the waiting Services of a Cluster are served, or none waits
// any more, after the step that the message names (W29).
func TestWaitingServiceMessagesNameStepsThatHelp(t *testing.T) {
	decide := func(settings tenancy.LoadBalancerSettings, services int) Decision {
		c := Cluster{Ref: tenant, ProviderConfig: &v1alpha1.ProviderConfig{}, Pools: pools("a 9"), Blocks: []*v1alpha1.IPAllocation{newAllocation(0, 1, withRange("10.0.0.2", "10.0.0.2", 1))}}
		w := Workload{
			SharedPool: "all", IsEmptied: func(types.UID) bool { return false },
			AssessServices: func(shown []elastic.DesiredPool, grows string, families [2]bool) elastic.Assessment {
				in := elastic.Inventory{GrowableFamilies: families, Services: []elastic.Service{{Namespace: "ns", Name: "a", Families: []elastic.Family{elastic.IPv4}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}}}
				for i := 1; i < services; i++ {
					in.Services = append(in.Services, elastic.Service{Namespace: "ns", Name: "waits", Families: []elastic.Family{elastic.IPv4}})
				}
				for _, d := range shown {
					in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, ReceivesGrowth: d.Name == grows})
				}
				return elastic.AssessServices(in)
			},
		}
		return DecideBlocks(c, w, settings, time.Minute, epoch.Add(time.Hour))
	}
	asks := func(d Decision) bool {
		return len(d.GrowthSteps) == 1 && d.GrowthSteps[0].Action == tenancy.ActionCreate
	}
	static, atQuota := tenancy.LoadBalancerSettings{Increment: 1, Quota: -1}, tenancy.LoadBalancerSettings{Elastic: true, Increment: 1, Quota: 1}
	for _, c := range []struct {
		settings, changed tenancy.LoadBalancerSettings
		wantMessage       string
	}{
		{static, tenancy.LoadBalancerSettings{Elastic: true, Increment: 1, Quota: -1}, "delete Services, or set loadBalancer.allocationMode of the ProviderConfig to elastic"},
		{atQuota, tenancy.LoadBalancerSettings{Elastic: true, Increment: 1, Quota: 2}, "delete Services, or raise the quota in the ProviderConfig"},
	} {
		if condition := decide(c.settings, 2).DemandCondition(""); condition == nil || !strings.Contains(condition.Message, c.wantMessage) {
			t.Errorf("%+v", condition)
		}
		if condition := decide(c.settings, 1).DemandCondition(""); condition == nil || condition.Reason != v1alpha1.SatisfiedReason {
			t.Errorf("without the Service: %+v", condition)
		}
		if d := decide(c.changed, 2); !asks(d) || d.DemandCondition("") != nil {
			t.Errorf("it asks for %+v", d.GrowthSteps)
		}
	}
}
