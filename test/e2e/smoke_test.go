package e2e

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var _ = Describe("The environment of the other specs", func() {
	It("has a MetalLB that gives Services addresses, after a crash too", func(ctx SpecContext) {
		pool := &metallbv1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: framework.MetalLBNamespace, Name: "default-pool"},
			Spec:       metallbv1beta1.IPAddressPoolSpec{Addresses: []string{"10.90.0.5-10.90.0.7"}},
		}
		Expect(workload.Create(ctx, pool)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(workload.Delete(ctx, pool)).To(Succeed()) })
		ns := workload.newNamespace(ctx)
		expectAddress(ctx, newService(ctx, ns, "before"), "10.90.0.5")

		Expect(metalLB.Kill()).To(Succeed())
		after := newService(ctx, ns, "after")
		restarted, err := workload.StartMetalLB(ctx)
		Expect(err).NotTo(HaveOccurred())
		metalLB = restarted
		expectAddress(ctx, after, "10.90.0.6")
		Eventually(func() (metallbv1beta1.IPAddressPoolStatus, error) {
			err := workload.Get(ctx, client.ObjectKeyFromObject(pool), pool)
			return pool.Status, err
		}).Should(Equal(metallbv1beta1.IPAddressPoolStatus{AssignedIPv4: 2, AvailableIPv4: 1}))
	})

	It("has a management cluster with the manager, from which the workload cluster is reachable", func(ctx SpecContext) {
		startManager(ctx)
		tenant, err := framework.CreateCluster(ctx, management, workload.ControlPlane, metav1.ObjectMeta{
			Namespace: management.newNamespace(ctx), Name: "tenant", Labels: map[string]string{"team": "a"},
		})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(management.Delete(ctx, tenant)).To(Succeed()) })
		Expect(tenant.Labels).To(HaveKeyWithValue("team", "a"))
		Expect(tenant.Status.Initialization).To(HaveField("InfrastructureProvisioned", HaveValue(BeTrue())))

		credentials, err := kubeconfig.FromSecret(ctx, management, client.ObjectKeyFromObject(tenant))
		Expect(err).NotTo(HaveOccurred())
		config, err := clientcmd.RESTConfigFromKubeConfig(credentials)
		Expect(err).NotTo(HaveOccurred())
		reached, err := client.New(config, client.Options{Scheme: workload.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		// Only the workload cluster has that namespace.
		Expect(reached.Get(ctx, client.ObjectKey{Name: framework.MetalLBNamespace}, &corev1.Namespace{})).To(Succeed())
	})
})

// newService creates a Service of the workload cluster that requests an address, for one spec.
func newService(ctx context.Context, ns, name string) *corev1.Service {
	GinkgoHelper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	Expect(workload.Create(ctx, service)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(workload.Delete(ctx, service)).To(Succeed()) })
	return service
}

// expectAddress waits until MetalLB has assigned the address to a Service.
func expectAddress(ctx context.Context, service *corev1.Service, address string) {
	GinkgoHelper()
	Eventually(func() ([]corev1.LoadBalancerIngress, error) {
		err := workload.Get(ctx, client.ObjectKeyFromObject(service), service)
		return service.Status.LoadBalancer.Ingress, err
	}).Should(ConsistOf(HaveField("IP", address)))
}
