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

// moments is an API server that has Nodes of one moment after the other.
type moments struct {
	*httptest.Server

	mu sync.Mutex
	is *corev1.NodeList
	// over ends the watches that began at the moment that is.
	over chan struct{}
}

func newMoments(t *testing.T) *moments {
	t.Helper()
	m := &moments{is: &corev1.NodeList{}, over: make(chan struct{})}
	m.Server = httptest.NewServer(m)
	t.Cleanup(func() { m.CloseClientConnections(); m.Close() })
	return m
}

// next is at another moment: a watch of the one before is to list again.
func (m *moments) next(version string, nodes ...corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.is = &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: version}, Items: nodes}
	close(m.over)
	m.over = make(chan struct{})
}

// ServeHTTP lists Nodes. All else is not found, and a watch that ends has expired.
func (m *moments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	is, over := m.is, m.over
	m.mu.Unlock()
	isNodes, failed := strings.HasSuffix(r.URL.Path, "/nodes"), apierrors.NewNotFound(corev1.Resource("nodes"), "")
	if isNodes && r.URL.Query().Get("watch") == "" {
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_ = protobuf.NewSerializer(nil, nil).Encode(is, w)
		return
	}
	if isNodes {
		failed = apierrors.NewResourceExpired("too old")
		if r.URL.Query().Get("resourceVersion") == is.ResourceVersion {
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

// The etcd of a workload cluster is put back, and has a Node again whose end its site has seen. Another site, which knows nothing
// but what there is, counts what that Node has.
func TestASiteWhoseEtcdIsPutBackIsMadeAnew(t *testing.T) { // R7
	server, scheme := newMoments(t), runtime.NewScheme()
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
	woken := make(chan nodeipam.Key, 100)
	r := &Reconciler{
		Client: c, Live: c, Clusters: connected, Blocks: &index.Blocks{}, Synced: func() bool { return true }, Now: time.Now,
		ctx: t.Context(), wake: func(key nodeipam.Key) { woken <- key },
	}
	t.Cleanup(func() { r.sites.end(key) })
	// counts waits until a site counts so many Nodes that have CIDRs, and returns it.
	counts := func(want int64) *site {
		t.Helper()
		for {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			if s := r.sites.of(key); s != nil && s.isRead() {
				if found, _ := s.Report(); found.Ranges[nodeipam.RefOf(cc)].Allocated == want {
					return s
				}
			}
			select {
			case <-woken: // by what is read
			case <-time.After(framework.Soon):
				t.Fatalf("no site counts %d Nodes", want)
			}
		}
	}
	a := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}}}
	server.next("8", a)
	first := counts(1)
	server.next("9")
	if s := counts(0); s != first {
		t.Error("another site is made where the history goes on")
	}
	server.next("8", a)
	second := counts(1)
	if second == first {
		t.Error("the site is the one of before")
	}
	r.sites.endOf(key, fake.NewClientBuilder().Build())
	if r.sites.of(key) != second {
		t.Error("what the connection before shows ends the site of this one")
	}
}
