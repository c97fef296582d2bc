package fleetcidr

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// watchedNodes is an API server with the Nodes of one moment after the other.
type watchedNodes struct {
	*httptest.Server

	mu      sync.Mutex
	current *corev1.NodeList
	// expired ends the watches that began at the current moment.
	expired chan struct{}
}

func newWatchedNodes(t *testing.T) *watchedNodes {
	t.Helper()
	m := &watchedNodes{current: &corev1.NodeList{}, expired: make(chan struct{})}
	m.Server = httptest.NewServer(m)
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

// advance moves to another moment: a watch that began at the one before has to list again.
func (m *watchedNodes) advance(version string, nodes ...corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: nodes}
	close(m.expired)
	m.expired = make(chan struct{})
}

// ServeHTTP lists Nodes. Everything else is not found, and a watch that ends has expired.
func (m *watchedNodes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	current, over := m.current, m.expired
	m.mu.Unlock()
	isNodes, failed := strings.HasSuffix(r.URL.Path, "/nodes"), apierrors.NewNotFound(corev1.Resource("nodes"), "")
	if isNodes && r.URL.Query().Get("watch") == "" {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_ = protobuf.NewSerializer(nil, nil).Encode(current, w)
		return
	}
	if isNodes {
		failed = apierrors.NewResourceExpired("too old")
		if r.URL.Query().Get("resourceVersion") == current.ResourceVersion {
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}
	}
	status := failed.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status)
}

// TestAllocatorIsRecreatedAfterEtcdRestore checks a workload cluster whose etcd is restored, and has a Node again whose
// end its allocator has seen. A new allocator, which only knows what exists now, counts the CIDRs of that Node.
func TestAllocatorIsRecreatedAfterEtcdRestore(t *testing.T) { // R7
	server, scheme := newWatchedNodes(t), runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	key := types.NamespacedName{Namespace: "team", Name: "prod"}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{v1alpha1.NodeCIDRsLabel: ""}}}
	cc := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}}
	cc.Spec = v1alpha1.ClusterCIDRSpec{PerNodeHostBits: 8, IPv4: "10.0.0.0/16", ClusterSelector: &metav1.LabelSelector{}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cc, cluster).WithStatusSubresource(cc, cluster).Build()
	kinds := meta.NewDefaultRESTMapper(nil)
	kinds.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	kinds.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	connected := connections{config: &rest.Config{Host: server.URL}, client: fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds).Build()}
	woken := make(chan nodeipam.ClusterKey, 100)
	r := &Reconciler{
		Client: c, Live: c, Clusters: connected, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return true }, Now: time.Now,
		ctx: t.Context(), enqueueCluster: func(key nodeipam.ClusterKey) { woken <- key },
	}
	t.Cleanup(func() { r.connectedClusters.disconnect(key) })
	// counts waits until an allocator counts the given number of Nodes with CIDRs, and returns it.
	counts := func(want int64) *connectedCluster {
		t.Helper()
		for {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			if s := r.connectedClusters.get(key); s != nil && s.hasSynced() {
				if found, _ := s.BuildReport(); found.UsageByRange[nodeipam.RefForClusterCIDR(cc)].Allocated == want {
					return s
				}
			}
			select {
			case <-woken: // by what is read
			case <-time.After(framework.EventTimeout):
				t.Fatalf("no site counts %d Nodes", want)
			}
		}
	}
	a := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}}}
	server.advance("8", a)
	first := counts(1)
	server.advance("9")
	if s := counts(0); s != first {
		t.Error("another site is made where the history goes on")
	}
	server.advance("8", a)
	second := counts(1)
	if second == first {
		t.Error("the site is the one of before")
	}
	r.connectedClusters.disconnectClient(key, fake.NewClientBuilder().Build())
	if r.connectedClusters.get(key) != second {
		t.Error("what the connection before shows ends the site of this one")
	}
}
