//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

// hostsPoolCIDR is a part of the hosts' network; shopPort and dnsPort are the ports of the Services on one of its
// addresses; podPort is the port of their endpoint.
const (
	hostsPoolCIDR = "192.0.2.96/28"
	shopPort      = 80
	dnsPort       = 53
	podPort       = 8080
)

// hostNetwork has three hosts on a switch, and a client and a pod beside them: network namespaces of this machine.
type hostNetwork struct {
	*netns.Switch

	clientSpace *netns.Namespace
	hostsByName map[string]*framework.Host
	// stopPod stops the pod.
	stopPod func()
}

// startHostNetwork creates the switch with the hosts, the client and the pod, and starts the program on each host.
func startHostNetwork(ctx context.Context, cp *framework.ControlPlane, binary string, steps *stepPrinter) (*hostNetwork, error) {
	steps.beginStep("hosts")
	n, err := netns.NewSwitch()
	if err != nil {
		return nil, fmt.Errorf("%w; run it as root on Linux, or see docs/host-lb.md for real hosts", err)
	}
	h := &hostNetwork{Switch: n, hostsByName: map[string]*framework.Host{}, stopPod: func() {}}
	if err := h.setUpHosts(ctx, cp, binary); err != nil {
		return nil, errors.Join(err, h.stopAll())
	}
	steps.endStepf("h1, h2 and h3 at 192.0.2.1 to .3, network namespaces on a switch; butler-host-lb on each, with the rights of config/host-lb")
	return h, nil
}

func (h *hostNetwork) setUpHosts(ctx context.Context, cp *framework.ControlPlane, binary string) (err error) {
	if binary == "" {
		if binary, err = framework.BuildHostLB(ctx, cp.Dir); err != nil {
			return err
		}
	}
	kubeconfig, err := cp.HostKubeconfig(ctx)
	if err != nil {
		return err
	}
	if h.clientSpace, err = h.JoinHost("client", netip.MustParsePrefix("192.0.2.250/24")); err != nil {
		return err
	}
	pod, err := h.JoinHost("pod", netip.MustParsePrefix("192.0.2.201/24"))
	if err != nil {
		return err
	}
	if h.stopPod, err = startPodServer(ctx, pod); err != nil {
		return err
	}
	for i, name := range []string{"h1", "h2", "h3"} {
		s, err := h.JoinHost(name, netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)))
		if err != nil {
			return err
		}
		host, err := cp.JoinHost(ctx, s, binary, kubeconfig)
		if err != nil {
			return err
		}
		if err := host.LaunchProgram("--host-name="+name, "--forward=proxy", "--backends=endpoints"); err != nil {
			return err
		}
		h.hostsByName[name] = host
	}
	return nil
}

// stopAll stops all of it.
func (h *hostNetwork) stopAll() error {
	var errs []error
	for _, host := range h.hostsByName {
		errs = append(errs, host.Kill())
	}
	h.stopPod()
	return errors.Join(append(errs, h.Close())...)
}

// startPodServer answers on TCP and UDP, as the endpoint of both Services.
func startPodServer(ctx context.Context, pod *netns.Namespace) (stop func(), err error) {
	address := fmt.Sprintf(":%d", podPort)
	l, err := pod.Listen(ctx, address)
	if err != nil {
		return func() {}, err
	}
	var packets net.PacketConn
	err = pod.RunInside(func() (err error) {
		packets, err = (&net.ListenConfig{}).ListenPacket(ctx, "udp4", address)
		return err
	})
	if err != nil {
		return func() { _ = l.Close() }, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello from the pod")
			_ = c.Close()
		}
	}()
	go func() {
		buffer := make([]byte, 1<<10)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte("answer to "+string(buffer[:n])), from)
		}
	}()
	return func() { _, _ = l.Close(), packets.Close() }, nil
}

func newHostsScenario(cp *framework.ControlPlane, h *hostNetwork) scenario {
	return scenario{run: h.showHosts, args: []string{"--host-load-balancers"}, description: "--host-load-balancers", kubeconfig: cp.HostLBsManagerKubeconfig, hints: []string{
		"kubectl get ipleases,services -A", "kubectl get leases -n butler-host-lb", "kubectl get ipleases shop -n team-a -o yaml",
		"kubectl delete service -n team-a web dns", "kubectl get leases -n butler-host-lb",
	}}
}

