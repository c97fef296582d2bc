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

// overARP is IPv4.
type overARP struct {
	conn *packet.Conn
	mac  net.HardwareAddr
}

const etherARP = 0x0806

// forOthers is PACKET_OTHERHOST of linux/if_packet.h.
const forOthers = 3

func openARP(ifi *net.Interface) (*overARP, error) {
	// What is of a VLAN is another wire's. The kernel takes its tag off before it gives a frame to who listens for ARP, and the
	// filter sees none; but a frame of a VLAN that the interface is not of it marks as for others, and those of one that the
	// host has an interface of it gives to that. A tag of a priority alone (VLAN 0) is no other wire. To listen to all frames
	// (ETH_P_ALL) would show the tag, and have each packet of the host pass the filter.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: forOthers, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, err
	}
	c, err := packet.Listen(ifi, packet.Raw, etherARP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, err
	}
	return &overARP{c, ifi.HardwareAddr}, nil
}

// ask sends a probe: a request from nobody, so that no cache learns anything of it.
func (o *overARP) ask(a netip.Addr) error {
	return o.send(arp.OperationRequest, netip.IPv4Unspecified(), make(net.HardwareAddr, len(o.mac)), a)
}

// tell sends an announcement: a request for the address from the address itself. Caches that have it learn where it is.
func (o *overARP) tell(a netip.Addr) error {
	return o.send(arp.OperationRequest, a, make(net.HardwareAddr, len(o.mac)), a)
}

func (o *overARP) send(op arp.Operation, from netip.Addr, to net.HardwareAddr, of netip.Addr) error {
	p, err := arp.NewPacket(op, o.mac, from, to, of)
	if err != nil {
		return err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return err
	}
	frame, err := (&ethernet.Frame{Destination: ethernet.Broadcast, Source: o.mac, EtherType: ethernet.EtherTypeARP, Payload: payload}).MarshalBinary()
	if err != nil {
		return err
	}
	_, err = o.conn.WriteTo(frame, &packet.Addr{HardwareAddr: ethernet.Broadcast})
	return err
}

// read returns who says that he has an address, or asks for it from nobody, as a host does that is about to have it.
func (o *overARP) read() (Claim, error) {
	buffer := make([]byte, 1<<11)
	for {
		n, _, err := o.conn.ReadFrom(buffer)
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

// Close ends it.
func (o *overARP) Close() error { return o.conn.Close() }
