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

// hesitant is an API server with a Node that waits. It does not list one resource until the end of a wait, and fails to do so
// once then.
type hesitant struct {
	late  string
	asked chan struct{}
	wait  chan struct{}

	mu     sync.Mutex
	failed bool
	// others are what else it was asked for: to grant something, the ConfigMap is read first.
	others []string
}

// ServeHTTP lists, and notes what else it is asked for.
func (h *hesitant) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	if !slices.Contains([]string{"nodes", "servicecidrs"}, resource) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.others = append(h.others, r.Method+" "+r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		<-r.Context().Done()
		return
	}
	if resource == h.late && h.fails(r) {
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

// fails waits, and reports whether a list is the first one.
func (h *hesitant) fails(r *http.Request) bool {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	select {
	case <-h.wait:
	case <-r.Context().Done():
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	first := !h.failed
	h.failed = true
	return first
}

func (h *hesitant) asksElse() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.others)
}

// A manager that starts looks at nothing of a Cluster before all that its Nodes depend on was read, whatever of that becomes known
// last, and after its list has failed.
func TestNothingIsGrantedBeforeAllIsRead(t *testing.T) { // K23, K29
	for _, late := range []string{"nodes", "servicecidrs", "blocks"} {
		t.Run(late, func(t *testing.T) {
			h := &hesitant{late: late, asked: make(chan struct{}, 1), wait: make(chan struct{})}
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
			woken := make(chan nodeipam.Key, 100)
			known := late != "blocks"
			r := &Reconciler{
				Client: c, Live: c, Blocks: &index.Blocks{}, Synced: func() bool { return known }, Elected: true, Now: time.Now,
				Clusters: connections{config: &rest.Config{Host: server.URL}, client: fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds).Build()},
				ctx:      t.Context(), wake: func(key nodeipam.Key) { woken <- key },
			}
			t.Cleanup(func() { r.sites.end(key) })
			look := func() {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil && len(h.asksElse()) == 0 {
					t.Fatal(err)
				}
			}
			look()
			if known {
				<-h.asked
				<-woken // by the other list
			}
			for range 3 {
				look()
			}
			if asked := h.asksElse(); len(asked) > 0 {
				t.Fatalf("%s are not known, and it asks for %q", late, asked)
			}
			known = true
			close(h.wait)
			for look(); len(h.asksElse()) == 0; look() {
				select {
				case <-woken:
				case <-time.After(framework.Soon):
					t.Fatalf("%s are known, and the Node waits", late)
				}
			}
		})
	}
}
