//go:build linux

package agent

import (
	"errors"
	"net"
	"net/netip"
	"slices"
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
func TestConnectionsEndBeforeTheAddress(t *testing.T) { // H30
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
	g.Expect(a.change(&hostlb.Op{Kind: hostlb.Remove, Address: shown})).To(Succeed())
	g.Expect(client.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
	_, err = client.Read(make([]byte, 1))
	g.Expect(errors.Is(err, syscall.ECONNRESET)).To(BeTrue(), "%v", err)
}

// An address belongs on the interface with the longest prefix of it, and stays where it is while that is one of those.
func TestPlaceOf(t *testing.T) { // H29
	network := func(name, prefix string) hostlb.Network {
		return hostlb.Network{Prefix: netip.MustParsePrefix(prefix), Interface: name}
	}
	on := func(names ...string) (out []netif.Link) {
		for _, name := range names {
			out = append(out, netif.Link{Name: name})
		}
		return out
	}
	both := []hostlb.Network{network("eth0", "192.0.2.0/24"), network("eth1", "192.0.2.0/24")}
	for name, c := range map[string]struct {
		networks []hostlb.Network
		on       []netif.Link
		want     string
	}{
		"none has its network":            {networks: []hostlb.Network{network("eth0", "198.51.100.0/24")}, on: on("eth0")},
		"none is up":                      {on: on("eth0")},
		"the first of two":                {networks: both, want: "eth0"},
		"that on which it is":             {networks: both, on: on("eth1"), want: "eth1"},
		"it is on both":                   {networks: both, on: on("eth1", "eth0"), want: "eth0"},
		"it is on one that is down":       {networks: both[1:], on: on("eth0"), want: "eth1"},
		"it is on another network's":      {networks: both, on: on("eth9"), want: "eth0"},
		"the longer prefix":               {networks: append([]hostlb.Network{network("eth2", "192.0.0.0/16")}, both...), on: on("eth2"), want: "eth0"},
		"of a bridge that its port is in": {networks: []hostlb.Network{network("br0", "192.0.2.0/24")}, on: on("eth0"), want: "br0"},
	} {
		if got := placeOf(shown, c.networks, c.on); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// plug makes an interface that is up, and whose cable is in.
func plug(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"})).To(Succeed())
	for _, end := range []string{name, name + "-peer"} {
		l, err := netlink.LinkByName(end)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(netlink.LinkSetUp(l)).To(Succeed())
	}
}

// onLinks are the interfaces that have an address of ours.
func onLinks(t *testing.T, address netip.Addr) (out []string) {
	t.Helper()
	all, err := netif.Read()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for i := range all {
		if slices.Contains(all[i].Ours, address) {
			out = append(out, all[i].Name)
		}
	}
	return out
}

// What is on an interface without a cable, or whose network has moved to another one, is taken off: else the host would keep, and
// report, an address that answers to no one. It is added where it belongs.
func TestMisplaced(t *testing.T) {
	for name, c := range map[string]struct {
		only  []string
		moves func(*WithT)
		want  string
	}{
		"all is well": {moves: func(*WithT) {}, want: "wire0"},
		"the cable is pulled": {moves: func(g *WithT) {
			l, err := netlink.LinkByName("wire1")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(netlink.LinkSetDown(l)).To(Succeed())
		}, want: "second"},
		"the interface is put into a bridge": {moves: func(g *WithT) {
			g.Expect(netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}})).To(Succeed())
			br, err := netlink.LinkByName("br0")
			g.Expect(err).NotTo(HaveOccurred())
			port, err := netlink.LinkByName("wire0")
			g.Expect(err).NotTo(HaveOccurred())
			address, err := netlink.ParseAddr("192.0.2.1/24")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(netlink.LinkSetMaster(port, br)).To(Succeed())
			g.Expect(netlink.AddrDel(port, address)).To(Succeed())
			g.Expect(netlink.AddrAdd(br, address)).To(Succeed())
			g.Expect(netlink.LinkSetUp(br)).To(Succeed())
		}, want: "br0"},
		"the flags name another one": {only: []string{"second"}, moves: func(*WithT) {}, want: "second"},
	} {
		t.Run(name, func(t *testing.T) {
			wires.New(t)
			g := NewWithT(t)
			own(t, "wire0", "192.0.2.1/24")
			put(t, "wire0", shown)
			plug(t, "second")
			if name != "the interface is put into a bridge" {
				own(t, "second", "192.0.2.2/24")
			}
			a := onWires(t, Options{Interfaces: c.only})
			c.moves(g)
			g.Eventually(func() string { // the kernel takes a moment to see that a cable is out
				g.Expect(a.readLinks(t.Context())).To(Succeed())
				l, err := a.linkOf(shown)
				g.Expect(err).NotTo(HaveOccurred())
				return l.Name
			}).WithTimeout(patience).Should(Equal(c.want))
			if c.want == "wire0" {
				g.Expect(onLinks(t, shown)).To(Equal([]string{"wire0"}))
				g.Expect(a.isMine(shown)).To(BeTrue())
				return
			}
			g.Expect(onLinks(t, shown)).To(BeEmpty())
			g.Expect(a.isMine(shown)).To(BeFalse())
			g.Expect(a.memory.Holds()).To(BeFalse(), "it does not take it for shown")
			g.Expect(a.change(&hostlb.Op{Kind: hostlb.Add, Address: shown, At: time.Now()})).To(Succeed())
			g.Expect(onLinks(t, shown)).To(Equal([]string{c.want}))
			g.Expect(a.readLinks(t.Context())).To(Succeed())
			g.Expect(a.isMine(shown)).To(BeTrue())
		})
	}
}

// What a host has itself is told to others: of the networks that it shows addresses of, and of interfaces that answer.
func TestOwnOf(t *testing.T) {
	on := func(quiet bool, texts ...string) netif.Link {
		out := netif.Link{Quiet: quiet}
		for _, text := range texts {
			out.Own = append(out.Own, netip.MustParsePrefix(text))
		}
		return out
	}
	networks := []hostlb.Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}
	got := ownOf([]netif.Link{on(false, "192.0.2.1/24", "10.0.0.1/8"), on(true, "192.0.2.100/32"), on(false, "127.0.0.1/8", "192.0.2.7/32")}, networks)
	NewWithT(t).Expect(got).To(Equal([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.7")}))
}
