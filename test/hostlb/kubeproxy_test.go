//go:build linux

package hostlb

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// startKubeProxy starts the real kube-proxy on a host, as a Node of the name of the host.
func (h *host) startKubeProxy(ctx context.Context, number int) {
	GinkgoHelper()
	program, nft := os.Getenv("KUBE_PROXY"), os.Getenv("NFT")
	if program == "" || nft == "" {
		Skip("SKIPPED: no kube-proxy and no nft: make host-lb-test has both")
	}
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}}
	Expect(k8s.Create(ctx, o)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, o)).To(Succeed()) })
	o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", number)}}
	Expect(k8s.Status().Update(ctx, o)).To(Succeed())
	cfg, err := clientcmd.LoadFromFile(cp.Kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	for _, c := range cfg.Clusters {
		c.Server = "https://" + h.Relay.Address
	}
	dir := GinkgoT().TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	Expect(clientcmd.WriteToFile(*cfg, kubeconfig)).To(Succeed())
	Expect(os.Symlink(nft, filepath.Join(dir, "nft"))).To(Succeed())
	Expect(h.RunInside(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) })).To(Succeed())
	out := &writer{}
	cmd := exec.Command(program, //nolint:noctx // it is ended by the spec
		"--kubeconfig="+kubeconfig, "--hostname-override="+h.name, "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16",
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		"--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256", "--nodeport-addresses=primary",
	)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	Expect(h.StartProcess(cmd)).To(Succeed())
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println("kube-proxy of", h.name, "\n"+out.String())
		}
	})
}

var _ = Describe("With kube-proxy", func() {
	It("packets for the address reach the endpoints, before and after it moves", func(ctx SpecContext) {
		w := newWorld(ctx, 0)
		pod, err := w.JoinHost("pod", netip.MustParsePrefix("192.0.2.201/24"))
		Expect(err).NotTo(HaveOccurred())
		backend(ctx, pod, corev1.ProtocolTCP, 8080)
		for i := range 2 {
			h := w.join(ctx, fmt.Sprintf("h%d", i+1), i+1, "--node-name=$HOST")
			h.startKubeProxy(ctx, i+1)
			h.start()
			h.awaitHeartbeat(ctx)
		}
		s, ports := service(ctx, "", servicePort(corev1.ProtocolTCP, 80))
		slice := endpoints(ctx, s)
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.201"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}}
		slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To(s.Spec.Ports[0].Name), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](8080)}}
		Expect(k8s.Update(ctx, slice)).To(Succeed())
		w.lease(ctx, four, ports...)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: four.String()}} // as the manager publishes it
		Expect(k8s.Status().Update(ctx, s)).To(Succeed())
		h := w.waitForOnlyHost(four)
		asks := func() string { return w.sendTCP(ctx, netip.AddrPortFrom(four, 80), "hello") }
		Eventually(asks).WithTimeout(framework.LongTimeout).Should(Equal("pod hello"))
		Expect(h.Kill()).To(Succeed())
		other := w.others(h)[0]
		Eventually(func() bool { return other.has(four) && !h.has(four) }).Should(BeTrue())
		Eventually(asks).WithTimeout(framework.LongTimeout).Should(Equal("pod hello"))
	})
})
