//go:build linux

package agent

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/forward"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/netif"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/wires"
)

const patience = 20 * time.Second

var shown = netip.MustParseAddr("192.0.2.100")

// own gives an interface an address of the host.
func own(t *testing.T, name, prefix string) {
	t.Helper()
	g := NewWithT(t)
	l, err := netlink.LinkByName(name)
	g.Expect(err).NotTo(HaveOccurred())
	a, err := netlink.ParseAddr(prefix)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(netlink.AddrAdd(l, a)).To(Succeed())
}

// onWires is a host in a network namespace of the test, which has read its interfaces.
func onWires(t *testing.T, o Options) *Agent {
	t.Helper()
	o.Name, o.Timing = "h1", hostlb.DefaultTiming()
	a := New(o, nil, nil, nil, logr.Discard())
	t.Cleanup(a.close)
	NewWithT(t).Expect(a.readLinks(t.Context())).To(Succeed())
	return a
}

// put puts an address of ours on an interface.
func put(t *testing.T, name string, address netip.Addr) {
	t.Helper()
	g := NewWithT(t)
	all, err := netif.Read()
	g.Expect(err).NotTo(HaveOccurred())
	for i := range all {
		if all[i].Name == name {
			g.Expect(all[i].Add(address, time.Minute)).To(Succeed())
		}
	}
}

// A client that only receives learns that its connection has ended, when the address is taken off on purpose.
func TestConnectionsEndBeforeTheAddress(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	own(t, "wire0", "192.0.2.1/24")
	put(t, "wire0", shown)
	a := onWires(t, Options{Forward: true})
	backends := make(chan net.Listener)
	go func() { // where the forwarder is: what is on other threads is in the namespace of the process
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
		}
		backends <- l
	}()
	backend := <-backends
	defer func() { _ = backend.Close() }()
	port := forward.Port{Protocol: corev1.ProtocolTCP, Address: netip.AddrPortFrom(shown, 80)}
	g.Expect(a.proxy.Set(t.Context(), map[forward.Port]forward.Target{port: forward.To(netip.MustParseAddrPort(backend.Addr().String()))})).To(BeEmpty())
	defer a.proxy.Set(t.Context(), nil)
	client, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", port.Address.String())
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = client.Close() }()
	g.Eventually(func() int64 {
		byPort, _ := a.proxy.Counts()
		return byPort[port].Open
	}).WithTimeout(patience).Should(BeEquivalentTo(1))
	g.Expect(a.change(t.Context(), &hostlb.Op{Kind: hostlb.Remove, Address: shown})).To(Succeed())
	g.Expect(client.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
	_, err = client.Read(make([]byte, 1))
	g.Expect(errors.Is(err, syscall.ECONNRESET)).To(BeTrue(), "%v", err)
}
