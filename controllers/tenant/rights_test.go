package tenant

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
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

// unfilledCache is a cache that is never filled.
type unfilledCache struct {
	client.Client
	cache.Cache
}

func (unfilledCache) Start(context.Context) error { return nil }

func (unfilledCache) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (unfilledCache) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// unfilledClient is a client that reads from such a cache.
type unfilledClient struct{ client.Client }

func (unfilledClient) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// withoutNamespaces is a client whose cache of Namespaces is never filled.
type withoutNamespaces struct{ client.Client }

func (c withoutNamespaces) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	if all.GetObjectKind().GroupVersionKind().Kind == "NamespaceList" {
		return unfilledClient{}.List(ctx, all, opts...)
	}
	return c.Client.List(ctx, all, opts...)
}

// filledCache is a cache that shows what a client shows.
type filledCache struct {
	cache.Cache
	client client.Client
}

func (filledCache) Start(context.Context) error { return nil }

func (f filledCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return f.client.Get(ctx, key, o, opts...)
}

func (f filledCache) List(ctx context.Context, all client.ObjectList, opts ...client.ListOption) error {
	return f.client.List(ctx, all, opts...)
}

// refusingConnections are connections to a workload cluster; without a client it is not connected.
type refusingConnections struct {
	clustercache.ClusterCache
	live client.Client
	// cached reads from the cache of the connection; nil if that is never filled.
	cached client.Client
}

func (c refusingConnections) GetClient(context.Context, client.ObjectKey) (client.Client, error) {
	if c.live == nil {
		return nil, clustercache.ErrClusterNotConnected
	}
	if c.cached != nil {
		return c.cached, nil
	}
	return unfilledClient{}, nil
}

func (c refusingConnections) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	return c.live, nil
}

func (refusingConnections) GetRESTConfig(context.Context, client.ObjectKey) (*rest.Config, error) {
	return &rest.Config{}, nil
}

func (refusingConnections) Watch(context.Context, client.ObjectKey, clustercache.Watcher) error {
	return nil
}

func (refusingConnections) GetHealthCheckingState(context.Context, client.ObjectKey) clustercache.HealthCheckingState {
	return clustercache.HealthCheckingState{ConsecutiveFailures: 1}
}

// newRefusedManager returns a manager of one Cluster that has a block, and releases another one.
func newRefusedManager(t *testing.T, connections refusingConnections, server string) (*Reconciler, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, clusterv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: server, InsecureSkipTLSVerify: true}}, Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}}, CurrentContext: "c",
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
		Client: c, Live: c, Recorder: noopRecorder{}, Blocks: &index.BlockIndex{}, Synced: func() bool { return true }, Clock: clock.RealClock{}, Clusters: connections,
		controller: unwatched{}, NewCache: func(*rest.Config, cache.Options) (cache.Cache, error) { return unfilledCache{}, nil },
	}
	return r, c
}

// observeAndReconcile makes a manager observe the blocks, and reconcile their Cluster.
func observeAndReconcile(t *testing.T, r *Reconciler) reconcile.Result {
	t.Helper()
	var all v1alpha1.IPAllocationList
	if err := r.Live.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		r.Blocks.ObserveBlock(&all.Items[i])
	}
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: clusterKey})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// giveRights is the advice where a permission is missing.
const giveRights = "give its user the rights in config/tenant/role.yaml: "

// checkRefusedMessage checks the conditions of the blocks, and their advice.
func checkRefusedMessage(t *testing.T, c client.Client, message, do string) {
	t.Helper()
	for name, condition := range map[string]string{"first": v1alpha1.DemandSatisfiedCondition, "leaving": v1alpha1.DrainingCondition} {
		var a v1alpha1.IPAllocation
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
			t.Fatal(err)
		}
		current := meta.FindStatusCondition(a.Status.Conditions, condition)
		if current == nil || current.Reason != v1alpha1.TenantRefusedReason || !strings.Contains(current.Message, message) || !strings.Contains(current.Message, do) {
			t.Errorf("%s says %+v", name, current)
		}
	}
}

