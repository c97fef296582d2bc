package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// tenant is a namespace with leases, of a management cluster that is its own workload cluster.
type tenant struct {
	cluster

	ns string
}

// newTenant creates a namespace and a lease of a global pool.
func newTenant(ctx context.Context, pool, lease string) tenant {
	GinkgoHelper()
	t := workload.newTenant(ctx)
	t.newLease(ctx, lease, pool)
	return t
}

// newTenant creates a namespace.
func (c cluster) newTenant(ctx context.Context) tenant {
	GinkgoHelper()
	t := tenant{c, c.newNamespace(ctx)}
	DeferCleanup(t.deleteAll)
	return t
}

// newLease creates a lease of a global pool.
func (t tenant) newLease(ctx context.Context, name, pool string) {
	GinkgoHelper()
	Expect(t.Create(ctx, framework.MakeLease(t.ns, name).GlobalPool(pool).Obj())).To(Succeed())
}

// deleteAll deletes the Services and leases of a tenant, and waits until MetalLB has none of its objects: other specs
// share this cluster.
func (t tenant) deleteAll(ctx SpecContext) {
	services := &corev1.ServiceList{}
	Expect(t.List(ctx, services, client.InNamespace(t.ns))).To(Succeed())
	for i := range services.Items {
		Expect(client.IgnoreNotFound(t.Delete(ctx, &services.Items[i]))).To(Succeed())
	}
	Expect(t.DeleteAllOf(ctx, &v1alpha1.IPLease{}, client.InNamespace(t.ns))).To(Succeed())
	Eventually(func(g Gomega) {
		leases := &v1alpha1.IPLeaseList{}
		g.Expect(t.List(ctx, leases, client.InNamespace(t.ns))).To(Succeed())
		g.Expect(leases.Items).To(BeEmpty())
		g.Expect(t.Get(ctx, client.ObjectKey{Namespace: "metallb-system", Name: "lease-" + t.ns}, &metallbv1beta1.IPAddressPool{})).To(Satisfy(apierrors.IsNotFound))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
}

// service creates a Service that names leases.
func (t tenant) service(ctx context.Context, name, leases string, ports ...corev1.ServicePort) *corev1.Service {
	GinkgoHelper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.ns, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: leases}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: ptr.To(false), Ports: ports},
	}
	Expect(t.Create(ctx, s)).To(Succeed())
	return s
}

func port(protocol corev1.Protocol, n int32) corev1.ServicePort {
	return corev1.ServicePort{Name: fmt.Sprintf("p%d", n), Protocol: protocol, Port: n}
}

// lease reads a lease from the API server.
func (t tenant) lease(ctx context.Context, g Gomega, name string) *v1alpha1.IPLease {
	l := &v1alpha1.IPLease{}
	g.Expect(t.Get(ctx, client.ObjectKey{Namespace: t.ns, Name: name}, l)).To(Succeed())
	return l
}

// addressOf waits for the address of a lease, and returns it.
func (t tenant) addressOf(ctx context.Context, name string) (address string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		address = t.lease(ctx, g, name).Status.Address
		g.Expect(address).NotTo(BeEmpty())
	}).Should(Succeed())
	return address
}

// expectPublished waits until Services have an address, and the condition LeaseSatisfied.
func expectPublished(ctx context.Context, address string, services ...*corev1.Service) {
	GinkgoHelper()
	workload.expectPublished(ctx, []string{address}, services...)
}

// expectPublished waits until Services have addresses, and the condition LeaseSatisfied.
func (c cluster) expectPublished(ctx context.Context, addresses []string, services ...*corev1.Service) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		for _, s := range services {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
			var got []string
			for _, in := range s.Status.LoadBalancer.Ingress {
				got = append(got, in.IP)
			}
			g.Expect(got).To(ConsistOf(addresses), "%s: %+v", s.Name, s.Status.Conditions)
			g.Expect(meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)).To(BeTrue())
		}
	}).Should(Succeed())
}

// expectReason waits until the condition of a Service has a reason, and the Service has no address.
func expectReason(ctx context.Context, s *corev1.Service, reason, message string) {
	GinkgoHelper()
	workload.expectReason(ctx, s, reason, message)
}

// expectReason waits until the condition of a Service has a reason, and the Service has no address.
func (c cluster) expectReason(ctx context.Context, s *corev1.Service, reason, message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(s), s)).To(Succeed())
		g.Expect(meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)).To(
			HaveValue(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason), HaveField("Message", ContainSubstring(message)))))
		g.Expect(s.Status.LoadBalancer.Ingress).To(BeEmpty())
	}).Should(Succeed())
}

