package cluster

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestMovedClusterLosesFinalizer checks that a Cluster that clusterctl has moved, and did not finish deleting, loses
// our finalizer although it is paused, as all objects of a move are. A Cluster of another manager, or one that is not
// deleted, stays as it is.
func TestMovedClusterLosesFinalizer(t *testing.T) {
	const others = "cluster.cluster.x-k8s.io"
	for name, tc := range map[string]struct {
		marked, deleted bool
		filter          string
		others          bool
		stays           bool
		left            int // finalizers of a Cluster that still exists
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
			c := framework.NewFakeClient(t, cluster)
			if tc.deleted {
				if err := c.Delete(t.Context(), cluster); err != nil {
					t.Fatal(err)
				}
			}
			r := &Reconciler{Client: c, Live: c, Recorder: events.NewFakeRecorder(10), Blocks: &index.BlockIndex{}, WatchFilter: tc.filter}
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

// TestMovedFirstBlockIsNotRequestedAgain checks a move that was interrupted and leaves a Cluster behind whose first
// block is gone. A block that is requested in its place, maybe from another pool, would block the move: none is
// requested until an operator has released what is held.
func TestMovedFirstBlockIsNotRequestedAgain(t *testing.T) { // C53
	f := newFleet(t, "one/lab")
	config := &v1alpha1.ProviderConfig{}
	if err := f.Get(t.Context(), client.ObjectKey{Namespace: "one", Name: "lab"}, config); err != nil {
		t.Fatal(err)
	}
	config.Spec.Network.PoolRefs = append(config.Spec.Network.PoolRefs, v1alpha1.ProviderPoolReference{PoolReference: v1alpha1.PoolReference{Name: "q"}})
	if err := errors.Join(f.Update(t.Context(), config), f.Create(t.Context(), framework.MakePool("q").Namespace("one").CIDR("10.1.0.0/24").Obj())); err != nil {
		t.Fatal(err)
	}
	f.reconcileUntilSettled(true)
	block := f.blocks()[0]
	hold := func(held ...v1alpha1.HeldRange) {
		t.Helper()
		pool := &v1alpha1.NetworkPool{}
		if err := f.Get(t.Context(), client.ObjectKey{Namespace: "one", Name: "p"}, pool); err != nil {
			t.Fatal(err)
		}
		pool.Status.Held = held
		if err := f.Status().Update(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
	}
	hold(v1alpha1.HeldRange{First: "10.0.0.1", Last: "10.0.0.8", Reason: v1alpha1.MovedReason, Namespace: block.Namespace, Name: block.Name})
	if err := f.Delete(t.Context(), &block); err != nil {
		t.Fatal(err)
	}
	condition := conditions.Get(f.reconcileUntilSettled(true), v1alpha1.NetworkReadyCondition)
	if len(f.blocks()) > 0 || condition.Status != metav1.ConditionFalse || condition.Reason != v1alpha1.MovedReason || !strings.Contains(condition.Message, "resume the move") {
		t.Errorf("it has %d blocks, and says %s: %s", len(f.blocks()), condition.Reason, condition.Message)
	}
	hold()
	if f.reconcileUntilSettled(true); len(f.blocks()) != 1 {
		t.Errorf("with nothing held it has %d blocks", len(f.blocks()))
	}
}