// TestConditionsNameMissingPermission checks a kubeconfig that misses a permission in its workload cluster. The
// conditions of the blocks name it, and no worker waits for a cache that is never filled.
func TestConditionsNameMissingPermission(t *testing.T) {
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
				r, c := newRefusedManager(t, refusingConnections{live: live}, "https://127.0.0.1:1")
				t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
				begin := time.Now()
				if result := observeAndReconcile(t, r); result.RequeueAfter != guard.WaitingResyncPeriod {
					t.Errorf("%+v: it is asked again", result)
				}
				if took := time.Since(begin); took != 0 || asked > 5 {
					t.Errorf("a worker was held for %v, and the API server was asked %d times", took, asked)
				}
				checkRefusedMessage(t, c, resource+" is forbidden", giveRights)
			})
		})
	}
}

// TestNamespacePermissionIsRequiredForSelectors checks that the permission to list Namespaces is required where a pool
// of MetalLB selects by their labels, and nowhere else.
func TestNamespacePermissionIsRequiredForSelectors(t *testing.T) {
	for name, selects := range map[string]bool{"a pool selects Namespaces": true, "none does": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scheme := runtime.NewScheme()
				for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, metallbv1beta1.AddToScheme} {
					if err := add(scheme); err != nil {
						t.Fatal(err)
					}
				}
				pool := &metallbv1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "theirs"}}
				pool.Spec.Addresses = []string{"192.0.2.0/28"}
				if selects {
					pool.Spec.AllocateTo = &metallbv1beta1.ServiceAllocation{NamespaceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}}
				}
				cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).Build()
				live := interceptor.NewClient(cached, interceptor.Funcs{
					List: func(ctx context.Context, in client.WithWatch, all client.ObjectList, opts ...client.ListOption) error {
						if _, ok := all.(*corev1.NamespaceList); ok {
							return apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "", nil)
						}
						return in.List(ctx, all, opts...)
					},
				})
				r, c := newRefusedManager(t, refusingConnections{live: live, cached: withoutNamespaces{cached}}, "https://127.0.0.1:1")
				r.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return filledCache{client: cached}, nil }
				t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
				begin := time.Now()
				observeAndReconcile(t, r)
				if took := time.Since(begin); took != 0 {
					t.Errorf("a worker was held for %v", took)
				}
				condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition)
				refused := condition != nil && condition.Reason == v1alpha1.TenantRefusedReason
				if refused != selects {
					t.Errorf("it says %+v", condition)
				}
				if refused && (!strings.Contains(condition.Message, "namespaces is forbidden") || !strings.Contains(condition.Message, giveRights)) {
					t.Errorf("it says %s", condition.Message)
				}
			})
		})
	}
}

// conditionOf returns a condition of a block.
func conditionOf(t *testing.T, c client.Client, name, of string) *metav1.Condition {
	t.Helper()
	var a v1alpha1.IPAllocation
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
		t.Fatal(err)
	}
	return meta.FindStatusCondition(a.Status.Conditions, of)
}

// serveStatus is an API server that answers everything with a status, or with success if respond returns nil. No two
// refusals are the same, so that each enqueues.
func serveStatus(t *testing.T, respond func(*http.Request) *apierrors.StatusError) string {
	t.Helper()
	var n atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		err := respond(r)
		if err == nil {
			_, _ = w.Write([]byte(`{"paths":[]}`))
			return
		}
		status := err.Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		status.Message = fmt.Sprintf("%s (%d)", status.Message, n.Add(1))
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// connect connects to a Cluster that has no MetalLB, and reconciles it.
func connect(t *testing.T, r *Reconciler) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	connected := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
		List: func(ctx context.Context, in client.WithWatch, all client.ObjectList, opts ...client.ListOption) error {
			if _, ok := all.(*corev1.ServiceList); ok {
				return in.List(ctx, all, opts...)
			}
			return &meta.NoKindMatchError{} // MetalLB is not installed
		},
	})
	r.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return filledCache{client: connected}, nil }
	r.Clusters = refusingConnections{live: connected, cached: connected}
	t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
	observeAndReconcile(t, r)
}

