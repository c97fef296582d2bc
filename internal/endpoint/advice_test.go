package endpoint

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// W29: a Cluster whose control plane gets no address of a pool gets it, or is left alone, when what is said is done.
func TestWhatAClusterWithoutAnEndpointIsToldHelps(t *testing.T) {
	its := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "lab", UID: "lab-uid"}
	earlier := its
	earlier.UID = "other-uid"
	for name, c := range map[string]struct {
		is, done Seen
		says     string
		step     Step
	}{
		"it has another address, and its claim goes": {Seen{lab("10.0.0.5"), asking(bound), has("10.0.0.6")}, Seen{Cluster: lab("10.0.0.5")},
			"delete the claim, and take its owner reference off: it is made anew and asks for 10.0.0.5", Create},
		"the claim of another is given to it": {Seen{lab("10.0.0.5"), asking(ownedBy(), bound), has("10.0.0.5")}, Seen{lab("10.0.0.5"), asking(ownedBy(its), bound), has("10.0.0.5")},
			"give it to the Cluster: kubectl butler-ipam reserve lab-control-plane -n ns --pool POOL --cluster lab", Serve},
		"the claim of another is deleted":  {Seen{lab(""), asking(ownedBy(), bound), has("10.0.0.5")}, Seen{Cluster: lab("")}, "delete it only if nobody uses its address", Create},
		"what held its claim is gone":      {Seen{lab(""), asking(bound, going), nil}, Seen{Cluster: lab("")}, "if it stays, look at its finalizers", Create},
		"what held an earlier one is gone": {Seen{lab(""), asking(ownedBy(earlier)), nil}, Seen{Cluster: lab("")}, "If it stays, look at its finalizers", Create},
		"its pool is served":               {Seen{lab(""), asking(), nil}, Seen{lab(""), asking(bound), has("10.0.0.5")}, "see whether the pool exists, and whether the manager that serves it runs", Serve},
	} {
		if got := Decide(c.is, machines); got.Step == Serve || !strings.Contains(got.Message, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
		got := Decide(c.done, machines)
		if got.Step != c.step {
			t.Errorf("%s: afterwards %+v", name, got)
		}
		if had := c.done.Cluster.Spec.ControlPlaneEndpoint.Host; got.Step == Create && got.Claim.Annotations[v1alpha1.RequestedAddressAnnotation] != had {
			t.Errorf("%s: it asks for %v", name, got.Claim.Annotations)
		}
	}
	named := Seen{Cluster: lab("lab.example.com")}
	if got := Decide(named, machines); !strings.Contains(got.Message, `set the variable controlPlanePool of the Cluster to {name: ""}`) {
		t.Errorf("%+v", got)
	}
	if got := Decide(named, none); got.Step != Leave {
		t.Errorf("%+v", got)
	}
}

// W29: the file of kube-vip that is written plainly gets the address.
func TestAPlainFileGetsTheAddress(t *testing.T) {
	file := func(extra map[string]any) *unstructured.Unstructured {
		f := map[string]any{"path": "/etc/kubernetes/manifests/kube-vip.yaml", "content": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: kube-vip\n    env:\n    - name: address\n      value: 10.0.0.1\n"}
		for k, v := range extra {
			f[k] = v
		}
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"kubeadmConfigSpec": map[string]any{"files": []any{f}}}}}}}
	}
	address := netip.MustParseAddr("10.0.0.9")
	if _, err := filesPatch(file(map[string]any{"encoding": "base64"}), address); err == nil || !strings.Contains(err.Error(), "write it plainly, as content") {
		t.Error(err)
	}
	if patches, err := filesPatch(file(nil), address); err != nil || len(patches) != 1 {
		t.Errorf("%v, %v", patches, err)
	}
}
