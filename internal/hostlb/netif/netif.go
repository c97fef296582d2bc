//go:build linux

// Package netif puts addresses on interfaces of a host, for as long as they are refreshed: the kernel takes one away whose
// lifetime is over, whatever became of who put it there. It needs Linux 5.18, which can mark an address (IFA_PROTO).
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
	// ours is the mark of our addresses: who has set them. The kernel has 1 to 3 for itself.
	ours = 0x42
	// ifaProto is IFA_PROTO of linux/if_addr.h.
	ifaProto = 11
)

// Link is an interface of the host, as it was read.
type Link struct {
	Name  string
	Index int
	// Up: it is switched on, and its cable is in.
	Up bool
	// Quiet: it does not answer for addresses.
	Quiet bool
	// MAC is empty for one that has none.
	MAC string
	// Own are the addresses of the host itself, each with its network; Ours, those with our mark.
	Own  []netip.Prefix
	Ours []netip.Addr
}

// Read reads all interfaces, and their addresses. It is one request of each.
func Read() ([]Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing the interfaces: %w", err)
	}
	all, err := list()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses: %w", err)
	}
	var out []Link
	for _, l := range links {
		is := l.Attrs()
		link := Link{
			Name: is.Name, Index: is.Index, MAC: is.HardwareAddr.String(), Quiet: quiet(is),
			Up: is.RawFlags&unix.IFF_UP != 0 && !slices.Contains([]netlink.LinkOperState{netlink.OperDown, netlink.OperLowerLayerDown, netlink.OperNotPresent}, is.OperState),
		}
		for _, a := range all {
			switch {
			case a.index != is.Index:
			case a.ours:
				link.Ours = append(link.Ours, a.prefix.Addr())
			default:
				link.Own = append(link.Own, a.prefix)
			}
		}
		out = append(out, link)
	}
	return out, nil
}

// ErrOwn says that the host has an address itself, on this interface or another.
var ErrOwn = errors.New("the host has this address itself; take it off, or use another one for the lease")

// ErrNoMark says that the kernel does not mark addresses, so ours cannot be told from those of the host.
var ErrNoMark = errors.New("the kernel does not mark addresses (IFA_PROTO): Linux 5.18 or newer is needed")

// Add puts an address on the interface, alone in its prefix, for a lifetime in whole seconds. It is never the source of what
// the host itself sends. IPv6 does not look for who has it: that was asked.
func (l *Link) Add(a netip.Addr, lifetime time.Duration) error {
	all, err := list()
	if err == nil && slices.ContainsFunc(all, func(o assigned) bool {
		return o.prefix.Addr() == a && (!o.ours || o.index != l.Index) && !answersNobody(o.index)
	}) {
		err = ErrOwn // nobody hears that on the wire, and the kernel would take it for one of ours from now on
	}
	if err == nil {
		err = l.set(a, lifetime)
	}
	if err == nil {
		err = l.marked(a)
	}
	if err != nil {
		return fmt.Errorf("adding %s to %s: %w", a, l.Name, err)
	}
	return nil
}

// answersNobody reports whether an interface does not answer for addresses: that of kube-proxy in IPVS mode has the published
// ones on every Node.
func answersNobody(index int) bool {
	is, err := netlink.LinkByIndex(index)
	return err == nil && quiet(is.Attrs())
}

func quiet(l *netlink.LinkAttrs) bool {
	return l.RawFlags&unix.IFF_NOARP != 0 && l.RawFlags&unix.IFF_LOOPBACK == 0
}

// marked checks that an address which was just added bears our mark: without it, it is taken off again.
func (l *Link) marked(a netip.Addr) error {
	all, err := list()
	if err != nil {
		return err
	}
	for _, o := range all {
		if o.prefix.Addr() == a && o.index == l.Index && !o.ours {
			return errors.Join(ErrNoMark, l.Remove(a))
		}
	}
	return nil
}

// ErrNotThere says that an address is not on the interface any more.
var ErrNotThere = errors.New("it is not on the interface")

// Refresh gives addresses another lifetime, and returns those for which that failed. One that is not there is not added: its
// lifetime was over, and by now somebody else may have it (ErrNotThere).
func (l *Link) Refresh(addresses []netip.Addr, lifetime time.Duration) map[netip.Addr]error {
	is, err := l.has()
	out := map[netip.Addr]error{}
	for _, a := range addresses {
		one := err
		switch {
		case one != nil:
		case !is[a]:
			one = ErrNotThere
		default:
			one = l.set(a, lifetime)
		}
		if one != nil {
			out[a] = fmt.Errorf("refreshing %s on %s: %w", a, l.Name, one)
		}
	}
	return out
}

// Remove takes an address off the interface; one that is not there is none to take off.
func (l *Link) Remove(a netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELADDR, unix.NLM_F_ACK)
	l.about(req, a, 0)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("taking %s off %s: %w", a, l.Name, err)
	}
	return nil
}

// has are the addresses on the interface that bear our mark.
func (l *Link) has() (map[netip.Addr]bool, error) {
	all, err := list()
	out := map[netip.Addr]bool{}
	for _, o := range all {
		if o.ours && o.index == l.Index {
			out[o.prefix.Addr()] = true
		}
	}
	return out, err
}

// assigned is an address of the host.
type assigned struct {
	prefix netip.Prefix
	index  int
	ours   bool
}

// tries is how often a list is read that something changes meanwhile.
const tries = 5

// list lists the addresses of the host. One that changes meanwhile breaks it off, and it is read again.
func list() (out []assigned, err error) {
	for range tries {
		if out, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

func dump() ([]assigned, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	all, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, err
	}
	var out []assigned
	for _, m := range all {
		msg := nl.DeserializeIfAddrmsg(m)
		attrs, err := nl.ParseRouteAttr(m[msg.Len():])
		if err != nil {
			return nil, err
		}
		o, of := assigned{index: int(msg.Index)}, map[uint16]netip.Addr{}
		for _, attr := range attrs {
			switch attr.Attr.Type {
			case unix.IFA_ADDRESS, unix.IFA_LOCAL:
				address, _ := netip.AddrFromSlice(attr.Value)
				of[attr.Attr.Type] = address.Unmap()
			case ifaProto:
				o.ours = len(attr.Value) > 0 && attr.Value[0] == ours
			}
		}
		// Of a link between two, IFA_ADDRESS is the other end.
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

// set adds an address, or changes that which is there.
func (l *Link) set(a netip.Addr, lifetime time.Duration) error {
	seconds := uint32(lifetime / time.Second)
	if seconds == 0 {
		return fmt.Errorf("a lifetime of %s is less than a second", lifetime)
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	l.about(req, a, unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE)
	lives := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: seconds}} // preferred for no time at all
	req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lives.Serialize()))
	req.AddData(nl.NewRtAttr(ifaProto, []byte{ours}))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// about says which address of which interface a request is about.
func (l *Link) about(req *nl.NetlinkRequest, a netip.Addr, flags uint32) {
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