// reconcileAndWait returns a function that reconciles the Cluster, and waits for the result of the probe of its API
// server.
func reconcileAndWait(t *testing.T, r *Reconciler) func() {
	t.Helper()
	woken := make(chan client.ObjectKey, 1)
	r.enqueueCluster = func(key client.ObjectKey) { woken <- key }
	return func() {
		observeAndReconcile(t, r)
		if key := <-woken; key != clusterKey {
			t.Errorf("%s is woken", key)
		}
	}
}

// TestConditionsNameRefusedConnection checks an API server that refuses the probe of clustercache, so that there is no
// connection: it is probed for what it refuses, outside the workers, until there is a connection. In another outage
// after that, it refuses nothing, as far as is known.
func TestConditionsNameRefusedConnection(t *testing.T) {
	url := serveStatus(t, func(*http.Request) *apierrors.StatusError {
		return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	})
	r, c := newRefusedManager(t, refusingConnections{}, url)
	ask := reconcileAndWait(t, r)
	ask()
	ask()
	checkRefusedMessage(t, c, "GET / of "+url, giveRights)

	connect(t, r)
	if condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition); condition == nil || condition.Reason != v1alpha1.MetalLBMissingReason {
		t.Errorf("of a Cluster that is connected to it says %+v", condition)
	}
	r.Clusters = refusingConnections{}
	ask()
	if condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition); condition == nil || condition.Reason != v1alpha1.TenantUnreachableReason {
		t.Errorf("of a Cluster that is not connected to any more it says %+v", condition)
	}
}

// withMetalLB is a workload cluster with MetalLB, and without Services.
func withMetalLB(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, metallbv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	serviceType := func(o client.Object) []string { return []string{string(o.(*corev1.Service).Spec.Type)} }
	return fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Service{}, "spec.type", serviceType).Build()
}

// TestOutdatedConditionIsRemoved checks that the condition for what kept a Cluster from being reconciled is removed
// when that is over, also for a Cluster that gets no more blocks: it has no ProviderConfig, so no condition is set for
// its Services.
func TestOutdatedConditionIsRemoved(t *testing.T) {
	expectReason := func(t *testing.T, c client.Client, want string) {
		t.Helper()
		got := ""
		if condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition); condition != nil {
			got = condition.Reason
		}
		if got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	t.Run("of a Cluster that keeps its blocks", func(t *testing.T) {
		r, c := newRefusedManager(t, refusingConnections{}, "https://127.0.0.1:1")
		r.enqueueCluster = func(client.ObjectKey) {}
		observeAndReconcile(t, r)
		expectReason(t, c, v1alpha1.TenantUnreachableReason)
		cached := withMetalLB(t)
		r.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return filledCache{client: cached}, nil }
		r.Clusters = refusingConnections{live: cached, cached: cached}
		t.Cleanup(func() { r.balancerCaches.removeCluster(clusterKey) })
		observeAndReconcile(t, r)
		expectReason(t, c, "")
	})
	t.Run("of a Cluster that was shown none", func(t *testing.T) {
		r, c := newRefusedManager(t, refusingConnections{}, "https://127.0.0.1:1")
		r.enqueueCluster = func(client.ObjectKey) {}
		observeAndReconcile(t, r)
		expectReason(t, c, v1alpha1.TenantUnreachableReason)
		for _, name := range []string{"first", "leaving"} {
			var a v1alpha1.IPAllocation
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
				t.Fatal(err)
			}
			a.Finalizers = []string{v1alpha1.IPAllocationFinalizer}
			if err := c.Update(t.Context(), &a); err != nil {
				t.Fatal(err)
			}
		}
		observeAndReconcile(t, r)
		expectReason(t, c, "")
	})
}

