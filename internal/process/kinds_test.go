package process

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// failingRESTMapper is an API server that does not answer which kinds it has.
type failingRESTMapper struct{ meta.RESTMapper }

func (failingRESTMapper) RESTMapping(schema.GroupKind, ...string) (*meta.RESTMapping, error) {
	return nil, errors.New("connection refused")
}

func TestCheckKinds(t *testing.T) {
	with := func(groups ...schema.GroupVersion) meta.RESTMapper {
		m := meta.NewDefaultRESTMapper(groups)
		for _, g := range groups {
			for _, kind := range []string{"Cluster", "IPAddressClaim", "IPAddress", "NetworkPool", "GlobalNetworkPool", "IPAllocation", "IPLease", "ProviderConfig"} {
				m.Add(g.WithKind(kind), meta.RESTScopeNamespace)
			}
		}
		return m
	}
	old := schema.GroupVersion{Group: clusterv1.GroupVersion.Group, Version: "v1beta1"}
	for name, c := range map[string]struct {
		mapper meta.RESTMapper
		want   string
	}{
		"all":            {with(clusterv1.GroupVersion, ipamv1.GroupVersion, v1alpha1.GroupVersion), ""},
		"no Cluster API": {with(v1alpha1.GroupVersion), "Cluster API is not installed here, or older than v1.11: kind Cluster of cluster.x-k8s.io/v1beta2 is unknown"},
		"an old one":     {with(old, v1alpha1.GroupVersion), "Cluster API is not installed here, or older than v1.11: kind Cluster of cluster.x-k8s.io/v1beta2 is unknown"},
		"none of ours":   {with(clusterv1.GroupVersion, ipamv1.GroupVersion), "the CRDs of this provider are not installed here, or older than the manager: kind NetworkPool of butler.butlerlabs.dev/v1alpha1 is unknown"},
		"no answer":      {failingRESTMapper{}, "asking the API server which kinds it has: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := CheckKinds(c.mapper, KindsForPools); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestMissingKindAdviceHelps checks that the steps that the message names help (W29): after an installation a
// missing kind exists, and without the flag it is not required.
func TestMissingKindAdviceHelps(t *testing.T) {
	for wantError, needed := range map[string][]RequiredKinds{
		"MetalLB is not installed in this cluster; run without --service-leases, or install it":                             KindsForLeases,
		"the CRD of node-ipam-controller is not installed here; run without --serve-node-ipam-cluster-cidrs, or install it": KindsForNetworkingX,
	} {
		none, all := meta.NewDefaultRESTMapper(nil), meta.NewDefaultRESTMapper(nil)
		for _, n := range needed {
			for _, kind := range n.kinds {
				all.Add(n.group.WithKind(kind), meta.RESTScopeNamespace)
			}
		}
		if err := CheckKinds(none, needed); err == nil || !strings.HasPrefix(err.Error(), wantError) {
			t.Error(err)
		}
		for _, installed := range []error{CheckKinds(all, needed), CheckKinds(none, nil)} {
			if installed != nil {
				t.Error(installed)
			}
		}
	}
}
