package cluster

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// A Cluster that clusterctl has moved and was ended over goes as far as we are concerned, though it is paused, as all of a move
// are. One of another manager, or that is not deleted, stays as it is.
func TestEndMove(t *testing.T) {
	const others = "cluster.cluster.x-k8s.io"
	for name, tc := range map[string]struct {
		marked, deleted bool
		filter          string
		others          bool
		stays           bool
		left            int // finalizers, of one that is there
	}{
		"moved":                    {marked: true, deleted: true},
		"moved, of others too":     {marked: true, deleted: true, others: true, stays: true, left: 1},
		"marked alone":             {marked: true, stays: true, left: 1},
		"paused and deleted":       {deleted: true, stays: true, left: 1},
		"moved, another manager's": {marked: true, deleted: true, filter: "another", stays: true, left: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", Finalizers: []string{v1alpha1.TenantNetworkFinalizer}}}
			cluster.Spec.Paused = ptr.To(true)
			if tc.marked {
				cluster.Annotations = map[string]string{v1alpha1.DeleteForMoveAnnotation: ""}
			}
			if tc.others {
				cluster.Finalizers = append(cluster.Finalizers, others)
			}
			c := framework.Fake(t, cluster)
			if tc.deleted {
				if err := c.Delete(t.Context(), cluster); err != nil {
					t.Fatal(err)
				}
			}
			r := &Reconciler{Client: c, Live: c, Recorder: events.NewFakeRecorder(10), Blocks: &index.Blocks{}, WatchFilter: tc.filter}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}); err != nil {
				t.Fatal(err)
			}
			err := c.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster)
			switch {
			case apierrors.IsNotFound(err) == tc.stays:
				t.Errorf("it is there: %v", err == nil)
			case tc.stays && len(cluster.Finalizers) != tc.left:
				t.Errorf("%v are on it", cluster.Finalizers)
			}
		})
	}
}
