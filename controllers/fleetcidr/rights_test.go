package fleetcidr

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
)

// connections are the connections of one workload cluster; without a client it is not connected.
type connections struct {
	clustercache.ClusterCache
	client client.Client
	config *rest.Config
}

func (c connections) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	if c.client == nil {
		return nil, clustercache.ErrClusterNotConnected
	}
	return c.client, nil
}

func (c connections) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return c.config, nil
}

func (c connections) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{ConsecutiveFailures: 1}
}

// newRefusingServer returns an API server that refuses to list one resource, and answers nothing else.
func newRefusingServer(t *testing.T, resource string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/"+resource):
			status := apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil).Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			w.WriteHeader(int(status.Code))
			_ = json.NewEncoder(w).Encode(status)
		default:
			<-r.Context().Done() // it does not answer
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server
}

// TestConditionsNameMissingPermission checks a kubeconfig without a right that it needs in its workload cluster. The
// Cluster and its ClusterCIDR name the right, no worker waits for a cache that never syncs, and the ClusterCIDR keeps
// the number of Nodes with CIDRs.
func TestConditionsNameMissingPermission(t *testing.T) {
	for name, tc := range map[string]struct {
		resource    string
		connected   bool
		wantMessage string
		ofRange     bool
	}{
		"of Nodes":             {resource: "nodes", connected: true, wantMessage: "nodes is forbidden", ofRange: true},
		"of ServiceCIDRs":      {resource: "servicecidrs", connected: true, wantMessage: "servicecidrs is forbidden", ofRange: true},
		"of seeing it answers": {resource: "", wantMessage: "GET / of "},
	} {
		t.Run(name, func(t *testing.T) {
			server := newRefusingServer(t, tc.resource)
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}}
			cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
			cc.Status.Clusters = []v1alpha1.ClusterUse{{Namespace: "team", Name: "prod", Mark: "m", Nodes: 7, Free: 249}}
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
			cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
			kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
				Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server.URL}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
			})
			if err != nil {
				t.Fatal(err)
			}
			credentials := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: secret.Name("prod", secret.Kubeconfig)}, Data: map[string][]byte{secret.KubeconfigDataName: kubeconfig}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc, cluster, credentials).WithStatusSubresource(cc, cluster).Build()
			connected := connections{config: &rest.Config{Host: server.URL}}
			if tc.connected {
				kinds := meta.NewDefaultRESTMapper(nil)
				kinds.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
				kinds.Add(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), meta.RESTScopeRoot)
				connected.client = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds).Build()
			}
			woken := make(chan nodeipam.ClusterKey, 100)
			r := &Reconciler{
				Client: c, Live: c, Clusters: connected, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Elected: true, Now: newTickingClock(),
				ctx: t.Context(), enqueueCluster: func(key nodeipam.ClusterKey) { woken <- key },
			}
			q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			t.Cleanup(q.ShutDown)
			r.rangeUsages.setQueue(q)
			key := types.NamespacedName{Namespace: "team", Name: "prod"}
			t.Cleanup(func() { r.connectedClusters.disconnect(key) })
			for {
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
				if err := c.Get(t.Context(), key, cluster); err != nil {
					t.Fatal(err)
				}
				if condition := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.PodCIDRsReadyCondition); condition != nil && condition.Status == metav1.ConditionFalse {
					if condition.Reason != v1alpha1.NodesRefusedReason || !strings.Contains(condition.Message, tc.wantMessage) || !strings.Contains(condition.Message, roleFile) {
						t.Errorf("%s: %s", condition.Reason, condition.Message)
					}
					break
				}
				<-woken // a refusal enqueues the Cluster
			}
			if !tc.ofRange {
				return
			}
			if _, err := r.reconcileRange(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "edge"}}); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), client.ObjectKey{Name: "edge"}, cc); err != nil {
				t.Fatal(err)
			}
			if condition := meta.FindStatusCondition(cc.Status.Conditions, v1alpha1.ReadyCondition); condition == nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, tc.wantMessage) {
				t.Errorf("the ClusterCIDR says %+v", condition)
			}
			if e := cc.Status.Clusters[0]; e.Nodes != 7 || e.Free != 249 {
				t.Errorf("of Nodes that nothing is known of it says %+v", e)
			}
		})
	}
}

// TestRefusalEndsWithConnection checks that an API server that refused, was connected since, and is no longer
// connected does not count as refusing any more.
func TestRefusalEndsWithConnection(t *testing.T) {
	server := newRefusingServer(t, "")
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
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	credentials := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: secret.Name("prod", secret.Kubeconfig)}, Data: map[string][]byte{secret.KubeconfigDataName: kubeconfig}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster, credentials).WithStatusSubresource(cluster).Build()
	woken := make(chan nodeipam.ClusterKey, 100)
	r := &Reconciler{
		Client: c, Live: c, Clusters: connections{}, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Elected: true, Now: newTickingClock(),
		ctx: t.Context(), enqueueCluster: func(key nodeipam.ClusterKey) { woken <- key },
	}
	key := types.NamespacedName{Namespace: "team", Name: "prod"}
	t.Cleanup(func() { r.connectedClusters.disconnect(key) })
	expectReason := func(reason string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), key, cluster); err != nil {
			t.Fatal(err)
		}
		if condition := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.PodCIDRsReadyCondition); condition == nil || condition.Reason != reason {
			t.Errorf("not %s, but %+v", reason, condition)
		}
	}
	expectReason(v1alpha1.TenantUnreachableReason)
	<-woken // the server has refused
	expectReason(v1alpha1.NodesRefusedReason)
	kinds := meta.NewDefaultRESTMapper(nil)
	kinds.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	r.Clusters = connections{config: &rest.Config{Host: server.URL}, client: fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds).Build()}
	expectReason(v1alpha1.NodesRefusedReason) // as before, as nothing is read yet
	r.Clusters = connections{}
	expectReason(v1alpha1.TenantUnreachableReason)
}

// newTickingClock returns a clock that advances by a minute at each call, so that nothing is too early to be published.
func newTickingClock() func() time.Time {
	var minutes atomic.Int64
	return func() time.Time { return time.Unix(60*minutes.Add(1), 0) }
}
