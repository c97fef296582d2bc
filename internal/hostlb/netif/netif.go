//go:build linux

// Package netif puts addresses on interfaces of a host for as long as they are refreshed: the kernel removes an address
// whose lifetime is over, whatever happened to the program that added it. It needs Linux 5.18, which can mark an
// address (IFA_PROTO).
package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// managedProtocol marks our addresses: it identifies the program that has set them. The kernel has 1 to 3 for itself.
	managedProtocol = 0x42
	// ifaProto is IFA_PROTO of linux/if_addr.h.
	ifaProto = 11
)

// Link is an interface of the host, as it was read.
type Link struct {
	Name  string
	Index int
	// Up reports whether the interface is switched on and has a carrier.
	Up bool
	// NoARP reports whether the interface does not answer for addresses.
	NoARP bool
	// MAC is the hardware address; it is empty for an interface that has none.
	MAC string
	// HostPrefixes are the addresses of the host itself, each with its network; Managed are the addresses with our mark.
	HostPrefixes []netip.Prefix
	Managed      []netip.Addr
}

// ListLinks reads all interfaces and their addresses, with one request for each of the two.
func ListLinks() ([]Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	all, err := listAddresses()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses: %w", err)
	}
	var out []Link
	for _, l := range links {
		attrs := l.Attrs()
		link := Link{
			Name: attrs.Name, Index: attrs.Index, MAC: attrs.HardwareAddr.String(), NoARP: hasNoARPFlag(attrs),
			Up: attrs.RawFlags&unix.IFF_UP != 0 && !slices.Contains([]netlink.LinkOperState{netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent}, attrs.OperState),
		}
		for _, a := range all {
			switch {
			case a.linkIndex != attrs.Index:
			case a.managed:
				link.Managed = append(link.Managed, a.prefix.Addr())
			default:
				link.HostPrefixes = append(link.HostPrefixes, a.prefix)
			}
		}
		out = append(out, link)
	}
	return out, nil
}

// ErrHostAddress means that the host has an address itself, on this interface or another.
var ErrHostAddress = errors.New("the host has this address itself; take it off, or use another one for the lease")

// ErrProtocolUnsupported means that the kernel does not mark addresses, so ours cannot be distinguished from those of
// the host.
var ErrProtocolUnsupported = errors.New("the kernel does not mark addresses (IFA_PROTO): Linux 5.18 or newer is needed")

// AddAddress puts an address on the interface, alone in its prefix, for a lifetime in whole seconds. The address is
// never the source of what the host itself sends. IPv6 does no duplicate address detection: the address was probed
// before.
func (l *Link) AddAddress(a netip.Addr, lifetime time.Duration) error {
	all, err := listAddresses()
	if err == nil && slices.ContainsFunc(all, func(o interfaceAddress) bool {
		return o.prefix.Addr() == a && (!o.managed || o.linkIndex != l.Index) && !isNoARPInterface(o.linkIndex)
	}) {
		err = ErrHostAddress // a probe on the wire does not show that, and the kernel would mark it as one of ours from now on
	}
	if err == nil {
		err = l.setAddress(a, lifetime)
	}
	if err == nil {
		err = l.verifyProtocol(a)
	}
	if err != nil {
		return fmt.Errorf("adding %s to %s: %w", a, l.Name, err)
	}
	return nil
}

// isNoARPInterface reports whether an interface does not answer for addresses: the one of kube-proxy in IPVS mode has
// the published addresses on every Node.
func isNoARPInterface(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && hasNoARPFlag(link.Attrs())
}

func hasNoARPFlag(l *netlink.LinkAttrs) bool {
	return l.RawFlags&unix.IFF_NOARP != 0 && l.RawFlags&unix.IFF_LOOPBACK == 0
}

// verifyProtocol checks that an address that was just added has our mark; if not, the address is taken off again.
func (l *Link) verifyProtocol(a netip.Addr) error {
	all, err := listAddresses()
	if err != nil {
		return err
	}
	for _, o := range all {
		if o.prefix.Addr() == a && o.linkIndex == l.Index && !o.managed {
			return errors.Join(ErrProtocolUnsupported, l.RemoveAddress(a))
		}
	}
	return nil
}

