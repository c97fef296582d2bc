package tenancy

import (
	"math"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestEstimateCapacity checks how many more Clusters the pools can take (B78), with the sizes that Clusters really get
// (F16).
func TestEstimateCapacity(t *testing.T) {
	ipam := network{Mode: v1alpha1.IPAMMode}
	with := func(l *lb, q *quota) network {
		return network{Mode: v1alpha1.IPAMMode, LoadBalancer: l, QuotaPerTenant: q}
	}
	pool := func(state PoolAvailability, free int64, nodes int32) Pool {
		return Pool{Availability: state, AvailableIPs: free, NodesPerTenant: nodes}
	}
	elastic := func(n int32) *lb { return &lb{AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: &n} }
	tests := map[string]struct {
		reason        string
		network       network
		pools         []Pool
		free, tenants int64
	}{
		"Cloud":      {reason: "no pool is used", network: network{Mode: v1alpha1.CloudMode}, pools: []Pool{pool(PoolOpen, 100, 0)}},
		"NoPools":    {reason: "nothing is left of nothing", network: ipam},
		"Defaults":   {reason: "5 machines and 8 for Services", network: ipam, pools: []Pool{pool(PoolOpen, 767, 0)}, free: 767, tenants: 59},
		"Less":       {reason: "a part of a Cluster is none", network: ipam, pools: []Pool{pool(PoolOpen, 12, 0)}, free: 12},
		"Exact":      {reason: "a whole one is one", network: ipam, pools: []Pool{pool(PoolOpen, 13, 0)}, free: 13, tenants: 1},
		"Sum":        {reason: "all pools count", network: ipam, pools: []Pool{pool(PoolOpen, 10, 0), pool(PoolOpen, 16, 0)}, free: 26, tenants: 2},
		"PoolSays":   {reason: "the first pool knows its machines", network: ipam, pools: []Pool{pool(PoolOpen, 100, 12), pool(PoolOpen, 0, 1)}, free: 100, tenants: 5},
		"FirstSays":  {reason: "5 if the first says nothing, whatever others say", network: ipam, pools: []Pool{pool(PoolOpen, 130, 0), pool(PoolOpen, 0, 100)}, free: 130, tenants: 10},
		"FirstGone":  {reason: "a pool that is missing says nothing", network: ipam, pools: []Pool{pool(PoolMissing, 0, 0), pool(PoolOpen, 100, 12)}, free: 100, tenants: 5},
		"Static":     {reason: "what a Cluster really gets", network: with(&lb{DefaultPoolSize: ptr.To[int32](15)}, nil), pools: []Pool{pool(PoolOpen, 100, 0)}, free: 100, tenants: 5},
		"Elastic":    {reason: "an elastic one gets less", network: with(elastic(2), nil), pools: []Pool{pool(PoolOpen, 100, 0)}, free: 100, tenants: 14},
		"Nothing":    {reason: "or nothing", network: with(elastic(0), nil), pools: []Pool{pool(PoolOpen, 100, 0)}, free: 100, tenants: 20},
		"Quota":      {reason: "quotas make Clusters smaller", network: with(nil, &quota{MaxLoadBalancerIPs: ptr.To[int32](3), MaxNodeIPs: ptr.To[int32](2)}), pools: []Pool{pool(PoolOpen, 100, 0)}, free: 100, tenants: 20},
		"WideQuota":  {reason: "and never larger", network: with(nil, &quota{MaxLoadBalancerIPs: ptr.To[int32](99), MaxNodeIPs: ptr.To[int32](99)}), pools: []Pool{pool(PoolOpen, 130, 0)}, free: 130, tenants: 10},
		"Closed":     {reason: "a pool that grants nothing has nothing", network: ipam, pools: []Pool{pool(PoolClosed, 100, 0), pool(PoolOpen, 13, 0)}, free: 13, tenants: 1},
		"Settling":   {reason: "one that will soon, has", network: ipam, pools: []Pool{pool(PoolSettling, 13, 0)}, free: 13, tenants: 1},
		"Saturating": {reason: "IPv6 pools are large", network: ipam, pools: []Pool{pool(PoolOpen, math.MaxInt64, 0), pool(PoolOpen, math.MaxInt64, 0)}, free: math.MaxInt64, tenants: math.MaxInt64 / 13},
		"LargeSizes": {reason: "the largest sizes there are", network: with(&lb{DefaultPoolSize: ptr.To[int32](math.MaxInt32)}, nil), pools: []Pool{pool(PoolOpen, math.MaxInt64, math.MaxInt32)}, free: math.MaxInt64, tenants: math.MaxInt64 / (2 * math.MaxInt32)},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			want := v1alpha1.ProviderCapacity{AvailableIPs: c.free, EstimatedTenants: c.tenants}
			if got := EstimateCapacity(c.network, c.pools); got != want {
				t.Errorf("%s: got %+v, want %+v", c.reason, got, want)
			}
		})
	}
}
