//go:build linux

package wire

import (
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
)

// arpConn sends and receives ARP, for IPv4.
type arpConn struct {
	conn *packet.Conn
	mac  net.HardwareAddr
}

const etherTypeARP = 0x0806

// packetOtherHost is PACKET_OTHERHOST of linux/if_packet.h.
const packetOtherHost = 3

func openARP(ifi *net.Interface) (*arpConn, error) {
	// Frames of a VLAN are those of another wire. The kernel takes the tag off before it passes a frame to a listener for
	// ARP, so the filter sees none. But it marks a frame of a VLAN that the interface is not in as one for others, and
	// passes a frame of a VLAN for which the host has an interface to that interface. A tag with a priority alone (VLAN
	// 0) is no other wire. Listening to all frames (ETH_P_ALL) would show the tag, and have each packet of the host pass
	// the filter.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetOtherHost, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, err
	}
	c, err := packet.Listen(ifi, packet.Raw, etherTypeARP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	return &arpConn{c, ifi.HardwareAddr}, nil
}

// sendProbe sends a probe: a request without a sender address, so that no cache learns anything from it.
func (c *arpConn) sendProbe(a netip.Addr) error {
	return c.sendPacket(arp.OperationRequest, netip.IPv4Unspecified(), make(net.HardwareAddr, len(c.mac)), a)
}

// sendAnnouncement sends an announcement: a request for the address from the address itself. Caches that have the
// address learn where it is.
func (c *arpConn) sendAnnouncement(a netip.Addr) error {
	return c.sendPacket(arp.OperationRequest, a, make(net.HardwareAddr, len(c.mac)), a)
}

func (c *arpConn) sendPacket(op arp.Operation, from netip.Addr, to net.HardwareAddr, of netip.Addr) error {
	p, err := arp.NewPacket(op, c.mac, from, to, of)
	if err != nil {
		return err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return err
	}
	frame, err := (&ethernet.Frame{Destination: ethernet.Broadcast, Source: c.mac, EtherType: ethernet.EtherTypeARP, Payload: payload}).MarshalBinary()
	if err != nil {
		return err
	}
	_, err = c.conn.WriteTo(frame, &packet.Addr{HardwareAddr: ethernet.Broadcast})
	return err
}

// readClaim returns the next machine that claims an address, or requests it without a sender address, as a host does
// that is about to use it.
func (c *arpConn) readClaim() (Claim, error) {
	buffer := make([]byte, 1<<11)
	for {
		n, _, err := c.conn.ReadFrom(buffer)
		if err != nil {
			return Claim{}, err
		}
		var frame ethernet.Frame
		var p arp.Packet
		if frame.UnmarshalBinary(buffer[:n]) != nil || p.UnmarshalBinary(frame.Payload) != nil {
			continue
		}
		of, asks := p.SenderIP, p.SenderIP.IsUnspecified()
		if asks {
			of = p.TargetIP
		}
		return Claim{of, append(net.HardwareAddr{}, p.SenderHardwareAddr...), asks}, nil
	}
}

// Close closes the connection.
func (c *arpConn) Close() error { return c.conn.Close() }
