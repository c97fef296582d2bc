package endpoint

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
)

func TestPoolForCluster(t *testing.T) { // U41
	const ours, inCluster = "butler.butlerlabs.dev", "ipam.cluster.x-k8s.io"
	machines := map[string]string{PoolNameSetting: "machines"}
	cases := map[string]struct {
		settings map[string]string
		variable string
		want     ipamv1.IPPoolReference
		err      string
	}{
		"the settings":         {settings: machines, want: ipamv1.IPPoolReference{APIGroup: ours, Kind: "NetworkPool", Name: "machines"}},
		"the variable":         {settings: machines, variable: `{"name": "rack-1"}`, want: ipamv1.IPPoolReference{APIGroup: ours, Kind: "NetworkPool", Name: "rack-1"}},
		"the variable alone":   {variable: `{"kind": "GlobalNetworkPool", "name": "all"}`, want: ipamv1.IPPoolReference{APIGroup: ours, Kind: "GlobalNetworkPool", Name: "all"}},
		"none":                 {settings: machines, variable: `{"name": ""}`},
		"of in-cluster":        {variable: `{"kind": "InClusterIPPool", "name": "old"}`, want: ipamv1.IPPoolReference{APIGroup: inCluster, Kind: "InClusterIPPool", Name: "old"}},
		"no pool":              {err: "no pool is named"},
		"an unknown kind":      {variable: `{"kind": "IPPool", "name": "m3"}`, err: `has kind "IPPool", which is none of GlobalInClusterIPPool, GlobalNetworkPool, InClusterIPPool, NetworkPool`},
		"a variable of no use": {variable: `"rack-1"`, err: "cannot be read"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{}
			if c.variable != "" {
				cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: PoolVariable, Value: apiextensionsv1.JSON{Raw: []byte(c.variable)}}}
			}
			got, err := PoolForCluster(cluster, c.settings)
			if (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%v, not %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("%v, not %v", got, c.want)
			}
		})
	}
}

// TestCheckClassSettings checks that the settings of a request count only if the class has the same.
func TestCheckClassSettings(t *testing.T) { // U49
	const ours = PatchesHandler + ".butler-ipam"
	machines, others := map[string]string{PoolNameSetting: "machines"}, map[string]string{PoolNameSetting: "theirs"}
	cases := map[string]struct {
		extension       string
		class, settings map[string]string
		want            bool
	}{
		"what the class says":           {ours, machines, machines, true},
		"neither names a pool":          {ours, nil, nil, true},
		"a request that a user made up": {ours, machines, others, false},
		"another kind":                  {ours, machines, map[string]string{PoolNameSetting: "machines", PoolKindSetting: "GlobalNetworkPool"}, false},
		"another extension":             {"other.butler-ipam", machines, machines, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			class := &clusterv1.ClusterClass{}
			class.Namespace, class.Name = "ns", "class"
			class.Spec.Patches = []clusterv1.ClusterClassPatch{
				{Name: "inline"}, {Name: "ours", External: &clusterv1.ExternalPatchDefinition{GeneratePatchesExtension: c.extension, Settings: c.class}},
			}
			err := CheckClassSettings(class, c.settings)
			if (err == nil) != c.want || err != nil && !strings.Contains(err.Error(), "no patch of ClusterClass ns/class names") {
				t.Error(err)
			}
		})
	}
}
