package slim

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// full returns a Cluster in which every field that a real one has is set.
func full(paused *bool, notes map[string]string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "7", Generation: 3,
			Labels: map[string]string{"team": "a"}, Annotations: notes, Finalizers: []string{"f"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "K", Name: "n"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Spec: clusterv1.ClusterSpec{
			Paused:               paused,
			ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "h", Port: 6443},
			Topology:             clusterv1.Topology{Version: "v1.36.3"},
		},
		Status: clusterv1.ClusterStatus{Phase: "Provisioned"},
	}
}

// reducedCluster returns what identifies the Cluster, and what delays its deletion.
func reducedCluster(paused *bool, notes map[string]string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", ResourceVersion: "7", Annotations: notes, Finalizers: []string{"f"}},
		Spec:       clusterv1.ClusterSpec{Paused: paused},
	}
}

func TestTrimCluster(t *testing.T) { // W18 (only what is used is kept)
	other, both := map[string]string{"other": "x"}, map[string]string{"other": "x", clusterv1.PausedAnnotation: "true"}
	tests := map[string]struct {
		reason string
		in     *clusterv1.Cluster
		want   *clusterv1.Cluster
		paused bool
	}{
		"Neither":    {reason: "a Cluster that is not paused keeps its name", in: full(nil, other), want: reducedCluster(nil, nil)},
		"SpecFalse":  {reason: "false and absent stay apart", in: full(ptr.To(false), nil), want: reducedCluster(ptr.To(false), nil)},
		"Spec":       {reason: "spec.paused pauses", in: full(ptr.To(true), nil), want: reducedCluster(ptr.To(true), nil), paused: true},
		"Annotation": {reason: "so does the annotation, alone among others", in: full(nil, both), want: reducedCluster(nil, map[string]string{clusterv1.PausedAnnotation: "true"}), paused: true},
		"EmptyValue": {
			reason: "it is its presence that pauses, not its value",
			in:     full(nil, map[string]string{clusterv1.PausedAnnotation: ""}),
			want:   reducedCluster(nil, map[string]string{clusterv1.PausedAnnotation: ""}), paused: true,
		},
	}
	asks, wants := full(nil, map[string]string{v1alpha1.LBPoolSizeAnnotation: "4", v1alpha1.TriedPoolsAnnotation: "[]", "other": "x"}), reducedCluster(nil, map[string]string{
		v1alpha1.LBPoolSizeAnnotation: "4", v1alpha1.TriedPoolsAnnotation: "[]",
	})
	now := metav1.Now()
	for _, c := range []*clusterv1.Cluster{asks, wants} {
		c.DeletionTimestamp = &now
		c.Labels = map[string]string{v1alpha1.ProviderConfigLabel: "p", clusterv1.WatchLabel: "w"}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NetworkReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready"}}
	}
	asks.Labels["team"] = "a"
	asks.Status.Conditions = append(asks.Status.Conditions, metav1.Condition{Type: "Available"})
	network := tests["Neither"]
	network.reason, network.in, network.want = "what decides on its blocks", asks, wants
	tests["Network"] = network
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.in.DeepCopy()
			got, err := TrimCluster(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(any(tc.want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if c, ok := got.(*clusterv1.Cluster); !ok || annotations.IsPaused(c, c) != tc.paused {
				t.Errorf("%s: cluster-api would not read paused = %v from %v", tc.reason, tc.paused, got)
			}
			if diff := cmp.Diff(before, tc.in); diff != "" {
				t.Errorf("what comes in is changed (-before +after):\n%s", diff)
			}
			again, err := TrimCluster(got)
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("an informer may call it twice: %v (-once +twice):\n%s", err, diff)
			}
		})
	}
}

// TestClusterWithNodes checks that a Cluster with the label, whose Nodes get CIDRs, keeps what selects it, and the
// CIDRs of its Services.
func TestClusterWithNodes(t *testing.T) {
	in := full(nil, nil)
	in.Labels = map[string]string{v1alpha1.NodeCIDRsLabel: "", "net": "edge"}
	in.Spec.ClusterNetwork.Services.CIDRBlocks = []string{"10.96.0.0/12"}
	in.Status.Conditions = append(in.Status.Conditions, metav1.Condition{Type: v1alpha1.PodCIDRsReadyCondition, Message: "2 of 3 Nodes wait"})
	want := reducedCluster(nil, nil)
	want.Labels, want.Spec.ClusterNetwork.Services = in.Labels, in.Spec.ClusterNetwork.Services
	want.Status.Conditions = []metav1.Condition{{Type: v1alpha1.PodCIDRsReadyCondition, Message: "2 of 3 Nodes wait"}}
	got, err := TrimCluster(in)
	if diff := cmp.Diff(any(want), got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestClusterLeavesOthers checks that a tombstone passes through the transform unchanged.
func TestClusterLeavesOthers(t *testing.T) {
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "ns/c"}
	if got, err := TrimCluster(tombstone); err != nil || got != any(tombstone) {
		t.Errorf("Cluster(%v) = %v, %v, want it as it is", tombstone, got, err)
	}
}

func TestByObject(t *testing.T) {
	settings := CacheByObject()
	for kind, s := range settings {
		if _, ok := kind.(*clusterv1.Cluster); !ok || s.Transform == nil {
			t.Errorf("%T: %+v, want Clusters with a transform", kind, s)
			continue
		}
		got, err := s.Transform(full(nil, nil))
		if diff := cmp.Diff(any(reducedCluster(nil, nil)), got); diff != "" || err != nil {
			t.Errorf("the cache keeps more: %v (-want +got):\n%s", err, diff)
		}
	}
	if len(settings) != 1 {
		t.Errorf("%d kinds have settings, want Clusters alone", len(settings))
	}
}
