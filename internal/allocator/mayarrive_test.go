package allocator

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// clusterList lists these Clusters, or fails.
type clusterList struct {
	client.Client

	clusters []clusterv1.Cluster
	err      error
}

func (c clusterList) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*clusterv1.ClusterList).Items = c.clusters
	return c.err
}

// TestAddressStaysWhilePoolMayArrive checks that an IPAddress stays while a restore may still bring its pool: a Cluster
// of the namespace is paused, or clusterctl is deleting one, or that is unknown.
func TestAddressStaysWhilePoolMayArrive(t *testing.T) {
	paused := clusterv1.Cluster{Spec: clusterv1.ClusterSpec{Paused: ptr.To(true)}}
	halfGone := clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}, DeletionTimestamp: &metav1.Time{Time: grantstest.Noon}, Finalizers: []string{"x"},
	}}
	deleted := clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: grantstest.Noon}, Finalizers: []string{"x"}}}
	for name, tc := range map[string]struct {
		list  clusterList
		there bool // the pool exists
		may   bool
	}{
		"NoCluster":         {},
		"ClusterRuns":       {list: clusterList{clusters: []clusterv1.Cluster{{}}}},
		"ClusterIsDeleted":  {list: clusterList{clusters: []clusterv1.Cluster{deleted}}},
		"ClusterIsPaused":   {list: clusterList{clusters: []clusterv1.Cluster{{}, paused}}, may: true},
		"ClusterIsHalfGone": {list: clusterList{clusters: []clusterv1.Cluster{halfGone, {}}}, may: true},
		"ListFails":         {list: clusterList{err: errors.New("no answer")}, may: true},
		"PoolIsThere":       {list: clusterList{clusters: []clusterv1.Cluster{paused}}, there: true},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{Client: tc.list})
			p := stateOfPool(a.pools.getOrCreatePool(grantstest.PoolKey))
			if tc.there {
				p.Base.Pool = &v1alpha1.NetworkPool{}
			}
			if may := a.addresses.mayRestoreArrive(t.Context(), grants.NewPool(p), "ns"); may != tc.may {
				t.Errorf("may arrive: %v, not %v", may, tc.may)
			}
		})
	}
}
