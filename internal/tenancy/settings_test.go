package tenancy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func TestSettingsFromConfig(t *testing.T) {
	of := func(l *lb, q *quota) *v1alpha1.ProviderConfig {
		return &v1alpha1.ProviderConfig{Spec: v1alpha1.ProviderConfigSpec{Network: &network{Mode: v1alpha1.IPAMMode, LoadBalancer: l, QuotaPerTenant: q}}}
	}
	defaults := LoadBalancerSettings{Increment: v1alpha1.DefaultGrowthIncrement, Quota: -1}
	with := func(change func(*LoadBalancerSettings)) LoadBalancerSettings {
		s := defaults
		change(&s)
		return s
	}
	tests := map[string]struct {
		reason        string
		config        *v1alpha1.ProviderConfig
		separatePools bool
		want          LoadBalancerSettings
	}{
		"None":      {reason: "it gets nothing new", want: defaults},
		"NoneApart": {reason: "what it has stays as it is", separatePools: true, want: with(func(s *LoadBalancerSettings) { s.PoolPerAllocation = true })},
		"Empty":     {reason: "nothing is said", config: of(nil, nil), want: defaults},
		"Together":  {reason: "what the ProviderConfig says counts, whatever there is", config: of(&lb{}, nil), separatePools: true, want: defaults},
		"Apart":     {reason: "as it says", config: of(&lb{Projection: v1alpha1.PoolPerAllocationProjection}, nil), want: with(func(s *LoadBalancerSettings) { s.PoolPerAllocation = true })},
		"All": {
			reason: "everything is said",
			config: of(&lb{AllocationMode: v1alpha1.ElasticAllocation, Class: "c", GrowthIncrement: ptr.To[int32](7)}, &quota{MaxLoadBalancerIPs: ptr.To[int32](0)}),
			want:   LoadBalancerSettings{Elastic: true, LoadBalancerClass: "c", Increment: 7},
		},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, SettingsFromConfig(c.config, c.separatePools)); diff != "" {
				t.Errorf("%s:\n%s", c.reason, diff)
			}
		})
	}
}

func TestNodeQuota(t *testing.T) {
	tests := map[string]struct {
		reason  string
		network network
		limit   int64
		limited bool
	}{
		"None":  {reason: "none is set", network: network{Mode: v1alpha1.IPAMMode}},
		"Other": {reason: "that is for Services", network: network{Mode: v1alpha1.IPAMMode, QuotaPerTenant: &quota{MaxLoadBalancerIPs: ptr.To[int32](1)}}},
		"Cloud": {reason: "addresses come from elsewhere", network: network{Mode: v1alpha1.CloudMode, QuotaPerTenant: &quota{MaxNodeIPs: ptr.To[int32](3)}}},
		"Some":  {reason: "as it says", network: network{Mode: v1alpha1.IPAMMode, QuotaPerTenant: &quota{MaxNodeIPs: ptr.To[int32](3)}}, limit: 3, limited: true},
		"Zero":  {reason: "none at all", network: network{Mode: v1alpha1.IPAMMode, QuotaPerTenant: &quota{MaxNodeIPs: ptr.To[int32](0)}}, limited: true},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			if limit, limited := NodeQuota(c.network); limit != c.limit || limited != c.limited {
				t.Errorf("%s: %d, %t", c.reason, limit, limited)
			}
		})
	}
}
