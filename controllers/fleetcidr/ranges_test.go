package fleetcidr

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// TestFailureIsClearedWhenNotServed checks a Cluster in which the ConfigMap may not be written: it was granted nothing,
// so it has no entry in the ClusterCIDR, which other Clusters use. When it is no longer served, what the ClusterCIDR
// reports about it is withdrawn.
func TestFailureIsClearedWhenNotServed(t *testing.T) {
	for name, cluster := range map[string]*clusterv1.Cluster{
		"its label is off": {ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "odd"}},
		"it is gone":       nil,
		"it is paused":     {ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "odd", Annotations: map[string]string{clusterv1.PausedAnnotation: ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}}
			cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
			b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc).WithStatusSubresource(cc, &clusterv1.Cluster{})
			if cluster != nil {
				b = b.WithObjects(cluster)
			}
			c := b.Build()
			r := &Reconciler{Client: c, Live: c, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Now: time.Now}
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			t.Cleanup(q.ShutDown)
			key, ref := types.NamespacedName{Namespace: "team", Name: "odd"}, podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: "edge", UID: "u"}
			stopped := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.FenceRefusedReason, Message: "the API server refuses the ConfigMap"}
			r.rangeUsages.recordReport(key, nodeipam.Report{UsageByRange: map[podcidr.Ref]nodeipam.Usage{ref: {Capacity: 256, Free: 256, Conditions: []metav1.Condition{stopped}}}})
			r.rangeUsages.setQueue(q)
			reconcileCondition := func() *metav1.Condition {
				t.Helper()
				if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}}); err != nil {
					t.Fatal(err)
				}
				live := &v1alpha1.ClusterCIDR{}
				if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, live); err != nil {
					t.Fatal(err)
				}
				return meta.FindStatusCondition(live.Status.Conditions, v1alpha1.ReadyCondition)
			}
			if condition := reconcileCondition(); condition.Reason != v1alpha1.FenceRefusedReason || !strings.Contains(condition.Message, "team/odd") {
				t.Fatalf("while it is served: %v", condition)
			}
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			if q.Len() != 1 {
				t.Error("the ClusterCIDR is not enqueued")
			}
			if condition := reconcileCondition(); condition.Status != metav1.ConditionTrue {
				t.Errorf("then: %v", condition)
			}
		})
	}
}

// TestForeignFinalizerCausesNoLiveReads checks that a deleted ClusterCIDR that only a foreign finalizer keeps is not
// read live in each reconcile.
func TestForeignFinalizerCausesNoLiveReads(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for finalizer, reads := range map[string]int{"example.com/kept": 0, v1alpha1.ClusterCIDRFinalizer: 1} {
		cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u", Finalizers: []string{finalizer}, DeletionTimestamp: ptr.To(metav1.Now())}}
		cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
		c, asked := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc).Build(), 0
		live := interceptor.NewClient(c, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				asked++
				return c.Get(ctx, key, o, opts...)
			},
		})
		r := &Reconciler{Client: c, Live: live, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Now: time.Now}
		if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}}); err != nil {
			t.Fatal(err)
		}
		if asked != reads {
			t.Errorf("with %s it is read live %d times, not %d", finalizer, asked, reads)
		}
	}
}
