//go:build linux

package hostlb

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

// service creates a Service for hosts with these ports, and returns it with the entries that it has in the status of
// its lease.
func service(ctx context.Context, policy corev1.ServiceExternalTrafficPolicy, ports ...corev1.ServicePort) (*corev1.Service, []v1alpha1.LeasedPort) {
	GinkgoHelper()
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "web-"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1alpha1.HostLoadBalancerClass), ExternalTrafficPolicy: policy, Ports: ports,
		},
	}
	Expect(k8s.Create(ctx, s)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, s))).To(Succeed()) })
	var out []v1alpha1.LeasedPort
	for _, p := range s.Spec.Ports {
		out = append(out, v1alpha1.LeasedPort{Protocol: p.Protocol, Port: p.Port, Service: s.Name, UID: s.UID})
	}
	return s, out
}

func servicePort(protocol corev1.Protocol, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: strings.ToLower(fmt.Sprintf("%s-%d", protocol, number)), Protocol: protocol, Port: number, TargetPort: intstr.FromInt32(number)}
}

// endpoints creates an EndpointSlice with endpoints that are ready on these Nodes.
func endpoints(ctx context.Context, s *corev1.Service, nodes ...string) *discoveryv1.EndpointSlice {
	GinkgoHelper()
	o := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, name := range nodes {
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}, NodeName: ptr.To(name)})
	}
	Expect(k8s.Create(ctx, o)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, o))).To(Succeed()) })
	return o
}

// node joins a Node that is ready, and is none of the hosts.
func (w *world) node(ctx context.Context, number int) *netns.Namespace {
	GinkgoHelper()
	address := fmt.Sprintf("192.0.2.%d", 200+number)
	s, err := w.JoinHost(fmt.Sprintf("node%d", number), netip.MustParsePrefix(address+"/24"))
	Expect(err).NotTo(HaveOccurred())
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-" + w.network}}
	Expect(k8s.Create(ctx, o)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
	o.Status = corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}
	Expect(k8s.Status().Update(ctx, o)).To(Succeed())
	return s
}

// backend answers on a port of a Node with its name and what it was sent: over TCP when the client has closed its half,
// over UDP at once.
func backend(ctx context.Context, s *netns.Namespace, protocol corev1.Protocol, port int32) {
	GinkgoHelper()
	address := fmt.Sprintf(":%d", port)
	if protocol == corev1.ProtocolUDP {
		var c net.PacketConn
		Expect(s.RunInside(func() (err error) {
			c, err = (&net.ListenConfig{}).ListenPacket(ctx, "udp4", address)
			return err
		})).To(Succeed())
		DeferCleanup(c.Close)
		go func() {
			buffer := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(s.Name+" "+string(buffer[:n])), from)
			}
		}()
		return
	}
	l, err := s.Listen(ctx, address)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(l.Close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				text, _ := io.ReadAll(c)
				_, _ = io.WriteString(c, s.Name+" "+string(text))
				_ = c.Close()
			}()
		}
	}()
}

// sendTCP sends a text, closes its half, and returns the answer.
func (w *world) sendTCP(ctx context.Context, to netip.AddrPort, text string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := w.client.Dial(ctx, "tcp", to.String())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	if half, ok := c.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(answer)
}

func portReport(protocol corev1.Protocol, port int32, reason string) any {
	return And(HaveField("Protocol", protocol), HaveField("Port", port), HaveField("Reason", reason), HaveField("Message", Not(BeEmpty())))
}

