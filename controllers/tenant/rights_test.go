package tenant

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// unfilled is a cache that is never filled.
type unfilled struct {
	client.Client
	cache.Cache
}

func (unfilled) Start(context.Context) error { return nil }

func (unfilled) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (unfilled) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// unfilledClient is a client that reads from it.
type unfilledClient struct{ client.Client }

func (unfilledClient) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// refusing are connections to a workload cluster; without a client it is not connected to.
type refusing struct {
	clustercache.ClusterCache
	live client.Client
}

func (c refusing) GetClient(context.Context, client.ObjectKey) (client.Client, error) {
	if c.live == nil {
		return nil, clustercache.ErrClusterNotConnected
	}
	return unfilledClient{}, nil
}

func (c refusing) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	return c.live, nil
}

func (refusing) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return &rest.Config{}, nil
}

func (refusing) Watch(context.Context, client.ObjectKey, clustercache.Watcher) error { return nil }

func (refusing) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{ConsecutiveFailures: 1}
}

// refused is a manager of one Cluster that has a block, and gives another one up.
func refused(t *testing.T, connections refusing, server string) (*Reconciler, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: clusterKey.Namespace, Name: clusterKey.Name}}
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	credentials := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterKey.Namespace, Name: secret.Name(clusterKey.Name, secret.Kubeconfig)},
		Data:       map[string][]byte{secret.KubeconfigDataName: kubeconfig},
	}
	objects := []client.Object{cluster, credentials}
	for _, name := range []string{"first", "leaving"} {
		block := framework.MakeAllocation(namespace, name).Cluster(clusterKey.Namespace, clusterKey.Name).Obj()
		block.UID = types.UID("uid-" + name)
		block.Finalizers = []string{v1alpha1.TenantPoolFinalizer, v1alpha1.IPAllocationFinalizer}
		if block.Status.Phase, block.Status.CIDR = v1alpha1.AllocationAllocated, "10.0.0.1-10.0.0.2"; name == "leaving" {
			block.DeletionTimestamp, block.Status.CIDR = &metav1.Time{Time: time.Unix(1, 0)}, "10.0.0.3-10.0.0.4"
		}
		block.Status.StartAddress, block.Status.EndAddress, _ = strings.Cut(block.Status.CIDR, "-")
		metav1.SetMetaDataAnnotation(&block.ObjectMeta, v1alpha1.AddressAnnotation, block.Status.CIDR)
		objects = append(objects, block)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.IPAllocation{}).Build()
	r := &Reconciler{
		Client: c, Live: c, Recorder: quietly{}, Blocks: &index.Blocks{}, Synced: func() bool { return true }, Clock: clock.RealClock{}, Clusters: connections,
		controller: unwatched{}, NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) { return unfilled{}, nil },
	}
	return r, c
}

// lookAt has a manager see the blocks, and look at their Cluster.
func lookAt(t *testing.T, r *Reconciler) reconcile.Result {
	t.Helper()
	var all v1alpha1.IPAllocationList
	if err := r.Live.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		r.Blocks.Observe(&all.Items[i])
	}
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: clusterKey})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// saysRefused checks what the blocks say.
func saysRefused(t *testing.T, c client.Client, says string) {
	t.Helper()
	for name, condition := range map[string]string{"first": v1alpha1.DemandSatisfiedCondition, "leaving": v1alpha1.DrainingCondition} {
		var a v1alpha1.IPAllocation
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
			t.Fatal(err)
		}
		is := meta.FindStatusCondition(a.Status.Conditions, condition)
		if is == nil || is.Reason != v1alpha1.TenantRefusedReason || !strings.Contains(is.Message, says) || !strings.Contains(is.Message, "give its user the rights in config/tenant/role.yaml") {
			t.Errorf("%s says %+v", name, is)
		}
	}
}

// A kubeconfig lacks a right in its workload cluster. The blocks name it, and no worker waits for a cache that is never filled.
func TestAMissingRightIsNamed(t *testing.T) {
	for _, resource := range []string{"services", "ipaddresspools"} {
		t.Run(resource, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := runtime.NewScheme()
				for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, metallbv1beta1.AddToScheme} {
					if err := add(scheme); err != nil {
						t.Fatal(err)
					}
				}
				asked := 0
				live := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
					List: func(ctx context.Context, in client.WithWatch, all client.ObjectList, opts ...client.ListOption) error {
						asked++
						var of string
						switch all.(type) {
						case *corev1.ServiceList:
							of = "services"
						case *metallbv1beta1.IPAddressPoolList:
							of = "ipaddresspools"
						}
						if of == resource {
							return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
						}
						return in.List(ctx, all, opts...)
					},
				})
				r, c := refused(t, refusing{live: live}, "https://127.0.0.1:1")
				t.Cleanup(func() { r.objects.end(clusterKey) })
				begin := time.Now()
				if result := lookAt(t, r); result.RequeueAfter != guard.WaitingBackstop {
					t.Errorf("%+v: it is asked again", result)
				}
				if took := time.Since(begin); took != 0 || asked > 5 {
					t.Errorf("a worker was held for %v, and the API server was asked %d times", took, asked)
				}
				saysRefused(t, c, resource+" is forbidden")
			})
		})
	}
}

// An API server that refuses to say whether it answers is not connected to: it is asked what it refuses, beside the workers.
func TestARefusedConnectionIsNamed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := apierrors.NewForbidden(schema.GroupResource{}, "", nil).Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
	}))
	t.Cleanup(server.Close)
	r, c := refused(t, refusing{}, server.URL)
	woken := make(chan client.ObjectKey, 10)
	r.wake = func(key client.ObjectKey) { woken <- key }
	lookAt(t, r)
	if key := <-woken; key != clusterKey { // its answer is another one than before
		t.Errorf("%s is woken", key)
	}
	lookAt(t, r)
	saysRefused(t, c, "GET / of "+server.URL)
}
