//go:build linux

package wire

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/wires"
)

// arpSender sends frames from an interface.
type arpSender struct {
	t    *testing.T
	conn *packet.Conn
	mac  net.HardwareAddr
}

func newARPSender(t *testing.T, name string) *arpSender {
	t.Helper()
	g := NewWithT(t)
	ifi, err := net.InterfaceByName(name)
	g.Expect(err).NotTo(HaveOccurred())
	c, err := packet.Listen(ifi, packet.Raw, etherTypeARP, nil)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Close() })
	return &arpSender{t, c, ifi.HardwareAddr}
}

// sendARP sends a claim of an address by a MAC, to one machine or to all, in these VLANs: the outer one first.
func (s *arpSender) sendARP(a netip.Addr, mac, to net.HardwareAddr, vlans ...uint16) {
	s.t.Helper()
	g := NewWithT(s.t)
	p, err := arp.NewPacket(arp.OperationReply, mac, a, to, a)
	g.Expect(err).NotTo(HaveOccurred())
	payload, err := p.MarshalBinary()
	g.Expect(err).NotTo(HaveOccurred())
	s.sendFrame(&ethernet.Frame{Destination: to, EtherType: ethernet.EtherTypeARP, Payload: payload}, vlans...)
}

// sendAdvertisement sends a claim of an IPv6 address by a MAC to all machines, in these VLANs.
func (s *arpSender) sendAdvertisement(a netip.Addr, mac net.HardwareAddr, vlans ...uint16) {
	s.t.Helper()
	g := NewWithT(s.t)
	from, to := netip.MustParseAddr("fe80::99"), netip.IPv6LinkLocalAllNodes()
	text, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{
		Override: true, TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}},
	}, from, to)
	g.Expect(err).NotTo(HaveOccurred())
	const icmpv6, hops = 58, 255
	packet := []byte{0x60, 0, 0, 0, 0, byte(len(text)), icmpv6, hops}
	packet = append(append(append(packet, from.AsSlice()...), to.AsSlice()...), text...)
	s.sendFrame(&ethernet.Frame{Destination: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, EtherType: ethernet.EtherTypeIPv6, Payload: packet}, vlans...)
}

func (s *arpSender) sendFrame(frame *ethernet.Frame, vlans ...uint16) {
	s.t.Helper()
	g := NewWithT(s.t)
	frame.Source = s.mac
	switch len(vlans) {
	case 1:
		frame.VLAN = &ethernet.VLAN{ID: vlans[0]}
	case 2:
		frame.ServiceVLAN, frame.VLAN = &ethernet.VLAN{ID: vlans[0]}, &ethernet.VLAN{ID: vlans[1]}
	}
	raw, err := frame.MarshalBinary()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = s.conn.WriteTo(raw, &packet.Addr{HardwareAddr: frame.Destination})
	g.Expect(err).NotTo(HaveOccurred())
}

// TestVLANs checks that claims in a VLAN are those of another wire, whether the host has an interface of that VLAN or
// not, and whether they go to one machine or to all. A frame that is tagged with a priority alone (VLAN 0) is of the
// wire itself.
func TestVLANs(t *testing.T) {
	wires.New(t)
	g := NewWithT(t)
	on, err := netlink.LinkByName("wire0")
	g.Expect(err).NotTo(HaveOccurred())
	err = netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "wire0.7", ParentIndex: on.Attrs().Index}, VlanId: 7})
	has7 := err == nil
	if !has7 {
		t.Logf("this kernel makes no interface of a VLAN, so there is none here: %v", err)
	}
	listen := func(name string) <-chan Claim {
		w, err := OpenInterface(name, matchAll, matchNone)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { NewWithT(t).Expect(w.Close()).To(Succeed()) })
		return w.Claims()
	}
	untagged := listen("wire0")
	var tagged <-chan Claim
	if has7 {
		of7, err := netlink.LinkByName("wire0.7")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(netlink.LinkSetUp(of7)).To(Succeed())
		tagged = listen("wire0.7")
	}
	other := newARPSender(t, "wire1")
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }
	a := netip.MustParseAddr("192.0.2.40")
	for _, to := range []net.HardwareAddr{ethernet.Broadcast, on.Attrs().HardwareAddr} {
		other.sendARP(a, mac(5), to, 5)
		other.sendARP(a, mac(6), to, 6, 7)
		other.sendARP(a, mac(7), to, 7)
		other.sendARP(a, mac(0), to, 0)
		other.sendARP(a, mac(1), to)
		for _, want := range []byte{0, 1} { // in order: so all frames before were received by then
			g.Expect(nextClaim(t, untagged)).To(Equal(Claim{a, mac(want), false}))
		}
		if !has7 {
			continue
		}
		g.Expect(nextClaim(t, tagged)).To(Equal(Claim{a, mac(7), false}))
	}
	if has7 {
		g.Expect(tagged).NotTo(Receive())
	}
}

// nextClaim returns the next claim.
func nextClaim(t *testing.T, claims <-chan Claim) (c Claim) {
	t.Helper()
	NewWithT(t).Eventually(claims).WithTimeout(10 * time.Second).Should(Receive(&c))
	return c
}

// TestVLANsOfIPv6 checks the same for IPv6: the kernel drops frames for others before they reach a listener for ICMPv6.
func TestVLANsOfIPv6(t *testing.T) {
	w, _ := newTestWire(t)
	g := NewWithT(t)
	other := newARPSender(t, "wire1")
	a := netip.MustParseAddr("2001:db8::40")
	other.sendAdvertisement(a, net.HardwareAddr{2, 0, 0, 0, 0, 5}, 5)
	other.sendAdvertisement(a, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	g.Expect(nextClaim(t, w.Claims())).To(Equal(Claim{a, net.HardwareAddr{2, 0, 0, 0, 0, 1}, false}))
}

// TestProbeBesideVLAN checks that a probe ignores a neighbour that asks and answers in another VLAN, with the same
// addresses.
func TestProbeBesideVLAN(t *testing.T) {
	w, _ := newTestWire(t)
	g := NewWithT(t)
	other := newARPSender(t, "wire1")
	a := netip.MustParseAddr("192.0.2.41")
	done := make(chan struct{})
	go func() {
		defer close(done)
		mac, err := w.ProbeAddress(t.Context(), a)
		if err != nil || mac != nil {
			t.Errorf("%s, %v answers", mac, err)
		}
	}()
	for {
		other.sendARP(a, net.HardwareAddr{2, 0, 0, 0, 0, 9}, w.netInterface.HardwareAddr, 5)
		select {
		case <-done:
			return
		case <-time.After(sendInterval / 4):
		}
		g.Expect(t.Context().Err()).NotTo(HaveOccurred())
	}
}
