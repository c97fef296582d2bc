package integration

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gstruct"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// fakeHost writes what a host does. The period of its heartbeat is one second.
type fakeHost string

// writeHeartbeat writes the heartbeat of the host.
func (h fakeHost) writeHeartbeat(ctx context.Context) {
	GinkgoHelper()
	o, hostState := &coordinationv1.Lease{}, &hostlb.Host{Name: string(h), Networks: []hostlb.Network{{Prefix: netip.MustParsePrefix("10.162.0.0/16"), MAC: "02:00:00:00:00:01", Interface: "eth0"}}}
	record.WriteHeartbeat(o, hostState, "boot", metav1.NowMicro(), 1)
	write := func(o *coordinationv1.Lease) { record.WriteHeartbeat(o, hostState, "boot", metav1.NowMicro(), 1) }
	if err := k8s.Create(ctx, o); apierrors.IsAlreadyExists(err) {
		modify(ctx, o, write)
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
}

// keepAlive makes the host write its heartbeat until the spec ends, or the returned function is called.
func (h fakeHost) keepAlive(ctx context.Context) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		for ticker := time.NewTicker(300 * time.Millisecond); ; {
			h.writeHeartbeat(context.WithoutCancel(ctx))
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return func() { cancel(); <-done }
}

// writeLock writes the lock of an address, with the host as holder and its report.
func (h fakeHost) writeLock(ctx context.Context, l *v1alpha1.IPLease, report *record.Report) {
	GinkgoHelper()
	lock := record.Lock{Address: netip.MustParseAddr(l.Status.Address), Report: report}
	o := &coordinationv1.Lease{}
	lock.WriteLease(o, string(h))
	if err := k8s.Create(ctx, o); apierrors.IsAlreadyExists(err) {
		modify(ctx, o, func(o *coordinationv1.Lease) { lock.WriteLease(o, string(h)) })
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
}

// lockOf returns the lock of the address of a lease.
func lockOf(l *v1alpha1.IPLease) *coordinationv1.Lease {
	o := &coordinationv1.Lease{}
	(&record.Lock{Address: netip.MustParseAddr(l.Status.Address)}).WriteLease(o, "")
	return o
}

// hostPool returns a pool whose addresses hosts announce.
func hostPool(ns, cidr string) *v1alpha1.NetworkPool {
	p := leasePool(ns, cidr)
	p.Spec.Leases.LoadBalancerClass = v1alpha1.HostLoadBalancerClass
	return p
}

// hostService returns a Service that hosts publish.
func hostService(ns, name string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1alpha1.HostLoadBalancerClass),
	}}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "p" + string(rune('a'+len(s.Spec.Ports))), Protocol: corev1.ProtocolTCP, Port: p})
	}
	return s
}

// expectServiceReason waits until the condition of a Service has a reason, and returns the message.
func expectServiceReason(ctx context.Context, s *corev1.Service, reason string) string {
	GinkgoHelper()
	var condition *metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(s), s)).To(Succeed())
		condition = meta.FindStatusCondition(s.Status.Conditions, v1alpha1.LeaseSatisfiedCondition)
		g.Expect(condition).To(HaveValue(HaveField("Reason", reason)))
	}).Should(Succeed())
	return condition.Message
}

// expectLease waits until a condition of a lease has a reason, and returns the message.
func expectLease(ctx context.Context, l *v1alpha1.IPLease, condition, reason string) string {
	GinkgoHelper()
	var current *metav1.Condition
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		current = meta.FindStatusCondition(l.Status.Conditions, condition)
		g.Expect(current).To(HaveValue(HaveField("Reason", reason)))
	}).WithTimeout(framework.LongTimeout).Should(Succeed())
	return current.Message
}

// expectIngress waits until the status of a Service has an address with these ports, or none.
func expectIngress(ctx context.Context, s *corev1.Service, address string, ports ...corev1.PortStatus) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, keyOf(s), s)).To(Succeed())
		in := s.Status.LoadBalancer.Ingress
		if address == "" {
			g.Expect(in).To(BeEmpty())
			return
		}
		g.Expect(in).To(ConsistOf(gstruct.MatchFields(gstruct.IgnoreExtras, gstruct.Fields{"IP": Equal(address), "Ports": Equal(ports)})))
	}).Should(Succeed())
}

func tcp(port int32) corev1.PortStatus {
	return corev1.PortStatus{Port: port, Protocol: corev1.ProtocolTCP}
}

