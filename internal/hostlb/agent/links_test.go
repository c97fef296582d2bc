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

// addHostAddress gives an interface an address of the host.
func addHostAddress(t *testing.T, name, prefix string) {
	t.Helper()
	g := NewWithT(t)
	l, err := netlink.LinkByName(name)
	g.Expect(err).NotTo(HaveOccurred())
	a, err := netlink.ParseAddr(prefix)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(netlink.AddrAdd(l, a)).To(Succeed())
}

// newWiredAgent returns a host in the network namespace of the test, which has read its interfaces.
func newWiredAgent(t *testing.T, o Options) *Agent {
	t.Helper()
	o.Name, o.Timing = "h1", hostlb.DefaultTiming()
	a := New(o, nil, nil, nil, logr.Discard())
	t.Cleanup(a.closeLinks)
	NewWithT(t).Expect(a.readLinks(t.Context())).To(Succeed())
	return a
}

// addAddress puts an address of a lease on an interface.
func addAddress(t *testing.T, name string, address netip.Addr) {
	t.Helper()
	g := NewWithT(t)
	all, err := netif.ListLinks()
	g.Expect(err).NotTo(HaveOccurred())
	for i := range all {
		if all[i].Name == name {
			g.Expect(all[i].AddAddress(address, time.Minute)).To(Succeed())
		}
	}
}

// TestConnectionsEndBeforeTheAddress checks that a client that only receives learns that its connection has ended, when
// the address is taken off on purpose.
func TestConnectionsEndBeforeTheAddress(t *testing.T) { // H30
	wires.New(t)
	g := NewWithT(t)
	addHostAddress(t, "wire0", "192.0.2.1/24")
	addAddress(t, "wire0", shown)
	a := newWiredAgent(t, Options{ForwardTraffic: true})
	backends := make(chan net.Listener)
	go func() { // in the namespace of the forwarder: all other threads are in that of the process
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
		}
		backends <- l
	}()
	backend := <-backends
	defer func() { _ = backend.Close() }()
	port := forward.Port{Protocol: corev1.ProtocolTCP, Address: netip.AddrPortFrom(shown, 80)}
	g.Expect(a.proxy.SetTargets(t.Context(), map[forward.Port]forward.Target{port: {Backends: []netip.AddrPort{netip.MustParseAddrPort(backend.Addr().String())}}})).To(BeEmpty())
	defer a.proxy.SetTargets(t.Context(), nil)
	client, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", port.Address.String())
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = client.Close() }()
	g.Eventually(func() int64 {
		byPort, _ := a.proxy.Counts()
		return byPort[port].OpenConnections
	}).WithTimeout(patience).Should(BeEquivalentTo(1))
	g.Expect(a.changeAddress(&hostlb.Op{Kind: hostlb.RemoveAddress, Address: shown})).To(Succeed())
	g.Expect(client.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
	_, err = client.Read(make([]byte, 1))
	g.Expect(errors.Is(err, syscall.ECONNRESET)).To(BeTrue(), "%v", err)
}

// TestInterfaceForAddress checks that an address belongs on the interface with the longest prefix of it, and stays on
// its interface while that is one of those.
func TestInterfaceForAddress(t *testing.T) { // H29
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
		if got := interfaceForAddress(shown, c.networks, c.on); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// createInterface creates an interface that is up and has a carrier.
func createInterface(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-peer"})).To(Succeed())
	for _, end := range []string{name, name + "-peer"} {
		l, err := netlink.LinkByName(end)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(netlink.LinkSetUp(l)).To(Succeed())
	}
}

// interfacesWithAddress returns the interfaces that have an address of a lease.
func interfacesWithAddress(t *testing.T, address netip.Addr) (out []string) {
	t.Helper()
	all, err := netif.ListLinks()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for i := range all {
		if slices.Contains(all[i].Managed, address) {
			out = append(out, all[i].Name)
		}
	}
	return out
}

// TestMisplacedAddressIsRemoved checks that an address is taken off an interface that has no carrier, or whose network
// has moved to another one: else the host would keep, and report, an address that answers no client. The address is
// added where it belongs.
func TestMisplacedAddressIsRemoved(t *testing.T) {
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
			addHostAddress(t, "wire0", "192.0.2.1/24")
			addAddress(t, "wire0", shown)
			createInterface(t, "second")
			if name != "the interface is put into a bridge" {
				addHostAddress(t, "second", "192.0.2.2/24")
			}
			a := newWiredAgent(t, Options{Interfaces: c.only})
			c.moves(g)
			g.Eventually(func() string { // the kernel takes a moment to see that the carrier is lost
				g.Expect(a.readLinks(t.Context())).To(Succeed())
				l, err := a.linkForAddress(shown)
				g.Expect(err).NotTo(HaveOccurred())
				return l.Name
			}).WithTimeout(patience).Should(Equal(c.want))
			if c.want == "wire0" {
				g.Expect(interfacesWithAddress(t, shown)).To(Equal([]string{"wire0"}))
				g.Expect(a.isManagedAddress(shown)).To(BeTrue())
				return
			}
			g.Expect(interfacesWithAddress(t, shown)).To(BeEmpty())
			g.Expect(a.isManagedAddress(shown)).To(BeFalse())
			g.Expect(a.state.HasLocksOrAddresses()).To(BeFalse(), "it does not take it for shown")
			g.Expect(a.changeAddress(&hostlb.Op{Kind: hostlb.AddAddress, Address: shown, PlannedAt: time.Now()})).To(Succeed())
			g.Expect(interfacesWithAddress(t, shown)).To(Equal([]string{c.want}))
			g.Expect(a.readLinks(t.Context())).To(Succeed())
			g.Expect(a.isManagedAddress(shown)).To(BeTrue())
		})
	}
}

// TestFindOwnAddresses checks that a host reports its own addresses to other hosts: those of the networks that it shows
// addresses of, on interfaces that answer.
func TestFindOwnAddresses(t *testing.T) {
	on := func(quiet bool, texts ...string) netif.Link {
		out := netif.Link{NoARP: quiet}
		for _, text := range texts {
			out.HostPrefixes = append(out.HostPrefixes, netip.MustParsePrefix(text))
		}
		return out
	}
	networks := []hostlb.Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}
	got := findOwnAddresses([]netif.Link{on(false, "192.0.2.1/24", "10.0.0.1/8"), on(true, "192.0.2.100/32"), on(false, "127.0.0.1/8", "192.0.2.7/32")}, networks)
	NewWithT(t).Expect(got).To(Equal([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.7")}))
}
