//go:build linux

package wire

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/wires"
)

func matchAll(netip.Addr) bool { return true }

func matchNone(net.HardwareAddr) bool { return false }

// newTestWire creates a network namespace for the test with a wire in it, and listens on one end. The other end has the
// addresses 192.0.2.1 and 2001:db8::1, for which the kernel answers.
func newTestWire(t *testing.T) (w *Conn, other net.HardwareAddr) {
	t.Helper()
	wires.New(t)
	g := NewWithT(t)
	peer, err := netlink.LinkByName("wire1")
	g.Expect(err).NotTo(HaveOccurred())
	for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		a, err := netlink.ParseAddr(text)
		g.Expect(err).NotTo(HaveOccurred())
		a.Flags = unix.IFA_F_NODAD
		g.Expect(netlink.AddrAdd(peer, a)).To(Succeed())
	}
	w, err = OpenInterface("wire0", matchAll, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		_, err := w.connForFamily(true) // it may have no link-local address yet
		return err
	}).WithTimeout(10 * time.Second).WithPolling(10 * time.Millisecond).Should(Succeed())
	t.Cleanup(func() {
		select {
		case <-w.done:
		default:
			NewWithT(t).Expect(w.Close()).To(Succeed())
		}
	})
	return w, peer.Attrs().HardwareAddr
}

// TestProbeAddress checks that a probe finds the machine that has an address, and none for an address that no machine
// has.
func TestProbeAddress(t *testing.T) {
	w, other := newTestWire(t)
	g := NewWithT(t)
	for text, mac := range map[string]net.HardwareAddr{
		"192.0.2.1": other, "192.0.2.9": nil, "2001:db8::1": other, "2001:db8::9": nil,
	} {
		got, err := w.ProbeAddress(t.Context(), netip.MustParseAddr(text))
		g.Expect(err).NotTo(HaveOccurred(), text)
		g.Expect(got).To(Equal(mac), text)
	}
	g.Expect(w.waiters).To(BeEmpty())
}

// TestAnnounceAddress checks that one end receives what the other one announces, and that an end does not receive its
// own packets.
func TestAnnounceAddress(t *testing.T) {
	w, mac := newTestWire(t)
	g := NewWithT(t)
	other, err := OpenInterface("wire1", matchAll, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	for _, text := range []string{"192.0.2.20", "2001:db8::20"} {
		a := netip.MustParseAddr(text)
		g.Expect(other.AnnounceAddress(t.Context(), a, probeCount)).To(Succeed())
		for range probeCount {
			g.Eventually(w.Claims()).WithTimeout(10 * time.Second).Should(Receive(Equal(Claim{a, mac, false})))
		}
	}
	g.Expect(other.Claims()).NotTo(Receive(HaveField("MAC", mac)))
	// A host that asks for an address is about to use it.
	_, err = other.ProbeAddress(t.Context(), netip.MustParseAddr("192.0.2.30"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Claims()).To(Receive(Equal(Claim{netip.MustParseAddr("192.0.2.30"), mac, true})))
}

func TestInterfaceErrors(t *testing.T) {
	w, _ := newTestWire(t)
	g := NewWithT(t)
	_, err := OpenInterface("nowhere", matchAll, matchNone)
	g.Expect(err).To(MatchError(ContainSubstring("finding the interface nowhere")))
	g.Expect(w.Close()).To(Succeed())
	_, err = w.ProbeAddress(t.Context(), netip.MustParseAddr("192.0.2.1"))
	g.Expect(err).To(HaveOccurred())
}

// TestWithoutLinkLocal checks that an interface without a link-local address has no IPv6 until it gets one.
func TestWithoutLinkLocal(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	g.Expect(os.WriteFile("/proc/sys/net/ipv6/conf/wire0/disable_ipv6", []byte("1"), 0o600)).To(Succeed())
	w, err := OpenInterface("wire0", matchAll, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	six := netip.MustParseAddr("2001:db8::1")
	_, err = w.ProbeAddress(t.Context(), six)
	g.Expect(err).To(MatchError(errNoLinkLocal))
	g.Expect(w.AnnounceAddress(t.Context(), six, probeCount)).To(MatchError(errNoLinkLocal))
	g.Expect(os.WriteFile("/proc/sys/net/ipv6/conf/wire0/disable_ipv6", []byte("0"), 0o600)).To(Succeed())
	g.Eventually(func() error {
		_, err := w.ProbeAddress(t.Context(), six)
		return err
	}).WithTimeout(20 * time.Second).Should(Succeed())
}

// TestForeignClaimsAreDropped checks that claims of addresses that are not ours are not passed on: they would drown the
// rest.
func TestForeignClaimsAreDropped(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	mine := netip.MustParseAddr("192.0.2.20")
	w, err := OpenInterface("wire0", func(a netip.Addr) bool { return a == mine }, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	other, err := OpenInterface("wire1", matchAll, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	g.Expect(other.AnnounceAddress(t.Context(), netip.MustParseAddr("192.0.2.21"), probeCount)).To(Succeed())
	g.Expect(other.AnnounceAddress(t.Context(), mine, probeCount)).To(Succeed())
	g.Eventually(w.Claims()).WithTimeout(10 * time.Second).Should(Receive(HaveField("Address", mine)))
}

// TestProbeIsNoReply checks that the probe of one host is no answer to that of another: a host that is cut off
// from the API server probes its own addresses, as does the host that took the lock. A MAC of another interface of the
// host is no answer either.
func TestProbeIsNoReply(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	mine := netip.MustParseAddr("192.0.2.20")
	w, err := OpenInterface("wire0", func(a netip.Addr) bool { return a == mine }, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	other, err := OpenInterface("wire1", matchAll, matchNone)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	asked := make(chan error, 1)
	go func() {
		_, err := other.ProbeAddress(t.Context(), mine)
		asked <- err
	}()
	mac, err := w.ProbeAddress(t.Context(), mine)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mac).To(BeNil())
	g.Expect(<-asked).To(Succeed())

	deaf, err := OpenInterface("wire0", matchAll, func(net.HardwareAddr) bool { return true })
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(deaf.Close()).To(Succeed()) }()
	g.Expect(other.AnnounceAddress(t.Context(), mine, probeCount)).To(Succeed())
	g.Expect(deaf.Claims()).NotTo(Receive())
}
