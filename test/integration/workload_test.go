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

// workload is the API server of a workload cluster, with MetalLB's kinds. No MetalLB runs: what is looked at is what
// the manager shows to it, and asks for because of its Services.
type workload struct {
	*framework.ControlPlane
	client.Client
}

// startWorkload starts one that lives as long as the spec, or the container.
func startWorkload(ctx context.Context) *workload {
	GinkgoHelper()
	server, err := framework.Start(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(server.Stop()).To(Succeed()) })
	Expect(server.InstallMetalLB(ctx)).To(Succeed())
	admin, err := server.Client()
	Expect(err).NotTo(HaveOccurred())
	return &workload{server, admin}
}

// as makes the Cluster whose workload cluster it is, with an elastic ProviderConfig of its own that begins with one
// address of pool p.
func (w *workload) as(ctx context.Context, ns, name string) *clusterv1.Cluster {
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

// asks makes a Service that wants an address.
func (w *workload) asks(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(w.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	})).To(Succeed())
}

// shown waits until the IPAddressPool of the blocks has so many entries, and returns it.
func (w *workload) shown(ctx context.Context, blocks int) *metallbv1beta1.IPAddressPool {
	GinkgoHelper()
	pool := &metallbv1beta1.IPAddressPool{}
	Eventually(func(g Gomega) {
		g.Expect(w.Get(ctx, client.ObjectKey{Namespace: framework.MetalLBNamespace, Name: "default-pool"}, pool)).To(Succeed())
		g.Expect(pool.Spec.Addresses).To(HaveLen(blocks))
	}).Should(Succeed())
	return pool
}
