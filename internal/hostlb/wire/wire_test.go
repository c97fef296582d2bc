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

func all(netip.Addr) bool { return true }

func nobody(net.HardwareAddr) bool { return false }

// open makes a network namespace for the test with a wire in it, and listens on one end. The other end has the addresses
// 192.0.2.1 and 2001:db8::1, for which the kernel answers.
func open(t *testing.T) (w *Wire, other net.HardwareAddr) {
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
	w, err = Open("wire0", all, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		_, err := w.family(true) // it may have no link-local address yet
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

// Somebody answers for an address that the other end has, and nobody for one that it has not.
func TestProbe(t *testing.T) {
	w, other := open(t)
	g := NewWithT(t)
	for text, mac := range map[string]net.HardwareAddr{
		"192.0.2.1": other, "192.0.2.9": nil, "2001:db8::1": other, "2001:db8::9": nil,
	} {
		got, err := w.Probe(t.Context(), netip.MustParseAddr(text))
		g.Expect(err).NotTo(HaveOccurred(), text)
		g.Expect(got).To(Equal(mac), text)
	}
	g.Expect(w.waiting).To(BeEmpty())
}

// What one end announces, the other one hears, and not its own word.
func TestAnnounce(t *testing.T) {
	w, mac := open(t)
	g := NewWithT(t)
	other, err := Open("wire1", all, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	for _, text := range []string{"192.0.2.20", "2001:db8::20"} {
		a := netip.MustParseAddr(text)
		g.Expect(other.Announce(t.Context(), a, times)).To(Succeed())
		for range times {
			g.Eventually(w.Claims()).WithTimeout(10 * time.Second).Should(Receive(Equal(Claim{a, mac, false})))
		}
	}
	g.Expect(other.Claims()).NotTo(Receive(HaveField("MAC", mac)))
	// A host that asks for an address is about to have it.
	_, err = other.Probe(t.Context(), netip.MustParseAddr("192.0.2.30"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Claims()).To(Receive(Equal(Claim{netip.MustParseAddr("192.0.2.30"), mac, true})))
}

func TestProblems(t *testing.T) {
	w, _ := open(t)
	g := NewWithT(t)
	_, err := Open("nowhere", all, nobody)
	g.Expect(err).To(MatchError(ContainSubstring("finding the interface nowhere")))
	g.Expect(w.Close()).To(Succeed())
	_, err = w.Probe(t.Context(), netip.MustParseAddr("192.0.2.1"))
	g.Expect(err).To(HaveOccurred())
}

// An interface without a link-local address has no IPv6 until it gets one.
func TestWithoutLinkLocal(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	g.Expect(os.WriteFile("/proc/sys/net/ipv6/conf/wire0/disable_ipv6", []byte("1"), 0o600)).To(Succeed())
	w, err := Open("wire0", all, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	six := netip.MustParseAddr("2001:db8::1")
	_, err = w.Probe(t.Context(), six)
	g.Expect(err).To(MatchError(errNoLinkLocal))
	g.Expect(w.Announce(t.Context(), six, times)).To(MatchError(errNoLinkLocal))
	g.Expect(os.WriteFile("/proc/sys/net/ipv6/conf/wire0/disable_ipv6", []byte("0"), 0o600)).To(Succeed())
	g.Eventually(func() error {
		_, err := w.Probe(t.Context(), six)
		return err
	}).WithTimeout(20 * time.Second).Should(Succeed())
}

// What others say of addresses that are not ours is not told: it would drown the rest.
func TestOnlyOurs(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	mine := netip.MustParseAddr("192.0.2.20")
	w, err := Open("wire0", func(a netip.Addr) bool { return a == mine }, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	other, err := Open("wire1", all, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	g.Expect(other.Announce(t.Context(), netip.MustParseAddr("192.0.2.21"), times)).To(Succeed())
	g.Expect(other.Announce(t.Context(), mine, times)).To(Succeed())
	g.Eventually(w.Claims()).WithTimeout(10 * time.Second).Should(Receive(HaveField("Address", mine)))
}

// A host that is cut off from the API server asks for what it has, as does who took the lock: the question of the one is no answer
// to the other. An own MAC of another interface is none either.
func TestQuestionsAreNoAnswers(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	mine := netip.MustParseAddr("192.0.2.20")
	w, err := Open("wire0", func(a netip.Addr) bool { return a == mine }, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(w.Close()).To(Succeed()) }()
	other, err := Open("wire1", all, nobody)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(other.Close()).To(Succeed()) }()
	asked := make(chan error, 1)
	go func() {
		_, err := other.Probe(t.Context(), mine)
		asked <- err
	}()
	mac, err := w.Probe(t.Context(), mine)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mac).To(BeNil())
	g.Expect(<-asked).To(Succeed())

	deaf, err := Open("wire0", all, func(net.HardwareAddr) bool { return true })
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(deaf.Close()).To(Succeed()) }()
	g.Expect(other.Announce(t.Context(), mine, times)).To(Succeed())
	g.Expect(deaf.Claims()).NotTo(Receive())
}
