package cli

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestFindUnfinishedMoves checks that a move that has not ended shows on both sides: by pools that arrived, by
// addresses that left, and by Clusters that clusterctl has paused.
func TestFindUnfinishedMoves(t *testing.T) {
	paused := func(by string) clusterv1.Cluster {
		return clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:controlPlaneEndpoint":{}}}`)},
				{Manager: by, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:paused":{}}}`)},
			}},
			Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)},
		}
	}
	runs := paused("clusterctl")
	runs.Spec.Paused = nil
	pool := func(key, value string) *v1alpha1.NetworkPool {
		p := framework.MakePool("p").Namespace("ns").Obj()
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value)
		return p
	}
	gave := pool(v1alpha1.ManagementClusterAnnotation, "here")
	gave.Status.Held = []v1alpha1.HeldRange{{Reason: v1alpha1.MovedReason}}
	global := framework.MakeGlobalPool("p").Obj()
	metav1.SetMetaDataAnnotation(&global.ObjectMeta, v1alpha1.ManagementClusterAnnotation, "there")
	global.Status.Held = gave.Status.Held
	tests := map[string]struct {
		pool     v1alpha1.Pool
		clusters []clusterv1.Cluster
		want     string // empty for no finding
	}{
		"served here":             {pool: pool(v1alpha1.ManagementClusterAnnotation, "here"), clusters: []clusterv1.Cluster{runs}},
		"not marked":              {pool: pool("a", "b")},
		"paused by a person":      {pool: pool(v1alpha1.ManagementClusterAnnotation, "here"), clusters: []clusterv1.Cluster{paused("kubectl-edit")}},
		"global, copied and gone": {pool: global},
		"begun": {
			pool: pool(v1alpha1.ManagementClusterAnnotation, "here"), clusters: []clusterv1.Cluster{paused("clusterctl")},
			want: "a move of namespace ns has not ended; clusterctl has paused Cluster c; unpause them on the source",
		},
		"came": {
			pool: pool(v1alpha1.ManagementClusterAnnotation, "there"),
			want: "a move of namespace ns to here has not ended: NetworkPool p came from another management cluster, and nothing shows yet that all is here; resume",
		},
		"came with its Cluster": {
			pool: pool(v1alpha1.ManagementClusterAnnotation, "there"), clusters: []clusterv1.Cluster{paused("clusterctl")},
			want: "nothing shows yet that all is here; clusterctl has paused Cluster c; resume the move on its source",
		},
		"gave addresses away": {pool: gave, want: "a move of namespace ns from here has not ended: NetworkPool p is here, and addresses of it are not; unpause"},
		"a mirror that was made anew": {
			pool: pool(incluster.MovedFromAnnotation, "here"), want: "a move of namespace ns from here has not ended: NetworkPool p is here",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := findUnfinishedMoves([]v1alpha1.Pool{tc.pool}, tc.clusters, "here")
			if (tc.want == "") != (len(got) == 0) || !strings.Contains(fmt.Sprint(got), tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