// startLeases starts a manager that serves Services of leases, until the container ends.
func (c cluster) startLeases(ctx context.Context) *framework.Manager {
	GinkgoHelper()
	kubeconfig, err := c.LeasesAndLoadBalancersManagerKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
	m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: kubeconfig, Args: []string{"--service-leases", "--load-balancers", "--shrink-grace=" + grace}})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(m.LogTail(40))
		}
		Expect(m.Kill()).To(Succeed())
	})
	DeferCleanup(expectRest, m)
	return m
}

// leasePool creates a pool for leases.
func (c cluster) leasePool(ctx context.Context, name, cidr string, leases v1alpha1.Leases) *v1alpha1.GlobalNetworkPool {
	GinkgoHelper()
	pool := framework.MakeGlobalPool(name).CIDR(cidr).Obj()
	pool.Spec.Leases = &leases
	Expect(c.Create(ctx, pool)).To(Succeed())
	return pool
}

var _ = Describe("Services of leases", Ordered, func() {
	var pool *v1alpha1.GlobalNetworkPool
	BeforeAll(func(ctx SpecContext) {
		workload.startLeases(ctx)
		pool = workload.leasePool(ctx, "leases", "10.210.0.0/27", v1alpha1.Leases{})
		DeferCleanup(func(ctx SpecContext) {
			advertisement := &metallbv1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: "butler-leases"}}
			Expect(client.IgnoreNotFound(workload.Delete(ctx, advertisement))).To(Succeed())
		})
	})

	It("share the address of a lease on different ports, among them TCP and UDP 53", func(ctx SpecContext) { // A4-A6, A10, H1, H9, H21
		t := newTenant(ctx, pool.Name, "shop")
		address := t.addressOf(ctx, "shop")
		web, tls := t.service(ctx, "web", "shop", port(corev1.ProtocolTCP, 80)), t.service(ctx, "tls", "shop", port(corev1.ProtocolTCP, 443))
		tcp, udp := t.service(ctx, "dns-tcp", "shop", port(corev1.ProtocolTCP, 53)), t.service(ctx, "dns-udp", "shop", port(corev1.ProtocolUDP, 53))
		expectPublished(ctx, address, web, tls, tcp, udp)
		l := t.lease(ctx, Default, "shop")
		Expect(l.Status.ShownBy).To(Equal("MetalLB"))
		Expect(l.Status.Ports).To(HaveExactElements(
			v1alpha1.LeasedPort{Protocol: "TCP", Port: 53, Service: "dns-tcp", UID: tcp.UID}, v1alpha1.LeasedPort{Protocol: "TCP", Port: 80, Service: "web", UID: web.UID},
			v1alpha1.LeasedPort{Protocol: "TCP", Port: 443, Service: "tls", UID: tls.UID}, v1alpha1.LeasedPort{Protocol: "UDP", Port: 53, Service: "dns-udp", UID: udp.UID}))

		By("requesting a port that is taken")
		late := t.service(ctx, "late", "shop", port(corev1.ProtocolTCP, 80))
		expectReason(ctx, late, v1alpha1.PortTakenReason, address+" TCP/80 is already allocated to Service web; choose another port or lease")
		Expect(workload.Delete(ctx, web)).To(Succeed())
		expectPublished(ctx, address, late)

		By("creating a deleted Service again") // A17, H7, H23
		Expect(workload.Delete(ctx, tls)).To(Succeed())
		tls = t.service(ctx, "tls", "shop", port(corev1.ProtocolTCP, 443), port(corev1.ProtocolTCP, 8443))
		expectPublished(ctx, address, tls)
		Expect(t.addressOf(ctx, "shop")).To(Equal(address))

		By("removing the name of the lease from a Service") // H6, H20
		delete(late.Annotations, v1alpha1.LeaseAnnotation)
		Expect(workload.Update(ctx, late)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.Status.LoadBalancer.Ingress).NotTo(ContainElement(HaveField("IP", address)))
			g.Expect(late.Annotations).NotTo(Or(HaveKey(v1alpha1.LeasedAddressesAnnotation), HaveKey("metallb.io/loadBalancerIPs"), HaveKey("metallb.io/allow-shared-ip")))
			g.Expect(late.Status.Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.LeaseSatisfiedCondition)))
			g.Expect(t.lease(ctx, g, "shop").Status.Ports).NotTo(ContainElement(HaveField("Port", int32(80))))
		}).Should(Succeed())
	})

	It("hand a port over when spec.ports of the lease names another Service", func(ctx SpecContext) { // A2
		t := newTenant(ctx, pool.Name, "shop")
		address := t.addressOf(ctx, "shop")
		declare := func(service string) {
			Eventually(func(g Gomega) {
				l := t.lease(ctx, g, "shop")
				l.Spec.Ports = []v1alpha1.LeasePort{{Protocol: corev1.ProtocolTCP, Port: 443, Service: service}, {Protocol: corev1.ProtocolTCP, Port: 80}}
				g.Expect(workload.Update(ctx, l)).To(Succeed())
			}).Should(Succeed())
		}
		declare("v1")
		v1, v2 := t.service(ctx, "v1", "shop", port(corev1.ProtocolTCP, 443)), t.service(ctx, "v2", "shop", port(corev1.ProtocolTCP, 443))
		odd := t.service(ctx, "odd", "shop", port(corev1.ProtocolTCP, 8080))
		expectPublished(ctx, address, v1)
		expectReason(ctx, v2, v1alpha1.NotDeclaredReason, "spec.ports of IPLease shop has no TCP/443 for this Service")
		expectReason(ctx, odd, v1alpha1.NotDeclaredReason, "TCP/8080")
		declare("v2")
		expectPublished(ctx, address, v2)
		expectReason(ctx, v1, v1alpha1.NotDeclaredReason, "TCP/443")
	})

	It("get no address of another tenant, neither by its sharing key and address nor by the name of its lease", func(ctx SpecContext) { // A7
		mine, otherTenant := newTenant(ctx, pool.Name, "shop"), newTenant(ctx, pool.Name, "shop")
		address := mine.addressOf(ctx, "shop")
		web := mine.service(ctx, "web", "shop", port(corev1.ProtocolTCP, 80))
		expectPublished(ctx, address, web)
		Expect(otherTenant.addressOf(ctx, "shop")).NotTo(Equal(address))
		thief := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: otherTenant.ns, Name: "thief", Labels: map[string]string{v1alpha1.LeasedLabel: "true"}, Annotations: map[string]string{
				"metallb.io/loadBalancerIPs": address, "metallb.io/allow-shared-ip": "lease-" + mine.ns,
			}},
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{port(corev1.ProtocolTCP, 81)}},
		}
		Expect(workload.Create(ctx, thief)).To(Succeed())
		named := otherTenant.service(ctx, "named", mine.ns+"/shop", port(corev1.ProtocolTCP, 82))
		expectReason(ctx, named, v1alpha1.NotAllowedReason, "there is no IPLease shop that Services of namespace "+otherTenant.ns+" may use")
		Eventually(func(g Gomega) {
			events := &corev1.EventList{}
			g.Expect(workload.List(ctx, events, client.InNamespace(otherTenant.ns))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("InvolvedObject.Name", "thief"), HaveField("Reason", "AllocationFailed"))))
		}).Should(Succeed())
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
		Expect(thief.Status.LoadBalancer.Ingress).To(BeEmpty())
	})

	It("lose their address when their lease is deleted, and no object of another tenant changes", func(ctx SpecContext) { // A8, A9, A15
		mine, otherTenant := newTenant(ctx, pool.Name, "shop"), newTenant(ctx, pool.Name, "shop")
		address, their := mine.addressOf(ctx, "shop"), otherTenant.addressOf(ctx, "shop")
		web, other := mine.service(ctx, "web", "shop", port(corev1.ProtocolTCP, 80)), otherTenant.service(ctx, "web", "shop", port(corev1.ProtocolTCP, 80))
		expectPublished(ctx, address, web)
		expectPublished(ctx, their, other)
		poolOf := func(t tenant) *metallbv1beta1.IPAddressPool {
			p := &metallbv1beta1.IPAddressPool{}
			Expect(workload.Get(ctx, client.ObjectKey{Namespace: "metallb-system", Name: "lease-" + t.ns}, p)).To(Succeed())
			return p
		}
		Expect(poolOf(mine).Spec).To(And(
			HaveField("Addresses", []string{address + "-" + address}), HaveField("AutoAssign", HaveValue(BeFalse())),
			HaveField("AllocateTo.Namespaces", []string{mine.ns}), HaveField("AllocateTo.ServiceSelectors", []metav1.LabelSelector{{MatchLabels: map[string]string{"butler.butlerlabs.dev/leased": "true"}}})))
		otherTenant.expectLeaseCondition(ctx, "shop", v1alpha1.AnnouncedCondition, metav1.ConditionTrue, "") // which is written last
		before := []client.Object{otherTenant.lease(ctx, Default, "shop"), other}
		poolBefore := poolOf(otherTenant)

		Expect(workload.Delete(ctx, mine.lease(ctx, Default, "shop"))).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(workload.Get(ctx, client.ObjectKey{Namespace: mine.ns, Name: "shop"}, &v1alpha1.IPLease{}))
		}).WithTimeout(framework.LongTimeout).Should(BeTrue())
		expectReason(ctx, web, v1alpha1.LeaseNotFoundReason, "there is no IPLease shop")
		Expect(apierrors.IsNotFound(workload.Get(ctx, client.ObjectKey{Namespace: "metallb-system", Name: "lease-" + mine.ns}, &metallbv1beta1.IPAddressPool{}))).To(BeTrue())
		poolAfter := poolOf(otherTenant)
		for _, p := range []*metallbv1beta1.IPAddressPool{poolBefore, poolAfter} { // MetalLB writes its counts at any time
			p.Status, p.ResourceVersion, p.ManagedFields = metallbv1beta1.IPAddressPoolStatus{}, "", nil
		}
		Expect(poolAfter).To(Equal(poolBefore))
		after := []client.Object{otherTenant.lease(ctx, Default, "shop"), &corev1.Service{ObjectMeta: other.ObjectMeta}}
		Expect(workload.Get(ctx, client.ObjectKeyFromObject(other), after[1])).To(Succeed())
		for i := range before {
			Expect(after[i].GetResourceVersion()).To(Equal(before[i].GetResourceVersion()), "%T", before[i])
		}
		// Its address is available again.
		again := newTenant(ctx, pool.Name, "again")
		Expect(again.addressOf(ctx, "again")).To(Equal(address))
	})

	It("keep their address while MetalLB does not confirm the change: the lease is not released", func(ctx SpecContext) {
		t := newTenant(ctx, pool.Name, "shop")
		for _, more := range []string{"mail", "stays"} {
			Expect(workload.Create(ctx, framework.MakeLease(t.ns, more).GlobalPool(pool.Name).Obj())).To(Succeed())
		}
		leaving := map[string]*corev1.Service{}
		for _, name := range []string{"shop", "mail", "stays"} {
			leaving[name] = t.service(ctx, name, name, port(corev1.ProtocolTCP, 80))
			expectPublished(ctx, t.addressOf(ctx, name), leaving[name])
		}
		Expect(metalLB.Signal(syscall.SIGSTOP)).To(Succeed())
		resume := sync.OnceFunc(func() { Expect(metalLB.Signal(syscall.SIGCONT)).To(Succeed()) })
		DeferCleanup(resume)
		// One lease without its Service, and one with it.
		Expect(workload.Delete(ctx, leaving["shop"])).To(Succeed())
		for _, name := range []string{"shop", "mail"} {
			Expect(workload.Delete(ctx, t.lease(ctx, Default, name))).To(Succeed())
		}
		drains := func(g Gomega, name, why string) {
			g.Expect(t.lease(ctx, g, name).Status.Conditions).To(ContainElement(And(
				HaveField("Type", v1alpha1.DrainingCondition), HaveField("Reason", v1alpha1.ConfirmingReason), HaveField("Message", ContainSubstring(why)))))
		}
		Eventually(func(g Gomega) {
			drains(g, "shop", "MetalLB has not applied the change of IPAddressPool lease-"+t.ns+" yet")
			drains(g, "mail", "Service mail still has a port of it")
		}).Should(Succeed())
		Consistently(func(g Gomega) {
			t.lease(ctx, g, "shop")
			t.lease(ctx, g, "mail")
		}).WithTimeout(6 * time.Second).WithPolling(time.Second).Should(Succeed())
		resume()
		for _, name := range []string{"shop", "mail"} {
			Eventually(func() bool {
				return apierrors.IsNotFound(workload.Get(ctx, client.ObjectKey{Namespace: t.ns, Name: name}, &v1alpha1.IPLease{}))
			}).WithTimeout(framework.LongTimeout).Should(BeTrue())
		}
		expectPublished(ctx, t.addressOf(ctx, "stays"), leaving["stays"])
	})
})