// TestOneBlockHasDemandCondition checks that one block of a Cluster has the condition for its demand. When another
// block gets the condition, it is removed from the former.
func TestOneBlockHasDemandCondition(t *testing.T) {
	r, c := newRefusedManager(t, refusingConnections{}, "https://127.0.0.1:1")
	r.enqueueCluster = func(client.ObjectKey) {}
	var first v1alpha1.IPAllocation
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "first"}, &first); err != nil {
		t.Fatal(err)
	}
	first.Labels = map[string]string{v1alpha1.AllocationRoleLabel: v1alpha1.GrowthRole}
	if err := c.Update(t.Context(), &first); err != nil {
		t.Fatal(err)
	}
	observeAndReconcile(t, r)
	if conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition) == nil {
		t.Fatal("the only block that is granted does not speak")
	}
	initial := first.DeepCopy()
	initial.Name, initial.UID, initial.ResourceVersion, initial.Labels = "initial", "uid-initial", "", nil
	if err := c.Create(t.Context(), initial); err != nil {
		t.Fatal(err)
	}
	observeAndReconcile(t, r)
	if conditionOf(t, c, "initial", v1alpha1.DemandSatisfiedCondition) == nil {
		t.Error("the block that the Cluster began with does not speak")
	}
	if condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition); condition != nil {
		t.Errorf("the block that was added says %s still", condition.Reason)
	}
}

// TestRejectedCredentialsAreRenewed checks credentials of a kubeconfig that are not valid any more: no
// permissions help, a new kubeconfig does.
func TestRejectedCredentialsAreRenewed(t *testing.T) {
	var accepted atomic.Bool
	url := serveStatus(t, func(r *http.Request) *apierrors.StatusError {
		if r.Header.Get("Authorization") == "Bearer new" {
			accepted.Store(true)
			return nil
		}
		return apierrors.NewUnauthorized("the token has expired")
	})
	r, c := newRefusedManager(t, refusingConnections{}, url)
	ask := reconcileAndWait(t, r)
	ask()
	ask()
	name := client.ObjectKey{Namespace: clusterKey.Namespace, Name: secret.Name(clusterKey.Name, secret.Kubeconfig)}
	checkRefusedMessage(t, c, "the token has expired", "renew the kubeconfig in Secret "+name.String()+": ")

	var credentials corev1.Secret
	if err := c.Get(t.Context(), name, &credentials); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.Load(credentials.Data[secret.KubeconfigDataName])
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos, config.Contexts["c"].AuthInfo = map[string]*clientcmdapi.AuthInfo{"u": {Token: "new"}}, "u"
	if credentials.Data[secret.KubeconfigDataName], err = clientcmd.Write(*config); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), &credentials); err != nil {
		t.Fatal(err)
	}
	ask()
	if !accepted.Load() {
		t.Error("it is asked with the former kubeconfig")
	}
	connect(t, r)
	if condition := conditionOf(t, c, "first", v1alpha1.DemandSatisfiedCondition); condition == nil || condition.Reason != v1alpha1.MetalLBMissingReason {
		t.Errorf("with a new kubeconfig it says %+v", condition)
	}
}

// TestDrainingConditionNamesReleaseWithoutConfirmation checks that the condition of a block that drains names a way out
// that needs nothing of a Cluster that refuses.
func TestDrainingConditionNamesReleaseWithoutConfirmation(t *testing.T) {
	url := serveStatus(t, func(*http.Request) *apierrors.StatusError {
		return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	})
	r, c := newRefusedManager(t, refusingConnections{}, url)
	ask := reconcileAndWait(t, r)
	ask()
	ask()
	condition := conditionOf(t, c, "leaving", v1alpha1.DrainingCondition)
	if condition == nil || condition.Reason != v1alpha1.TenantRefusedReason || !strings.HasSuffix(condition.Message, "annotate this IPAllocation with "+v1alpha1.ReleaseUnconfirmedAnnotation) {
		t.Fatalf("it says %+v", condition)
	}
	key := client.ObjectKey{Namespace: namespace, Name: "leaving"}
	var a v1alpha1.IPAllocation
	if err := c.Get(t.Context(), key, &a); err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, v1alpha1.ReleaseUnconfirmedAnnotation, "")
	if err := c.Update(t.Context(), &a); err != nil {
		t.Fatal(err)
	}
	ask()
	if err := c.Get(t.Context(), key, &a); err != nil || slices.Contains(a.Finalizers, v1alpha1.TenantPoolFinalizer) {
		t.Errorf("%v: it is held by %v", err, a.Finalizers)
	}
}
