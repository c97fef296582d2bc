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

// TestMissingEndpointMessagesNameStepsThatHelp checks the advice for a Cluster whose control plane gets no address of a
// pool (W29): after a user follows it, the Cluster gets its address, or is left alone.
func TestMissingEndpointMessagesNameStepsThatHelp(t *testing.T) {
	its := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: "lab", UID: "lab-uid"}
	earlier := its
	earlier.UID = "other-uid"
	for name, c := range map[string]struct {
		state, done ObservedState
		wantMessage string
		step        Action
	}{
		"it has another address, and its claim goes": {ObservedState{newCluster("10.0.0.5"), newClaimOf(bound), newAddress("10.0.0.6")}, ObservedState{Cluster: newCluster("10.0.0.5")},
			"delete the claim, and remove its owner reference: it is recreated and asks for 10.0.0.5", ActionCreate},
		"the claim of another is given to it": {ObservedState{newCluster("10.0.0.5"), newClaimOf(ownedBy(), bound), newAddress("10.0.0.5")}, ObservedState{newCluster("10.0.0.5"), newClaimOf(ownedBy(its), bound), newAddress("10.0.0.5")},
			"adopt it: kubectl butler-ipam reserve lab-control-plane -n ns --pool POOL --cluster lab", ActionServe},
		"the claim of another is deleted":  {ObservedState{newCluster(""), newClaimOf(ownedBy(), bound), newAddress("10.0.0.5")}, ObservedState{Cluster: newCluster("")}, "delete it only if its address is not in use", ActionCreate},
		"what held its claim is gone":      {ObservedState{newCluster(""), newClaimOf(bound, markDeleted), nil}, ObservedState{Cluster: newCluster("")}, "if it stays, check its finalizers", ActionCreate},
		"what held an earlier one is gone": {ObservedState{newCluster(""), newClaimOf(ownedBy(earlier)), nil}, ObservedState{Cluster: newCluster("")}, "If it stays, check its finalizers", ActionCreate},
		"its pool is served":               {ObservedState{newCluster(""), newClaimOf(), nil}, ObservedState{newCluster(""), newClaimOf(bound), newAddress("10.0.0.5")}, "see whether the pool exists, and whether the manager that serves it runs", ActionServe},
	} {
		if got := DecideAction(c.state, machines); got.Action == ActionServe || !strings.Contains(got.Message, c.wantMessage) {
			t.Errorf("%s: %+v", name, got)
		}
		got := DecideAction(c.done, machines)
		if got.Action != c.step {
			t.Errorf("%s: afterwards %+v", name, got)
		}
		if had := c.done.Cluster.Spec.ControlPlaneEndpoint.Host; got.Action == ActionCreate && got.Claim.Annotations[v1alpha1.RequestedAddressAnnotation] != had {
			t.Errorf("%s: it asks for %v", name, got.Claim.Annotations)
		}
	}
	named := ObservedState{Cluster: newCluster("lab.example.com")}
	if got := DecideAction(named, machines); !strings.Contains(got.Message, `set the variable controlPlanePool of the Cluster to {name: ""}`) {
		t.Errorf("%+v", got)
	}
	if got := DecideAction(named, noPool); got.Action != ActionSkip {
		t.Errorf("%+v", got)
	}
}

// TestPlainFileGetsAddress checks that a file of kube-vip gets the address after a user writes it as plain content
// (W29).
func TestPlainFileGetsAddress(t *testing.T) {
	file := func(extra map[string]any) *unstructured.Unstructured {
		f := map[string]any{"path": "/etc/kubernetes/manifests/kube-vip.yaml", "content": "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: kube-vip\n    env:\n    - name: address\n      value: 10.0.0.1\n"}
		for k, v := range extra {
			f[k] = v
		}
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"kubeadmConfigSpec": map[string]any{"files": []any{f}}}}}}}
	}
	address := netip.MustParseAddr("10.0.0.9")
	if _, err := newFilesPatch(file(map[string]any{"encoding": "base64"}), address); err == nil || !strings.Contains(err.Error(), "write it plainly, as content") {
		t.Error(err)
	}
	if patches, err := newFilesPatch(file(nil), address); err != nil || len(patches) != 1 {
		t.Errorf("%v, %v", patches, err)
	}
}
