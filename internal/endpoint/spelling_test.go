package endpoint

import (
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

// TestAddressInAnotherSpelling checks that a manifest and a template that have the address, in any spelling, stay
// unchanged: a rewrite would replace machines.
func TestAddressInAnotherSpelling(t *testing.T) {
	address := netip.MustParseAddr("fd00::5")
	for _, value := range []string{"fd00::5", "FD00::5", "fd00:0:0::5", "\"fd00::0005\"", "' fd00::5'", "10.0.0.5,FD00::5"} {
		manifest := pod(env("name: address\n      value: " + value))
		got, err := setManifestAddress(manifest, address)
		if err != nil {
			t.Fatal(err)
		}
		if got != manifest {
			t.Errorf("value %s: the manifest is rewritten", value)
		}
	}
	for host, stays := range map[string]bool{"FD00::5": true, "fd00:0::0005": true, "fd00::6": false, "example.org": false, "": false} {
		cluster := &clusterv1.Cluster{}
		cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: host, Port: 6443}
		out, err := BuildPatches(cluster, []hooksv1.GeneratePatchesRequestItem{{
			HolderReference: hooksv1.HolderReference{Kind: "Cluster", FieldPath: infrastructureField},
			Object: runtime.RawExtension{Raw: []byte(
				`{"kind":"VSphereClusterTemplate","spec":{"template":{"spec":{"controlPlaneEndpoint":{"host":"` + host + `","port":6443}}}}}`)},
		}}, address)
		if err != nil || (len(out) == 0) != stays {
			t.Errorf("host %q: %d patches, %v", host, len(out), err)
		}
	}
}

// TestAliasedVariablesAreCopied checks that the variables of a container that are a YAML alias become its own, and that
// other users of the alias keep theirs.
func TestAliasedVariablesAreCopied(t *testing.T) {
	manifest := "kind: Pod\nx-env: &e\n- {name: vip_arp, value: \"true\"}\n- {name: address, value: 1.1.1.1}\nspec:\n  containers:\n  - name: kube-vip\n    env: *e\n  - name: other\n    env: *e\n"
	got, err := setManifestAddress(manifest, netip.MustParseAddr("10.0.0.5"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(got, "vip_arp") != 2 || strings.Count(got, "1.1.1.1") != 1 || strings.Count(got, "10.0.0.5") != 1 || strings.Count(got, "*e") != 1 {
		t.Errorf("got\n%s", got)
	}
	if again, err := setManifestAddress(got, netip.MustParseAddr("10.0.0.5")); err != nil || again != got {
		t.Errorf("the second time, %v:\n%s", err, again)
	}
	had := strings.ReplaceAll(manifest, "1.1.1.1", "10.0.0.5")
	if again, err := setManifestAddress(had, netip.MustParseAddr("10.0.0.5")); err != nil || again != had {
		t.Errorf("it has the address, %v:\n%s", err, again)
	}
}
