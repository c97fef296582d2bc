//go:build linux

package hostlb

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// startManager starts the manager, with the rights that it needs for hosts and no others.
func startManager(ctx context.Context) *framework.Manager {
	GinkgoHelper()
	rights, err := cp.HostLBsManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binaries.Manager, Kubeconfig: rights, Args: []string{"--host-load-balancers"}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(m.LogTail(40))
		}
		Expect(m.Kill()).To(Succeed())
	})
	return m
}

// createHostService creates a Service for hosts that asks for an address, or for any address if that is empty.
func createHostService(ctx context.Context, name, address string, port int32) *corev1.Service {
	GinkgoHelper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1alpha1.HostLoadBalancerClass), LoadBalancerIP: address,
			AllocateLoadBalancerNodePorts: ptr.To(false), Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: port}},
		},
	}
	Expect(k8s.Create(ctx, s)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, s))).To(Succeed()) })
	return s
}

// published returns a function that returns the address in the status of a Service, or "" if there is none.
func published(ctx context.Context, s *corev1.Service) func() string {
	return func() string {
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
		if len(s.Status.LoadBalancer.Ingress) == 0 {
			return ""
		}
		return s.Status.LoadBalancer.Ingress[0].IP
	}
}

var _ = Describe("With the manager", func() {
	var w *world
	var manager *framework.Manager
	BeforeEach(func(ctx SpecContext) {
		manager = startManager(ctx)
		w = newWorld(ctx, 3)
		pool := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "hosts-" + w.network}}
		pool.Spec.CIDR, pool.Spec.Network = "192.0.2.224/28", w.network
		pool.Spec.Leases = &v1alpha1.Leases{LoadBalancerClass: v1alpha1.HostLoadBalancerClass}
		Expect(k8s.Create(ctx, pool)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Eventually(func(g Gomega) {
				leases := &v1alpha1.IPLeaseList{}
				g.Expect(k8s.List(ctx, leases)).To(Succeed())
				g.Expect(leases.Items).To(BeEmpty())
			}).Should(Succeed())
			Expect(w.writes(ctx)).To(BeEmpty(), "no lock is left")
			Expect(k8s.Delete(ctx, pool)).To(Succeed())
		})
	})

	// H2, H18, H21: a Service gets the lowest free address, and the same one once that was released.
	It("Services get .225 and .226, and .225 again after its release", func(ctx SpecContext) {
		began := time.Now()
		first := createHostService(ctx, "first", "", 80)
		Eventually(published(ctx, first)).Should(Equal("192.0.2.225"))
		AddReportEntry("seconds from a Service to its address, of which 0.6 are questions to the wire", time.Since(began).Seconds())
		second := createHostService(ctx, "second", "", 80)
		Eventually(published(ctx, second)).Should(Equal("192.0.2.226"))
		for _, a := range []string{"192.0.2.225", "192.0.2.226"} {
			Eventually(func() string { return w.respondingHost(ctx, netip.MustParseAddr(a)) }).Should(Not(BeEmpty()))
		}
		most := w.atMostOne(netip.MustParseAddr("192.0.2.225"))
		Expect(k8s.Delete(ctx, first)).To(Succeed())
		Eventually(func() []*host { return w.hostsWith(netip.MustParseAddr("192.0.2.225")) }).Should(BeEmpty())
		Eventually(func(g Gomega) {
			leases := &v1alpha1.IPLeaseList{}
			g.Expect(k8s.List(ctx, leases)).To(Succeed())
			g.Expect(leases.Items).To(HaveLen(1))
		}).Should(Succeed())
		third := createHostService(ctx, "third", "", 80)
		Eventually(published(ctx, third)).Should(Equal("192.0.2.225"))
		Expect(most()).To(Equal(1))
	})

	// H1, H19: ports 80 and 443 of one address, and 8080 and 9090 of another.
	It("two Services share the address that they ask for", func(ctx SpecContext) {
		for address, ports := range map[string][2]int32{"192.0.2.230": {80, 443}, "192.0.2.231": {8080, 9090}} {
			a := netip.MustParseAddr(address)
			name := map[string]string{"192.0.2.230": "web", "192.0.2.231": "app"}[address]
			one, two := createHostService(ctx, name+"-1", address, ports[0]), createHostService(ctx, name+"-2", address, ports[1])
			Eventually(published(ctx, one)).Should(Equal(address))
			Eventually(published(ctx, two)).Should(Equal(address))
			h := w.waitForOnlyHost(a)
			Expect(k8s.Delete(ctx, one)).To(Succeed())
			Consistently(func() bool { return h.has(a) }).WithTimeout(3 * time.Second).Should(BeTrue())
		}
	})

	// H12, H14, H15, P7: a Service gets the next address where a machine that is none of the hosts has the first ones.
	It("a Service gets the next address when another machine has the first ones", func(ctx SpecContext) {
		foreign, err := w.JoinHost("foreign", netip.MustParsePrefix("192.0.2.225/24"), netip.MustParsePrefix("192.0.2.226/24"))
		Expect(err).NotTo(HaveOccurred())
		s := createHostService(ctx, "next", "", 80)
		Eventually(published(ctx, s)).Should(Equal("192.0.2.227"))
		Eventually(func() map[string]string {
			Expect(k8s.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
			return s.Annotations
		}).ShouldNot(HaveKey(v1alpha1.TriedAddressesAnnotation), "it is shown")
		pool := &v1alpha1.GlobalNetworkPool{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: "hosts-" + w.network}, pool)).To(Succeed())
		Expect(pool.Status.Cooling).NotTo(BeEmpty(), "no claim gets them at once")
		Expect(foreign.SetUnplugged(true)).To(Succeed())
	})

	// H22: the end of a host and of the manager moves no address, and no Service loses its address.
	It("a Service keeps its address when a host and the manager are killed", func(ctx SpecContext) {
		s := createHostService(ctx, "kept", "", 80)
		Eventually(published(ctx, s)).Should(Equal("192.0.2.225"))
		a := netip.MustParseAddr("192.0.2.225")
		h := w.waitForOnlyHost(a)
		second := createHostService(ctx, "second", "", 80)
		Eventually(published(ctx, second)).Should(Equal("192.0.2.226"))
		Expect(manager.Kill()).To(Succeed())
		Expect(h.Kill()).To(Succeed())
		Expect(k8s.Delete(ctx, second)).To(Succeed()) // while no manager runs
		startManager(ctx)
		Eventually(func() string { return w.respondingHost(ctx, a) }).Should(And(Not(BeEmpty()), Not(Equal(h.name))))
		Expect(published(ctx, s)()).To(Equal("192.0.2.225"))
		Eventually(func(g Gomega) {
			leases := &v1alpha1.IPLeaseList{}
			g.Expect(k8s.List(ctx, leases)).To(Succeed())
			g.Expect(leases.Items).To(HaveLen(1))
		}).Should(Succeed())
		third := createHostService(ctx, "third", "", 80)
		Eventually(published(ctx, third)).Should(Equal("192.0.2.226"), "the one of the Service that went meanwhile, and no other")
		for _, o := range []*corev1.Service{s, third} { // while that manager runs: it ends before the pool is deleted
			Expect(k8s.Delete(ctx, o)).To(Succeed())
		}
		Eventually(func(g Gomega) {
			leases := &v1alpha1.IPLeaseList{}
			g.Expect(k8s.List(ctx, leases)).To(Succeed())
			g.Expect(leases.Items).To(BeEmpty())
		}).Should(Succeed())
	})
})
