//go:build linux

package netif

import (
	"context"
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

// link returns one end of a wire in a network namespace of the test.
func link(t *testing.T) *Link {
	t.Helper()
	wires.New(t)
	return find(t, "wire0")
}

// find reads an interface.
func find(t *testing.T, name string) *Link {
	t.Helper()
	all, err := ListLinks()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(l Link) bool { return l.Name == name })
	if at < 0 {
		t.Fatalf("there is no %s in %v", name, all)
	}
	return &all[at]
}

var four, six = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")

// TestManagedAddresses checks that the managed addresses are those with our mark, and no other address of the
// interface; each is alone in its prefix, and never a source.
func TestManagedAddresses(t *testing.T) {
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
		g.Expect(l.AddAddress(a, time.Minute)).To(Succeed())
		g.Expect(l.AddAddress(a, time.Minute)).To(Succeed(), "again")
	}
	g.Expect(l.RefreshAddresses([]netip.Addr{four, six}, time.Hour)).To(BeEmpty())
	link := find(t, "wire0")
	g.Expect(link.Managed).To(ConsistOf(four, six))
	g.Expect(link.HostPrefixes).To(ContainElements(netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")))
	g.Expect(link.MAC).To(Equal(dev.Attrs().HardwareAddr.String()))
	for _, own := range []string{"192.0.2.1", "2001:db8::1", "127.0.0.1"} {
		g.Expect(l.AddAddress(netip.MustParseAddr(own), time.Minute)).To(MatchError(ErrHostAddress), own)
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
		g.Expect(l.RemoveAddress(a)).To(Succeed())
		g.Expect(l.RemoveAddress(a)).To(Succeed(), "again")
	}
	g.Expect(find(t, "wire0").Managed).To(BeEmpty())
	left, err := netlink.AddrList(dev, netlink.FAMILY_ALL)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(HaveLen(len(all)-2), "those of the host stay")
}

// TestKernelRemovesExpiredAddress checks that the kernel removes an address that is not refreshed, and that a refresh
// does not add an address that is gone.
func TestKernelRemovesExpiredAddress(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	for _, a := range []netip.Addr{four, six} {
		g.Expect(l.AddAddress(a, time.Second)).To(Succeed())
	}
	g.Eventually(func() []netip.Addr { return find(t, "wire0").Managed }).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(BeEmpty())
	failed := l.RefreshAddresses([]netip.Addr{four, six}, time.Minute)
	g.Expect(failed).To(HaveLen(2))
	for a, err := range failed {
		if !errors.Is(err, ErrAddressNotFound) {
			t.Errorf("%s: %v", a, err)
		}
	}
	g.Expect(find(t, "wire0").Managed).To(BeEmpty())
}

// TestWatchChanges checks that changes are reported; an address that is refreshed is no change.
func TestWatchChanges(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := make(chan struct{}, 100)
	g.Expect(WatchChanges(ctx, func() { changes <- struct{}{} })).To(Succeed())
	g.Expect(l.AddAddress(four, time.Minute)).To(Succeed())
	g.Expect(l.RefreshAddresses([]netip.Addr{four}, time.Minute)).To(BeEmpty())
	g.Expect(l.RemoveAddress(four)).To(Succeed())
	g.Eventually(changes).WithTimeout(10 * time.Second).Should(Receive())
	dev, err := netlink.LinkByName("wire0")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(netlink.LinkSetDown(dev)).To(Succeed())
	g.Eventually(changes).WithTimeout(10 * time.Second).Should(Receive())
}

func TestLinkErrors(t *testing.T) {
	l := link(t)
	g := NewWithT(t)
	g.Expect(l.AddAddress(four, time.Millisecond)).To(MatchError(ContainSubstring("less than a second")))
	gone := &Link{Name: "gone", Index: 9999}
	g.Expect(gone.AddAddress(four, time.Minute)).To(MatchError(ContainSubstring("adding 192.0.2.10 to gone")))
	g.Expect(gone.RemoveAddress(four)).To(Succeed(), "what is gone has no address")
}
