package integration

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// The garbage collector and the namespace controller of Kubernetes run.
var _ = Describe("A namespace that has a pool of the in-cluster provider, its mirror and claims", Ordered, func() {
	const flag = "--serve-in-cluster-pools"
	var ns, rights string
	var pool *unstructured.Unstructured

	BeforeAll(func(ctx SpecContext) {
		stop, err := cp.StartControllerManager()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { Expect(stop()).To(Succeed()) })
		Expect(cp.InstallInClusterPools()).To(Succeed())
		kubeconfig, err := cp.InClusterManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		rights = "--kubeconfig=" + kubeconfig
	})

	// served starts a manager that serves two claims of the pool.
	served := func(ctx context.Context) *framework.Manager {
		GinkgoHelper()
		ns = newNamespace(ctx, nil)
		pool = makeInClusterPool(ctx, ipPool, ns, "p", map[string]any{"addresses": []any{"10.79.0.10-10.79.0.19"}, "prefix": int64(24), "gateway": "10.79.0.1"})
		create(ctx, claimOn(ns, "a", ipPool, "p"), claimOn(ns, "b", ipPool, "p"))
		m := namespaceManager(ctx, ns, flag, rights)
		addressOf(ctx, ns, "a")
		addressOf(ctx, ns, "b")
		return m
	}

	It("is deleted completely while a manager serves them", func(ctx SpecContext) {
		served(ctx)
		deleteNamespace(ctx, ns)
		expectNamespaceGone(ctx, ns)
	})

	It("is deleted completely after they went back to their own provider", func(ctx SpecContext) {
		Expect(served(ctx).Stop()).To(Succeed())
		namespaceManager(ctx, ns)
		deleteNamespace(ctx, ns)
		other := &peer{ns: ns, pool: pool, first: netip.MustParseAddr("10.79.0.10"), last: netip.MustParseAddr("10.79.0.19"), gateway: "10.79.0.1"}
		Eventually(func() int {
			other.serveClaims(ctx)
			return len(objects(ctx, ns).Claims)
		}).Should(BeZero())
		// The provider does that when no address of the pool is in use.
		modify(ctx, pool, func(o *unstructured.Unstructured) { controllerutil.RemoveFinalizer(o, incluster.PoolFinalizer) })
		expectNamespaceGone(ctx, ns)
	})
})

// expectNamespaceGone waits until a namespace is gone: its controller retries after seconds.
func expectNamespaceGone(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func() error {
		return k8s.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
	}).WithTimeout(framework.LongTimeout).Should(MatchError(ContainSubstring("not found")))
}

// deleteNamespace deletes a namespace, with all its objects.
func deleteNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
}
