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

// W29: the Services of a Cluster that wait are served, or none waits, when what is said is done.
func TestWhatIsSaidOfServicesThatWaitHelps(t *testing.T) {
	decide := func(settings tenancy.Settings, services int) Decision {
		c := Cluster{Ref: tenant, Config: &v1alpha1.ProviderConfig{}, Pools: pools("a 9"), Blocks: []*v1alpha1.IPAllocation{asked(0, 1, has("10.0.0.2", "10.0.0.2", 1))}}
		w := Workload{
			Pool: "all", Emptied: func(types.UID) bool { return false },
			Assess: func(shown []elastic.Desired, grows string, families [2]bool) elastic.Assessment {
				in := elastic.Inventory{Grows: families, Services: []elastic.Service{{Namespace: "ns", Name: "a", Families: []elastic.Family{elastic.IPv4}, Has: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}}}
				for i := 1; i < services; i++ {
					in.Services = append(in.Services, elastic.Service{Namespace: "ns", Name: "waits", Families: []elastic.Family{elastic.IPv4}})
				}
				for _, d := range shown {
					in.Pools = append(in.Pools, elastic.Pool{Name: d.Name, Ranges: d.Ranges, AutoAssign: true, Grows: d.Name == grows})
				}
				return elastic.Assess(in)
			},
		}
		return Decide(c, w, settings, time.Minute, epoch.Add(time.Hour))
	}
	asks := func(d Decision) bool { return len(d.Steps) == 1 && d.Steps[0].Action == tenancy.Try }
	static, atQuota := tenancy.Settings{Increment: 1, Quota: -1}, tenancy.Settings{Elastic: true, Increment: 1, Quota: 1}
	for _, c := range []struct {
		settings, changed tenancy.Settings
		says              string
	}{
		{static, tenancy.Settings{Elastic: true, Increment: 1, Quota: -1}, "delete Services, or set loadBalancer.allocationMode of the ProviderConfig to elastic"},
		{atQuota, tenancy.Settings{Elastic: true, Increment: 1, Quota: 2}, "delete Services, or raise the quota in the ProviderConfig"},
	} {
		if is := decide(c.settings, 2).Satisfied(""); is == nil || !strings.Contains(is.Message, c.says) {
			t.Errorf("%+v", is)
		}
		if is := decide(c.settings, 1).Satisfied(""); is == nil || is.Reason != v1alpha1.SatisfiedReason {
			t.Errorf("without the Service: %+v", is)
		}
		if d := decide(c.changed, 2); !asks(d) || d.Satisfied("") != nil {
			t.Errorf("it asks for %+v", d.Steps)
		}
	}
}