// showHosts shows two Services on one address, and the move of that address.
func (h *hostNetwork) showHosts(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) error {
	c, err := cp.NewClient()
	if err != nil {
		return err
	}
	steps.beginStep("a pool")
	pool := &v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}}
	pool.Spec.CIDR = hostsPoolCIDR
	pool.Spec.Leases = &v1alpha1.Leases{LoadBalancerClass: v1alpha1.HostLoadBalancerClass}
	if err := createObject(ctx, c, pool); err != nil {
		return err
	}
	if err := createObject(ctx, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: teamA}}); err != nil {
		return err
	}
	lease, err := createLeaseAndWait(ctx, c, teamA, "shop")
	if err != nil {
		return err
	}
	address, err := netip.ParseAddr(lease.Status.Address)
	if err != nil {
		return err
	}
	steps.endStepf("GlobalNetworkPool public, %s; IPLease team-a/shop has %s", hostsPoolCIDR, address)

	steps.beginStep("Services")
	rows := [][]string{{"SERVICE", "PORT", addressColumn, "AFTER", "A CLIENT RECEIVES"}}
	for _, s := range []struct {
		name string
		port corev1.ServicePort
	}{
		{"web", corev1.ServicePort{Name: "web", Protocol: corev1.ProtocolTCP, Port: shopPort}},
		{"dns", corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: dnsPort}},
	} {
		start := time.Now()
		if err := h.createLeasedService(ctx, c, s.name, s.port); err != nil {
			return err
		}
		after := time.Since(start)
		reply, err := h.waitForReply(ctx, s.port.Protocol, netip.AddrPortFrom(address, uint16(s.port.Port)))
		if err != nil {
			return err
		}
		rows = append(rows, []string{"team-a/" + s.name, fmt.Sprintf("%s/%d", s.port.Protocol, s.port.Port), address.String(), formatDuration(after), reply})
	}
	steps.endStepf("both on the lease; the first one waits until a host has asked the wire and has the address")
	if err := printTable(steps.out, rows); err != nil {
		return err
	}
	fmt.Fprintln(steps.out)
	return h.showFailover(ctx, c, steps, netip.AddrPortFrom(address, shopPort))
}

// createLeasedService creates a Service on the lease, with an endpoint, and waits until it has the address.
func (h *hostNetwork) createLeasedService(ctx context.Context, c client.WithWatch, name string, port corev1.ServicePort) error {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: teamA, Name: name, Annotations: map[string]string{v1alpha1.LeaseAnnotation: "shop"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1alpha1.HostLoadBalancerClass), Ports: []corev1.ServicePort{port},
		},
	}
	if err := createObject(ctx, c, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.201"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(port.Name), Protocol: ptr.To(port.Protocol), Port: ptr.To[int32](podPort)}},
	}); err != nil {
		return err
	}
	if err := createObject(ctx, c, s); err != nil {
		return err
	}
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(s), s)
		return len(s.Status.LoadBalancer.Ingress) > 0, err
	})
	if err != nil {
		return fmt.Errorf("no address for Service team-a/%s: %w", name, err)
	}
	return nil
}

// showFailover stops the host that has the address, first by force, then gracefully, and prints how long a client waits
// for an answer.
func (h *hostNetwork) showFailover(ctx context.Context, c client.Client, steps *stepPrinter, to netip.AddrPort) error {
	rows := [][]string{{"WHAT HAPPENS", "TO", "THEN", "A CLIENT WAITED"}}
	for _, failure := range []struct {
		text string
		do   func(*framework.Host) error
	}{
		{"kill -9", (*framework.Host).Kill},
		{"SIGTERM", (*framework.Host).Stop},
	} {
		steps.beginStep(failure.text)
		from, err := h.waitForHolder(ctx, c, to.Addr(), "")
		if err != nil {
			return err
		}
		start := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- failure.do(h.hostsByName[from]) }()
		next, err := h.waitForHolder(ctx, c, to.Addr(), from)
		if err != nil {
			return err
		}
		if _, err := h.waitForReply(ctx, corev1.ProtocolTCP, to); err != nil {
			return err
		}
		waited := time.Since(start)
		if err := <-ended; err != nil {
			return err
		}
		steps.endStepf("%s had %s, %s has it now", from, to.Addr(), next)
		rows = append(rows, []string{failure.text, from, next, formatDuration(waited)})
	}
	return printTable(steps.out, rows)
}

// waitForHolder waits until a host other than not has announced an address, and returns its name.
func (h *hostNetwork) waitForHolder(ctx context.Context, c client.Client, a netip.Addr, not string) (string, error) {
	name := ""
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		l, holder, err := framework.ReadAddressLock(ctx, c, a)
		name = holder
		return holder != "" && holder != not && l.Report != nil && l.Report.Announced, err
	})
	if err != nil {
		return "", fmt.Errorf("no host has %s: %w", a, err)
	}
	return name, nil
}

// waitForReply sends requests from the client until there is a reply, and returns it.
func (h *hostNetwork) waitForReply(ctx context.Context, protocol corev1.Protocol, to netip.AddrPort) (string, error) {
	network := map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp"}[protocol]
	reply := ""
	err := pollUntil(ctx, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		c, err := h.clientSpace.Dial(ctx, network, to.String())
		if err != nil {
			return false, nil
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return false, err
		}
		if protocol == corev1.ProtocolUDP {
			if _, err := io.WriteString(c, "a query"); err != nil {
				return false, nil
			}
		}
		buffer := make([]byte, 100)
		n, _ := c.Read(buffer)
		reply = string(buffer[:n])
		return n > 0, nil
	})
	if err != nil {
		return "", fmt.Errorf("no answer at %s: %w", to, err)
	}
	return reply, nil
}

// findHostBinary returns the path of the program beside the manager's; "" where there is none, and it must be built.
func findHostBinary(manager string) string {
	path := filepath.Join(filepath.Dir(manager), "butler-host-lb")
	if _, err := os.Stat(path); manager == "" || err != nil {
		return ""
	}
	return path
}
