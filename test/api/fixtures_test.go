// Package api applies manifests to a real kube-apiserver: it tests what the CRDs accept, what they refuse, and the
// messages of refusals. No manager runs.
package api_test

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	k8s        client.Client
	restConfig *rest.Config
)

// shared names the variable with the kubeconfig of the API server for the processes that go test -fuzz starts. They
// start no API server of their own, because go test -fuzz does not wait until they have ended it.
const shared = "TEST_API_KUBECONFIG"

func TestMain(m *testing.M) {
	if path := os.Getenv(shared); path != "" {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			panic(err)
		}
		use(&framework.ControlPlane{Config: config})
		os.Exit(m.Run())
	}
	os.Exit(framework.RunTestMain(m, framework.Options{}, func(cp *framework.ControlPlane) {
		use(cp)
		if err := os.Setenv(shared, cp.Kubeconfig); err != nil {
			panic(err)
		}
	}))
}

func use(cp *framework.ControlPlane) {
	c, err := cp.NewClient()
	if err != nil {
		panic(err)
	}
	k8s, restConfig = c, cp.Config
}

// documents parses manifests.
func documents(g *WithT, text []byte) (out []*unstructured.Unstructured) {
	out, err := framework.ParseManifests(text)
	g.Expect(err).NotTo(HaveOccurred())
	return out
}

func read(g *WithT, path string) []byte {
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	return text
}

// Users of Butler apply their existing manifests (B1-B5).
func TestButlersPoolsApplyUnchanged(t *testing.T) {
	g := NewWithT(t)
	g.Expect(k8s.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "butler-system"}})).To(Succeed())
	pools := documents(g, read(g, "testdata/butler-pools.yaml"))
	g.Expect(pools).To(HaveLen(3))
	for _, u := range pools {
		g.Expect(k8s.Create(t.Context(), u, client.FieldValidation("Strict"))).To(Succeed())
	}
	lab := &v1alpha1.NetworkPool{}
	g.Expect(k8s.Get(t.Context(), client.ObjectKey{Namespace: "butler-system", Name: "lab-pool"}, lab)).To(Succeed())
	g.Expect(lab.Spec.CIDR).To(Equal("10.40.0.0/21"))
	g.Expect(lab.Spec.Reserved).To(HaveExactElements(
		v1alpha1.ReservedRange{CIDR: "10.40.0.0/28", Description: "Management cluster nodes and VIP"},
		v1alpha1.ReservedRange{CIDR: "10.40.0.16/28", Description: "Management cluster MetalLB pool"}))
	g.Expect(lab.Spec.TenantAllocation).To(HaveValue(Equal(v1alpha1.TenantAllocation{
		Start: "10.40.1.0", End: "10.40.7.254", Defaults: &v1alpha1.AllocationDefaults{NodesPerTenant: 5, LBPoolPerTenant: 8}})))
}

// A pool that sets one of the defaults gets the other.
func TestPoolDefaults(t *testing.T) { // B5
	for name, c := range map[string]struct {
		defaults             map[string]any
		nodes, loadBalancers int32
	}{
		"neither":        {defaults: map[string]any{}, nodes: 5, loadBalancers: 8},
		"nodes":          {defaults: map[string]any{"nodesPerTenant": int64(3)}, nodes: 3, loadBalancers: 8},
		"load balancers": {defaults: map[string]any{"lbPoolPerTenant": int64(3)}, nodes: 5, loadBalancers: 3},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
			u.SetNamespace(metav1.NamespaceDefault)
			u.SetGenerateName("p-")
			u.Object["spec"] = map[string]any{
				"cidr": "10.0.0.0/24", "tenantAllocation": map[string]any{"start": "10.0.0.9", "end": "10.0.0.99", "defaults": c.defaults},
			}
			g.Expect(k8s.Create(t.Context(), u)).To(Succeed())
			pool := &v1alpha1.NetworkPool{}
			g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(u), pool)).To(Succeed())
			g.Expect(pool.Spec.TenantAllocation.Defaults).To(HaveValue(Equal(v1alpha1.AllocationDefaults{NodesPerTenant: c.nodes, LBPoolPerTenant: c.loadBalancers})))
		})
	}
}

// The status of an exhausted pool shows 0 instead of omitting the field.
func TestStatusIntegersNeverVanish(t *testing.T) {
	g := NewWithT(t)
	pool := framework.MakePool("zero").Namespace(metav1.NamespaceDefault).CIDR("10.0.0.0/24").Obj()
	g.Expect(k8s.Create(t.Context(), pool)).To(Succeed())
	pool.Status = v1alpha1.NetworkPoolStatus{TotalIPs: 254, AllocatedIPs: 254}
	g.Expect(k8s.Status().Update(t.Context(), pool)).To(Succeed())
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.NetworkPoolKind))
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(pool), stored)).To(Succeed())
	g.Expect(stored.Object["status"]).To(And(
		HaveKeyWithValue("availableIPs", BeEquivalentTo(0)), HaveKeyWithValue("outOfRangeIPs", BeEquivalentTo(0)),
		HaveKeyWithValue("largestFreeBlock", BeEquivalentTo(0)), HaveKeyWithValue("fragmentationPercent", BeEquivalentTo(0)),
		HaveKeyWithValue("allocationCount", BeEquivalentTo(0)), HaveKeyWithValue("totalIPs", BeEquivalentTo(254))))
}
