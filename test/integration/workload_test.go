package integration

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// workload is the API server of a workload cluster, with MetalLB's CRDs. No MetalLB runs: the specs check the objects
// that the manager shows to it, and the blocks that the manager requests for its Services.
type workload struct {
	*framework.ControlPlane
	client.Client
}

// startWorkload starts a workload cluster that runs until the spec, or the container, ends.
func startWorkload(ctx context.Context) *workload {
	GinkgoHelper()
	server, err := framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
	Expect(server.InstallMetalLB(ctx)).To(Succeed())
	admin, err := server.NewClient()
	Expect(err).NotTo(HaveOccurred())
	return &workload{server, admin}
}

// createElasticCluster creates the Cluster of this workload cluster, with an elastic ProviderConfig of its own that
// begins with one address of pool p.
func (w *workload) createElasticCluster(ctx context.Context, ns, name string) *clusterv1.Cluster {
	GinkgoHelper()
	config := provider(ns, name, "p")
	config.Spec.Network.LoadBalancer = &v1alpha1.LoadBalancerPool{
		AllocationMode: v1alpha1.ElasticAllocation, InitialPoolSize: ptr.To[int32](1), GrowthIncrement: ptr.To[int32](1),
	}
	create(ctx, config)
	cluster, err := framework.CreateCluster(ctx, k8s, w.ControlPlane, metav1.ObjectMeta{
		Namespace: ns, Name: name, Labels: map[string]string{v1alpha1.ProviderConfigLabel: name},
	})
	Expect(err).NotTo(HaveOccurred())
	return cluster
}

// createService creates a Service that requests an address.
func (w *workload) createService(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(w.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	})).To(Succeed())
}

// waitForPoolEntries waits until the IPAddressPool of the blocks has `blocks` entries, and returns it.
func (w *workload) waitForPoolEntries(ctx context.Context, blocks int) *metallbv1beta1.IPAddressPool {
	GinkgoHelper()
	pool := &metallbv1beta1.IPAddressPool{}
	Eventually(func(g Gomega) {
		g.Expect(w.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, pool)).To(Succeed())
		g.Expect(pool.Spec.Addresses).To(HaveLen(blocks))
	}).Should(Succeed())
	return pool
}
