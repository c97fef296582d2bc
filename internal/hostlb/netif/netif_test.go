//go:build linux

package netif

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/wires"
)

// link is one end of a wire in a network namespace of the test's own.
func link(t *testing.T) *Link {
	t.Helper()
	wires.New(t)
	out, err := Open("wire0")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var four, six = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")

// Ours are those with our mark, and no other address of the interface; each is alone in its prefix, and no source.
func TestAddresses(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	dev, err := netlink.LinkByName("wire0")
	g.Expect(err).NotTo(HaveOccurred())
	for _, text := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		own, err := netlink.ParseAddr(text)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(netlink.AddrAdd(dev, own)).To(Succeed())
	}
	for _, a := range []netip.Addr{four, six} {
		g.Expect(l.Add(a, time.Minute)).To(Succeed())
		g.Expect(l.Add(a, time.Minute)).To(Succeed(), "again")
		g.Expect(l.Refresh(a, time.Hour)).To(Succeed())
	}
	g.Expect(l.Ours()).To(Equal([]netip.Addr{four, six}))
	for _, own := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
		g.Expect(l.Add(netip.MustParseAddr(own), time.Minute)).To(MatchError(ErrOwn), own)
	}
	all, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	g.Expect(err).NotTo(HaveOccurred())
	for _, a := range all {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ones, bits := a.Mask.Size(); slices.Contains([]netip.Addr{four, six}, ip.Unmap()) {
			g.Expect(ones).To(Equal(bits))
			g.Expect(a.PreferedLft).To(BeZero())
			g.Expect(a.ValidLft).To(And(BeNumerically(">", 3500), BeNumerically("<=", 3600)))
			g.Expect(a.Flags & unix.IFA_F_DEPRECATED).NotTo(BeZero())
		}
	}
	for _, a := range []netip.Addr{four, six} {
		g.Expect(l.Remove(a)).To(Succeed())
		g.Expect(l.Remove(a)).To(Succeed(), "again")
	}
	g.Expect(l.Ours()).To(BeEmpty())
	left, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(HaveLen(len(all)-2), "those of the host stay")
}

// The kernel takes an address away that is not refreshed, and one that is gone is not put back by a refresh.
func TestTheKernelForgets(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	for _, a := range []netip.Addr{four, six} {
		g.Expect(l.Add(a, time.Second)).To(Succeed())
	}
	g.Eventually(l.Ours).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(BeEmpty())
	for _, a := range []netip.Addr{four, six} {
		if err := l.Refresh(a, time.Minute); !errors.Is(err, ErrNotThere) {
			t.Errorf("%s: %v", a, err)
		}
	}
	g.Expect(l.Ours()).To(BeEmpty())
}

func TestProblems(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	_, err := Open("nowhere")
	g.Expect(err).To(MatchError(ContainSubstring("finding the interface nowhere")))
	g.Expect(l.Add(four, time.Millisecond)).To(MatchError(ContainSubstring("less than a second")))
	gone := &Link{"gone", 9999}
	g.Expect(gone.Add(four, time.Minute)).To(MatchError(ContainSubstring("adding 192.0.2.10 to gone")))
	_, err = gone.Ours()
	g.Expect(err).To(MatchError(ContainSubstring("finding the interface gone again")))
	g.Expect(gone.Remove(four)).To(MatchError(ContainSubstring("taking 192.0.2.10 off gone")))
}
