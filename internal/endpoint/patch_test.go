package endpoint

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

func item(field, template string) hooksv1.GeneratePatchesRequestItem {
	return hooksv1.GeneratePatchesRequestItem{
		UID: "u", Object: runtime.RawExtension{Raw: []byte(template)},
		HolderReference: hooksv1.HolderReference{Kind: clusterv1.ClusterKind, FieldPath: field},
	}
}

func TestBuildPatches(t *testing.T) { // U42
	cases := map[string]struct {
		item     hooksv1.GeneratePatchesRequestItem
		port     int32
		endpoint clusterv1.APIEndpoint
		want     string
	}{
		"CAPV: the template has no spec": {
			item: item(infrastructureField, `{"kind": "VSphereClusterTemplate"}`),
			want: `{"spec":{"template":{"spec":{"controlPlaneEndpoint":{"host":"10.0.0.5","port":6443}}}}}`,
		},
		"CAPM3: a placeholder, and a port": {
			item: item(infrastructureField, `{"spec": {"template": {"spec": {"controlPlaneEndpoint": {"host": "127.0.0.1", "port": 443}}}}}`),
			want: `{"spec":{"template":{"spec":{"controlPlaneEndpoint":{"host":"10.0.0.5"}}}}}`,
		},
		"the port of the Cluster, where the template has none": {
			item: item(infrastructureField, `{"spec": {"template": {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.5", "port": 0}}}}}`), port: 8443,
			want: `{"spec":{"template":{"spec":{"controlPlaneEndpoint":{"port":8443}}}}}`,
		},
		"the port that the Cluster has already": {
			item: item(infrastructureField, `{}`), port: 8443, endpoint: clusterv1.APIEndpoint{Host: "10.0.0.5", Port: 443},
			want: `{"spec":{"template":{"spec":{"controlPlaneEndpoint":{"host":"10.0.0.5","port":443}}}}}`,
		},
		"it has the endpoint":     {item: item(infrastructureField, `{"spec": {"template": {"spec": {"controlPlaneEndpoint": {"host": "10.0.0.5", "port": 6443}}}}}`)},
		"a control plane":         {item: item(controlPlaneField, `{"spec": {"template": {"spec": {"controlPlaneEndpoint": {}}}}}`)},
		"machines":                {item: item("spec.machineTemplate.infrastructureRef", `{}`)},
		"the template of another": {item: hooksv1.GeneratePatchesRequestItem{HolderReference: hooksv1.HolderReference{Kind: "MachineDeployment", FieldPath: infrastructureField}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{}
			cluster.Spec.ClusterNetwork.APIServerPort = c.port
			cluster.Spec.ControlPlaneEndpoint = c.endpoint
			out, err := BuildPatches(cluster, []hooksv1.GeneratePatchesRequestItem{c.item}, netip.MustParseAddr("10.0.0.5"))
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range out {
				got += string(p.Patch)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
