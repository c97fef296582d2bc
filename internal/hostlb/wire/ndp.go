//go:build linux

package wire

import (
	"errors"
	"net"
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
)

// errNoLinkLocal means that an interface has no link-local address, and so no IPv6.
var errNoLinkLocal = errors.New("the interface has no link-local address of IPv6")

// ndpConn sends and receives neighbour discovery, for IPv6.
type ndpConn struct {
	conn *ndp.Conn
	mac  net.HardwareAddr
}

func openNDP(ifi *net.Interface) (*ndpConn, error) {
	all, err := ifi.Addrs()
	if err != nil {
		return nil, err
	}
	hasLinkLocal := false
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		hasLinkLocal = hasLinkLocal || (err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast())
	}
	if !hasLinkLocal {
		return nil, errNoLinkLocal
	}
	c, _, err := ndp.Listen(ifi, ndp.LinkLocal)
	if err != nil {
		return nil, err
	}
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := c.SetICMPFilter(&filter); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &ndpConn{c, ifi.HardwareAddr}, nil
}

// sendProbe solicits the neighbour that has an address.
func (c *ndpConn) sendProbe(a netip.Addr) error {
	group, err := ndp.SolicitedNodeMulticast(a)
	if err != nil {
		return err
	}
	return c.conn.WriteTo(&ndp.NeighborSolicitation{
		TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: c.mac}},
	}, nil, group)
}

// sendAnnouncement advertises an address to all nodes, and overrides what they know of it.
func (c *ndpConn) sendAnnouncement(a netip.Addr) error {
	return c.conn.WriteTo(&ndp.NeighborAdvertisement{
		Override: true, TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: c.mac}},
	}, nil, netip.IPv6LinkLocalAllNodes())
}

// readClaim returns the next machine that advertises an address.
func (c *ndpConn) readClaim() (Claim, error) {
	for {
		m, _, _, err := c.conn.ReadFrom()
		if err != nil {
			return Claim{}, err
		}
		na, ok := m.(*ndp.NeighborAdvertisement)
		if !ok {
			continue
		}
		for _, option := range na.Options {
			if of, isAddress := option.(*ndp.LinkLayerAddress); isAddress && of.Direction == ndp.Target {
				return Claim{na.TargetAddress, of.Addr, false}, nil
			}
		}
	}
}

// Close closes the connection.
func (c *ndpConn) Close() error { return c.conn.Close() }