var _ = Describe("Leases of Services on hosts", Ordered, func() {
	var m *framework.Manager
	var lonely *corev1.Service
	BeforeAll(func(ctx SpecContext) {
		create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: record.Namespace}})
		kubeconfig, err := cp.HostLBsManagerKubeconfig(ctx)
		Expect(err).NotTo(HaveOccurred())
		m = startManagerAs(ctx, kubeconfig, "--host-load-balancers")
		ns := newNamespace(ctx, nil)
		lonely = hostService(ns, "lonely", 80)
		create(ctx, hostPool(ns, "10.163.0.0/28"), lonely)
	})

	It("are published once a host has announced them, and withdrawn before they are free", func(ctx SpecContext) { // H20, H21
		ns := newNamespace(ctx, nil)
		h1, h2, s := fakeHost("h1"), fakeHost("h2"), hostService(ns, "web", 80, 443)
		DeferCleanup(h1.keepAlive(ctx))
		DeferCleanup(h2.keepAlive(ctx))
		l := framework.MakeLease(ns, "web-ipv4").Obj()
		create(ctx, hostPool(ns, "10.162.0.0/28"), s)
		Expect(expectServiceReason(ctx, s, v1alpha1.GrantedReason)).To(Equal("has TCP/80, TCP/443 of 10.162.0.1"))
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
			g.Expect(l.Finalizers).To(ContainElements(v1alpha1.IPLeaseFinalizer, v1alpha1.LeaseShownFinalizer))
			g.Expect(l.Status.ShownBy).To(Equal(v1alpha1.ShownByHost))
		}).Should(Succeed())
		By("adding the address to a host that does not announce it")
		h1.writeLock(ctx, l, &record.Report{LeaseUID: l.UID, Reason: v1alpha1.ContestedReason, Message: "02:00:00:00:00:99 answers"})
		Expect(expectLease(ctx, l, v1alpha1.AnnouncedCondition, v1alpha1.ContestedReason)).To(Equal("02:00:00:00:00:99 answers"))
		expectIngress(ctx, s, "")
		By("announcing it")
		h1.writeLock(ctx, l, &record.Report{LeaseUID: l.UID, Announced: true})
		expectIngress(ctx, s, "10.162.0.1", tcp(80), tcp(443))
		Expect(expectLease(ctx, l, v1alpha1.AnnouncedCondition, v1alpha1.AnnouncedReason)).To(Equal("host h1 has the address"))
		By("moving it to a host that cannot serve one port")
		h2.writeLock(ctx, l, nil)
		h2.writeLock(ctx, l, &record.Report{LeaseUID: l.UID, Announced: true, Ports: []record.PortReport{{Protocol: corev1.ProtocolTCP, Port: 443, Reason: v1alpha1.PortInUseOnHostReason, Message: "sshd listens on it"}}})
		Expect(expectLease(ctx, l, v1alpha1.AnnouncedCondition, v1alpha1.PortInUseOnHostReason)).To(Equal("host h2 has the address, and TCP/443 is not served: sshd listens on it"))
		wrong := tcp(443)
		wrong.Error = ptr.To("butler.butlerlabs.dev/PortInUseOnHost")
		expectIngress(ctx, s, "10.162.0.1", tcp(80), wrong)
		Eventually(func() []string { return eventsAbout(ctx, ns, s) }).Should(ContainElement(v1alpha1.PortInUseOnHostReason))
		By("deleting the Service")
		Expect(k8s.Delete(ctx, s)).To(Succeed())
		Expect(expectLease(ctx, l, v1alpha1.DrainingCondition, v1alpha1.ConfirmingReason)).To(HavePrefix("host h2 is removing the address; "))
		lock := lockOf(l)
		modify(ctx, lock, func(o *coordinationv1.Lease) {
			(&record.Lock{Address: netip.MustParseAddr("10.162.0.1")}).WriteLease(o, "")
		})
		expectGone(ctx, l)
		expectGone(ctx, lock)
	})

	It("are withdrawn from a Service that changes its type, and from all Services when they are deleted in use", func(ctx SpecContext) { // H6
		ns := newNamespace(ctx, nil)
		h, l := fakeHost("h1"), framework.MakeLease(ns, "shop").Obj()
		DeferCleanup(h.keepAlive(ctx))
		one, two := hostService(ns, "one", 80), hostService(ns, "two", 443)
		for _, s := range []*corev1.Service{one, two} {
			s.Annotations = map[string]string{v1alpha1.LeaseAnnotation: "shop"}
		}
		create(ctx, hostPool(ns, "10.162.1.0/28"), l, one, two)
		leasedTo(ctx, l)
		h.writeLock(ctx, l, &record.Report{LeaseUID: l.UID, Announced: true})
		expectIngress(ctx, one, "10.162.1.1", tcp(80))
		expectIngress(ctx, two, "10.162.1.1", tcp(443))
		modify(ctx, one, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
		})
		expectIngress(ctx, one, "")
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
			g.Expect(l.Status.Ports).To(ConsistOf(HaveField("Port", int32(443))))
		}).Should(Succeed())
		Expect(k8s.Delete(ctx, l)).To(Succeed())
		expectIngress(ctx, two, "")
		Expect(expectServiceReason(ctx, two, v1alpha1.LeaseNotReadyReason)).To(ContainSubstring("is being deleted"))
		Expect(expectLease(ctx, l, v1alpha1.DrainingCondition, v1alpha1.ConfirmingReason)).NotTo(BeEmpty())
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
			g.Expect(l.Status.Ports).To(BeEmpty())
		}).Should(Succeed())
		modify(ctx, lockOf(l), func(o *coordinationv1.Lease) {
			(&record.Lock{Address: netip.MustParseAddr("10.162.1.1")}).WriteLease(o, "")
		})
		expectGone(ctx, l)
	})

	It("are kept while the host that had them is silent, until a user sets the annotation that releases them", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		h, s := fakeHost("mute"), hostService(ns, "web", 80)
		l := framework.MakeLease(ns, "web-ipv4").Obj()
		ends := h.keepAlive(ctx)
		create(ctx, hostPool(ns, "10.163.1.0/28"), s)
		expectServiceReason(ctx, s, v1alpha1.GrantedReason)
		Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		h.writeLock(ctx, l, &record.Report{LeaseUID: l.UID, Announced: true})
		expectIngress(ctx, s, "10.163.1.1", tcp(80))
		By("being at rest while the host renews its heartbeat")
		expectRest(ctx, m)
		ends()
		Expect(k8s.Delete(ctx, s)).To(Succeed())
		Expect(expectLease(ctx, l, v1alpha1.DrainingCondition, v1alpha1.HostSilentReason)).To(And(ContainSubstring("host mute"), ContainSubstring("start butler-host-lb"), ContainSubstring(v1alpha1.ReleaseUnconfirmedAnnotation)))
		modify(ctx, l, func(l *v1alpha1.IPLease) {
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, v1alpha1.ReleaseUnconfirmedAnnotation, "")
		})
		expectGone(ctx, l)
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, lockOf(l)))).To(Succeed())
	})

	It("report that no host has them", func(ctx SpecContext) {
		l := framework.MakeLease(lonely.Namespace, "lonely-ipv4").Obj()
		Expect(expectLease(ctx, l, v1alpha1.AnnouncedCondition, v1alpha1.NoHostReason)).To(ContainSubstring("run butler-host-lb"))
		Eventually(func() []string { return eventsAbout(ctx, lonely.Namespace, lonely) }).Should(ContainElement(v1alpha1.NoHostReason))
		expectIngress(ctx, lonely, "")
		Expect(meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ReadyCondition)).To(BeTrue())
	})

	It("are not given to Services of MetalLB, and the condition of the Service reports that", func(ctx SpecContext) {
		ns := newNamespace(ctx, nil)
		s := hostService(ns, "web", 80)
		s.Spec.LoadBalancerClass, s.Annotations = nil, map[string]string{v1alpha1.LeaseAnnotation: "shop"}
		l := framework.MakeLease(ns, "shop").Obj()
		create(ctx, leasePool(ns, "10.162.2.0/28"), l, s)
		leasedTo(ctx, l)
		Expect(expectServiceReason(ctx, s, v1alpha1.NotServedReason)).To(ContainSubstring("--service-leases"))
		expectRest(ctx, m)
		Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		Expect(l.Status.Ports).To(BeEmpty())
		Expect(l.Finalizers).NotTo(ContainElement(v1alpha1.LeaseShownFinalizer))
	})
})

var _ = Describe("Leases of a manager that serves no Services", Ordered, func() {
	It("are not given to Services", func(ctx SpecContext) {
		m := startManager(ctx)
		ns := newNamespace(ctx, nil)
		s, l := hostService(ns, "web", 80), framework.MakeLease(ns, "shop").Obj()
		s.Annotations = map[string]string{v1alpha1.LeaseAnnotation: "shop"}
		create(ctx, hostPool(ns, "10.162.3.0/28"), l, s)
		leasedTo(ctx, l)
		expectRest(ctx, m)
		Expect(k8s.Get(ctx, keyOf(l), l)).To(Succeed())
		Expect(k8s.Get(ctx, keyOf(s), s)).To(Succeed())
		Expect(l.Status.Ports).To(BeEmpty())
		Expect(s.Status.Conditions).To(BeEmpty())
	})
})
