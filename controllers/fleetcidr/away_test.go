package fleetcidr

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// TestUnreachableClusterLosesNothing checks K49: a Cluster whose API server is away loses nothing. Its blocks and its
// entries stay, the finalizer stays on a ClusterCIDR that is being deleted, and the condition of the Cluster shows that
// nothing is known. Only this is written, once.
func TestUnreachableClusterLosesNothing(t *testing.T) {
	server := httptest.NewServer(nil)
	server.Close() // nothing listens there
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
	})
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{
		Name: "edge", UID: "u", Finalizers: []string{v1alpha1.ClusterCIDRFinalizer}, DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)},
	}}
	cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
	cc.Status.Clusters = []v1alpha1.ClusterUse{{Namespace: "team", Name: "prod", Mark: "m", Nodes: 7, Free: 249}}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	block := framework.MakeAllocation("team", "prod-pods-4-1").Cluster("team", "prod").Obj()
	block.Spec.Type, block.Finalizers = v1alpha1.PodsAllocation, []string{v1alpha1.TenantPoolFinalizer}
	credentials := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: secret.Name("prod", secret.Kubeconfig)}, Data: map[string][]byte{secret.KubeconfigDataName: kubeconfig}}
	var writes []string
	write := func(verb string, o client.Object) {
		writes = append(writes, fmt.Sprintf("%s %T %s", verb, o, o.GetName()))
	}
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc, cluster, credentials, block).WithStatusSubresource(cc, cluster).Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, in client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			write("patch", o)
			return in.Patch(ctx, o, p, opts...)
		},
		SubResourcePatch: func(ctx context.Context, in client.Client, of string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			write("patch "+of+" of", o)
			return in.SubResource(of).Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, in client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			write("delete", o)
			return in.Delete(ctx, o, opts...)
		},
	})
	r := &Reconciler{
		Client: c, Live: c, Clusters: connections{}, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Elected: true, Now: newTickingClock(),
		ctx: t.Context(), enqueueCluster: func(nodeipam.ClusterKey) {},
	}
	r.Blocks.ObserveBlock(block)
	for range 5 {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cc)}); err != nil {
			t.Fatal(err)
		}
	}
	// Both statuses are written.
	if !slices.Equal(writes, []string{"patch status of *v1beta2.Cluster prod", "patch status of *v1alpha1.ClusterCIDR edge"}) {
		t.Errorf("these are written: %q", writes)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
		t.Fatal(err)
	}
	condition := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.PodCIDRsReadyCondition)
	if condition == nil || condition.Status != metav1.ConditionUnknown || condition.Reason != v1alpha1.TenantUnreachableReason {
		t.Errorf("the Cluster says %+v", condition)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(cc), cc); err != nil || len(cc.Finalizers) == 0 || len(cc.Status.Clusters) != 1 || cc.Status.Clusters[0].Nodes != 7 {
		t.Errorf("%v: the ClusterCIDR is held by %v, and says %+v", err, cc.Finalizers, cc.Status.Clusters)
	}
}

// TestConditionOfAnotherManagerIsOverwrittenSlowly checks two managers without leader election that have different
// conditions for a Cluster, as one does not reach it. Each writes its own again with a growing pause.
func TestConditionOfAnotherManagerIsOverwrittenSlowly(t *testing.T) { // B57
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "u", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	c, clock := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).WithStatusSubresource(cluster).Build(), clocktesting.NewFakeClock(time.Unix(1e9, 0))
	r := &Reconciler{
		Client: (&pace.WritePacer{Clock: clock}).WrapClient(c), Live: c, Clusters: connections{}, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Elected: true, Now: clock.Now,
		ctx: t.Context(), enqueueCluster: func(nodeipam.ClusterKey) {},
	}
	key, writes := client.ObjectKeyFromObject(cluster), 0
	for range 10 { // minutes
		for next := time.Duration(0); next < time.Minute; {
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			if err != nil || result.RequeueAfter == 0 {
				t.Fatal(result, err)
			}
			if err := c.Get(t.Context(), key, cluster); err != nil {
				t.Fatal(err)
			}
			if condition := conditions.Get(cluster, v1alpha1.PodCIDRsReadyCondition); condition.Reason == v1alpha1.TenantUnreachableReason {
				writes++
				conditions.Set(cluster, metav1.Condition{Type: condition.Type, Status: metav1.ConditionTrue, Reason: v1alpha1.ReadyReason})
				if err := c.Status().Update(t.Context(), cluster); err != nil {
					t.Fatal(err)
				}
				result.RequeueAfter = time.Millisecond // its watch shows that
			}
			clock.Step(result.RequeueAfter)
			next += result.RequeueAfter
		}
	}
	if writes < 10 || writes > 20 {
		t.Errorf("the condition is written %d times in ten minutes", writes)
	}
}
