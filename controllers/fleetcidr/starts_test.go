package fleetcidr

import (
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
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

// slowAPIServer is an API server with a Node that waits. It does not list one resource until release, and then fails
// the first list of it.
type slowAPIServer struct {
	lateResource string
	listStarted  chan struct{}
	release      chan struct{}

	mu     sync.Mutex
	failed bool
	// otherRequests are all other requests: to grant something, the ConfigMap is read first.
	otherRequests []string
}

// ServeHTTP answers lists, and records all other requests.
func (h *slowAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	if !slices.Contains([]string{"nodes", "servicecidrs"}, resource) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.otherRequests = append(h.otherRequests, r.Method+" "+r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		<-r.Context().Done()
		return
	}
	if resource == h.lateResource && h.failsFirstList(r) {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if resource == "nodes" {
		list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", ResourceVersion: "7"}}}}
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_ = protobuf.NewSerializer(nil, nil).Encode(list, w)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_, _ = w.Write([]byte(`{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[]}`))
}

// failsFirstList waits, and reports whether a list is the first one.
func (h *slowAPIServer) failsFirstList(r *http.Request) bool {
	select {
	case h.listStarted <- struct{}{}:
	default:
	}
	select {
	case <-h.release:
	case <-r.Context().Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !h.failed
	h.failed = true
	return first
}

func (h *slowAPIServer) otherRequestPaths() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.otherRequests)
}

// TestNothingIsRequestedBeforeCachesSync checks that a manager that starts requests nothing for a Cluster before
// everything was read that its Nodes depend on, whichever part is read last, and after its list has failed.
func TestNothingIsRequestedBeforeCachesSync(t *testing.T) { // K23, K29
	for _, late := range []string{"nodes", "servicecidrs", "blocks"} {
		t.Run(late, func(t *testing.T) {
			h := &slowAPIServer{lateResource: late, listStarted: make(chan struct{}, 1), release: make(chan struct{})}
			server, scheme := httptest.NewServer(h), runtime.NewScheme()
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme} {
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
			kinds.Add(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), meta.RESTScopeRoot)
			woken := make(chan nodeipam.ClusterKey, 100)
			known := late != "blocks"
			r := &Reconciler{
				Client: c, Live: c, Blocks: &index.BlockIndex{}, HasSynced: func() bool { return known }, Elected: true, Now: time.Now,
				Clusters: connections{config: &rest.Config{Host: server.URL}, client: fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds).Build()},
				ctx:      t.Context(), enqueueCluster: func(key nodeipam.ClusterKey) { woken <- key },
			}
			t.Cleanup(func() { r.connectedClusters.disconnect(key) })
			reconcileOnce := func() {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil && len(h.otherRequestPaths()) == 0 {
					t.Fatal(err)
				}
			}
			reconcileOnce()
			if known {
				<-h.listStarted
				<-woken // by the other list
			}
			for range 3 {
				reconcileOnce()
			}
			if asked := h.otherRequestPaths(); len(asked) > 0 {
				t.Fatalf("%s are not known, and it asks for %q", late, asked)
			}
			known = true
			close(h.release)
			for reconcileOnce(); len(h.otherRequestPaths()) == 0; reconcileOnce() {
				select {
				case <-woken:
				case <-time.After(framework.EventTimeout):
					t.Fatalf("%s are known, and the Node waits", late)
				}
			}
		})
	}
}
