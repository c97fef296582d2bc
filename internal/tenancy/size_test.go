package tenancy

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

type (
	network = v1alpha1.ProviderNetwork
	lb      = v1alpha1.LoadBalancerPool
	quota   = v1alpha1.TenantQuota
)

// TestComputeInitialSize checks where the size of the first block comes from (B22), that the quota limits it (B23), and
// that an elastic Cluster may begin without a block (F18).
func TestComputeInitialSize(t *testing.T) {
	elastic := func(initial *int32) *lb {
		return &lb{AllocationMode: v1alpha1.ElasticAllocation, DefaultPoolSize: ptr.To[int32](12), InitialPoolSize: initial}
	}
	ips := func(n int32) *quota { return &quota{MaxLoadBalancerIPs: &n} }
	tests := map[string]struct {
		reason      string
		network     network
		asked       string // the annotation; "-" for an empty one
		want        int32
		clamped     bool
		wantMessage string // part of the message, or of the error
	}{
		"Nothing":         {reason: "8 where no size is set", want: 8, wantMessage: "defaultPoolSize is 8"},
		"Empty":           {reason: "8 where loadBalancer says none", network: network{LoadBalancer: &lb{}}, want: 8},
		"Static":          {reason: "the ProviderConfig's size", network: network{LoadBalancer: &lb{DefaultPoolSize: ptr.To[int32](12), InitialPoolSize: ptr.To[int32](3)}}, want: 12, wantMessage: "defaultPoolSize is 12"},
		"Elastic":         {reason: "elastic Clusters begin with initialPoolSize, whatever defaultPoolSize is", network: network{LoadBalancer: elastic(ptr.To[int32](3))}, want: 3, wantMessage: "initialPoolSize is 3"},
		"ElasticNothing":  {reason: "2 where an elastic ProviderConfig says no size", network: network{LoadBalancer: elastic(nil)}, want: 2},
		"ElasticZero":     {reason: "a Cluster without ingress begins with nothing", network: network{LoadBalancer: elastic(ptr.To[int32](0))}, want: 0},
		"Asked":           {reason: "the Cluster's wish goes first", network: network{LoadBalancer: &lb{DefaultPoolSize: ptr.To[int32](12)}}, asked: "20", want: 20, wantMessage: "asks for 20"},
		"AskedElastic":    {reason: "in elastic mode too", network: network{LoadBalancer: elastic(ptr.To[int32](3))}, asked: "5", want: 5},
		"AskedZero":       {reason: "an elastic Cluster may begin with nothing", network: network{LoadBalancer: elastic(ptr.To[int32](3))}, asked: "0", want: 0},
		"Most":            {reason: "the largest count there is", asked: "2147483647", want: 2147483647},
		"Clamped":         {reason: "the quota caps the default", network: network{QuotaPerTenant: ips(4)}, want: 4, clamped: true, wantMessage: "maxLoadBalancerIPs allows 4"},
		"ClampedAsked":    {reason: "and the wish", network: network{QuotaPerTenant: ips(32)}, asked: "40", want: 32, clamped: true, wantMessage: "asks for 40 addresses; quotaPerTenant.maxLoadBalancerIPs allows 32"},
		"ClampedElastic":  {reason: "and elastic mode", network: network{LoadBalancer: elastic(ptr.To[int32](3)), QuotaPerTenant: ips(1)}, want: 1, clamped: true},
		"AtQuota":         {reason: "nothing is cut off at the quota itself", network: network{QuotaPerTenant: ips(8)}, want: 8},
		"NodeQuota":       {reason: "a quota of machine addresses is not for Services", network: network{QuotaPerTenant: &quota{MaxNodeIPs: ptr.To[int32](1)}}, want: 8},
		"ZeroStatic":      {reason: "a static Cluster would never get any", asked: "0", wantMessage: `is "0": write a whole number from 1`},
		"Word":            {reason: "a bad wish is said, not ignored", asked: "many", wantMessage: `is "many"`},
		"EmptyAsked":      {reason: "an empty annotation is no number", asked: "-", wantMessage: `is ""`},
		"Negative":        {reason: "less than nothing", network: network{LoadBalancer: elastic(nil)}, asked: "-1", wantMessage: "write a whole number from 0"},
		"Signed":          {reason: "digits only", asked: "+8", wantMessage: `is "+8"`},
		"Fraction":        {reason: "whole addresses only", asked: "8.5", wantMessage: `is "8.5"`},
		"Spaces":          {reason: "not even spaces", asked: " 8", wantMessage: "write a whole number"},
		"TooMany":         {reason: "more than a count can be", asked: "2147483648", wantMessage: "2147483647"},
		"BadDespiteQuota": {reason: "a quota does not make it right", network: network{QuotaPerTenant: ips(4)}, asked: "4294967297", wantMessage: "remove it"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			var annotations map[string]string
			if c.asked != "" {
				annotations = map[string]string{v1alpha1.LBPoolSizeAnnotation: strings.TrimSuffix(c.asked, "-")}
			}
			got, err := ComputeInitialSize(c.network, annotations)
			message := got.Message
			if err != nil {
				message = err.Error()
			}
			wantErr := c.want == 0 && !strings.HasSuffix(name, "Zero")
			if got.Count != c.want || got.Clamped != c.clamped || (err != nil) != wantErr || !strings.Contains(message, c.wantMessage) {
				t.Errorf("%s: got %+v, %v", c.reason, got, err)
			}
		})
	}
}