var _ = Describe("Services", func() {
	// H11: one address with several Services and ports.
	It("are forwarded to NodePorts, over UDP and over TCP with half-closed connections", func(ctx SpecContext) {
		w := newWorld(ctx, 2, "--forward=proxy")
		node := w.node(ctx, 1)
		web, ofWeb := service(ctx, "", servicePort(corev1.ProtocolTCP, 8080))
		dns, ofDNS := service(ctx, "", servicePort(corev1.ProtocolUDP, 53), servicePort(corev1.ProtocolTCP, 53))
		backend(ctx, node, corev1.ProtocolTCP, web.Spec.Ports[0].NodePort)
		backend(ctx, node, corev1.ProtocolUDP, dns.Spec.Ports[0].NodePort)
		backend(ctx, node, corev1.ProtocolTCP, dns.Spec.Ports[1].NodePort)
		w.lease(ctx, four, append(ofWeb, ofDNS...)...)
		h := w.waitForOnlyHost(four)
		asks := func() string { return w.sendTCP(ctx, netip.AddrPortFrom(four, 8080), "hello") }
		pings := func() string { return w.sendUDP(ctx, netip.AddrPortFrom(four, 53), "query") }
		Eventually(asks).Should(Equal("node1 hello"))
		Eventually(pings).Should(Equal("node1 query"))
		Eventually(func() string { return w.sendTCP(ctx, netip.AddrPortFrom(four, 53), "axfr") }).Should(Equal("node1 axfr"))

		By("killing the host")
		Expect(h.Kill()).To(Succeed())
		Eventually(asks).Should(Equal("node1 hello"))
		Eventually(pings).Should(Equal("node1 query"))
	})

	// H13: a port that cannot be listened on is reported, and does not keep the others from being served.
	It("have a report of the ports that a host cannot serve", func(ctx SpecContext) {
		w := newWorld(ctx, 1, "--forward=proxy") // the host of the test listens on port 80 of all its addresses
		node := w.node(ctx, 1)
		s, ports := service(ctx, "", servicePort(corev1.ProtocolTCP, 80), servicePort(corev1.ProtocolTCP, 8080), servicePort(corev1.ProtocolTCP, 8081), servicePort(corev1.ProtocolSCTP, 9))
		backend(ctx, node, corev1.ProtocolTCP, s.Spec.Ports[1].NodePort)
		backend(ctx, node, corev1.ProtocolTCP, s.Spec.Ports[2].NodePort)
		var clash net.Listener
		Expect(w.hosts[0].RunInside(func() (err error) {
			free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
				_ = c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_FREEBIND, 1) })
				return err
			}}
			clash, err = free.Listen(ctx, "tcp4", netip.AddrPortFrom(four, 8081).String())
			return err
		})).To(Succeed())
		w.lease(ctx, four, ports...)
		Eventually(w.report(ctx, four)).Should(And(HaveField("Announced", true), HaveField("Ports", ConsistOf(
			portReport(corev1.ProtocolTCP, 80, v1alpha1.PortInUseOnHostReason),
			portReport(corev1.ProtocolTCP, 8081, v1alpha1.AddressInUseReason),
			portReport(corev1.ProtocolSCTP, 9, v1alpha1.PortNotSupportedReason),
		))))
		Eventually(func() string { return w.sendTCP(ctx, netip.AddrPortFrom(four, 8080), "hello") }).Should(Equal("node1 hello"))

		By("closing the other listener")
		Expect(clash.Close()).To(Succeed())
		Eventually(w.report(ctx, four)).Should(HaveField("Ports", HaveLen(2)))
		Eventually(func() string { return w.sendTCP(ctx, netip.AddrPortFrom(four, 8081), "hello") }).Should(Equal("node1 hello"))
	})

	It("with externalTrafficPolicy Local have their address on a Node with endpoints of all of them", func(ctx SpecContext) {
		// The lifetime is twice that of the other specs: the address is watched all the time, and must stay even if a busy
		// machine pauses.
		w := newWorld(ctx, 3, "--node-name=$HOST", "--lease-duration="+observePeriod.String())
		one, ofOne := service(ctx, corev1.ServiceExternalTrafficPolicyLocal, servicePort(corev1.ProtocolTCP, 80))
		two, ofTwo := service(ctx, corev1.ServiceExternalTrafficPolicyLocal, servicePort(corev1.ProtocolTCP, 81))
		h1, h2, h3 := w.hosts[0], w.hosts[1], w.hosts[2]
		slice := endpoints(ctx, one, h1.name, h2.name)
		endpoints(ctx, two, h2.name, h3.name)
		most := w.atMostOne(four)
		w.lease(ctx, four, append(ofOne, ofTwo...)...)
		Eventually(func() bool { return h2.has(four) }).Should(BeTrue())
		Eventually(w.report(ctx, four)).Should(And(HaveField("Announced", true), HaveField("Reason", "")))

		By("moving the endpoints")
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.9"}, NodeName: ptr.To(h3.name)}}
		Expect(k8s.Update(ctx, slice)).To(Succeed())
		Eventually(func() bool { return h3.has(four) }).Should(BeTrue())

		By("deleting them: the address stays, and the report has a reason")
		slice.Endpoints = nil
		Expect(k8s.Update(ctx, slice)).To(Succeed())
		Eventually(w.report(ctx, four)).Should(HaveField("Reason", v1alpha1.NoCommonNodeReason))
		Consistently(func() bool { return h3.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(most()).To(Equal(1))
	})
})