// ErrAddressNotFound means that an address is not on the interface any more.
var ErrAddressNotFound = errors.New("it is not on the interface")

// RefreshAddresses sets another lifetime of addresses, and returns the errors of those for which that failed. An
// address that is not there is not added: its lifetime was over, and by now another machine may have it
// (ErrAddressNotFound).
func (l *Link) RefreshAddresses(addresses []netip.Addr, lifetime time.Duration) map[netip.Addr]error {
	present, err := l.listManaged()
	out := map[netip.Addr]error{}
	for _, a := range addresses {
		one := err
		switch {
		case one != nil:
		case !present[a]:
			one = ErrAddressNotFound
		default:
			one = l.setAddress(a, lifetime)
		}
		if one != nil {
			out[a] = fmt.Errorf("refreshing %s on %s: %w", a, l.Name, one)
		}
	}
	return out
}

// RemoveAddress takes an address off the interface. It returns no error if the address is not there.
func (l *Link) RemoveAddress(a netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELADDR, unix.NLM_F_ACK)
	l.addAddressData(req, a, 0)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("taking %s off %s: %w", a, l.Name, err)
	}
	return nil
}

// listManaged returns the addresses on the interface that have our mark.
func (l *Link) listManaged() (map[netip.Addr]bool, error) {
	all, err := listAddresses()
	out := map[netip.Addr]bool{}
	for _, o := range all {
		if o.managed && o.linkIndex == l.Index {
			out[o.prefix.Addr()] = true
		}
	}
	return out, err
}

// interfaceAddress is an address on an interface of the host.
type interfaceAddress struct {
	prefix    netip.Prefix
	linkIndex int
	managed   bool
}

// maxListAttempts is how often a list is read if a change interrupts it.
const maxListAttempts = 5

// listAddresses lists the addresses of the host. A change meanwhile interrupts the list, and it is read again.
func listAddresses() (out []interfaceAddress, err error) {
	for range maxListAttempts {
		if out, err = dumpAddresses(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

func dumpAddresses() ([]interfaceAddress, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	all, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, err
	}
	var out []interfaceAddress
	for _, m := range all {
		msg := nl.DeserializeIfAddrmsg(m)
		attrs, err := nl.ParseRouteAttr(m[msg.Len():])
		if err != nil {
			return nil, err
		}
		o, of := interfaceAddress{linkIndex: int(msg.Index)}, map[uint16]netip.Addr{}
		for _, attr := range attrs {
			switch attr.Attr.Type {
			case unix.IFA_ADDRESS, unix.IFA_LOCAL:
				address, _ := netip.AddrFromSlice(attr.Value)
				of[attr.Attr.Type] = address.Unmap()
			case ifaProto:
				o.managed = len(attr.Value) > 0 && attr.Value[0] == managedProtocol
			}
		}
		// On a point-to-point link IFA_ADDRESS is the other end.
		address, local := of[unix.IFA_LOCAL]
		if !local {
			address = of[unix.IFA_ADDRESS]
		}
		if address.IsValid() {
			o.prefix = netip.PrefixFrom(address, int(msg.Prefixlen))
			out = append(out, o)
		}
	}
	return out, nil
}

// setAddress adds an address, or changes the one that is there.
func (l *Link) setAddress(a netip.Addr, lifetime time.Duration) error {
	seconds := uint32(lifetime / time.Second)
	if seconds == 0 {
		return fmt.Errorf("a lifetime of %s is less than a second", lifetime)
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	l.addAddressData(req, a, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	lives := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: seconds}} // it is never a preferred address
	req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lives.Serialize()))
	req.AddData(nl.NewRtAttr(ifaProto, []byte{managedProtocol}))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// addAddressData sets the address and the interface of a request.
func (l *Link) addAddressData(req *nl.NetlinkRequest, a netip.Addr, flags uint32) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	msg := nl.NewIfAddrmsg(family)
	msg.Index, msg.Prefixlen, msg.Scope = uint32(l.Index), uint8(a.BitLen()), unix.RT_SCOPE_UNIVERSE
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()))
	if a.Is6() && flags != 0 {
		req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	}
}
