//go:build linux

// Package netif puts addresses on an interface of a host, for as long as they are refreshed: the kernel takes one away whose
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

// Link is an interface.
type Link struct {
	name  string
	index int
}

// Open finds an interface by its name.
func Open(name string) (*Link, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding the interface %s: %w", name, err)
	}
	return &Link{name, l.Attrs().Index}, nil
}

// ErrOwn says that the host has an address itself, on this interface or another.
var ErrOwn = errors.New("the host has this address itself")

// Add puts an address on the interface, alone in its prefix, for a lifetime in whole seconds. It is never the source of what
// the host itself sends. IPv6 does not look for who has it: that was asked.
func (l *Link) Add(a netip.Addr, lifetime time.Duration) error {
	all, err := list()
	if err == nil && slices.ContainsFunc(all, func(o assigned) bool { return o.address == a && (!o.ours || o.index != l.index) }) {
		err = ErrOwn // nobody hears that on the wire, and the kernel would take it for one of ours from now on
	}
	if err == nil {
		err = l.set(a, lifetime)
	}
	if err != nil {
		return fmt.Errorf("adding %s to %s: %w", a, l.name, err)
	}
	return nil
}

// ErrNotThere says that an address is not on the interface any more.
var ErrNotThere = errors.New("it is not on the interface")

// Refresh gives an address another lifetime. One that is not there is not added: its lifetime was over, and by now somebody
// else may have it (ErrNotThere).
func (l *Link) Refresh(a netip.Addr, lifetime time.Duration) error {
	is, err := l.Ours()
	if err == nil && !slices.Contains(is, a) {
		err = ErrNotThere
	}
	if err == nil {
		err = l.set(a, lifetime)
	}
	if err != nil {
		return fmt.Errorf("refreshing %s on %s: %w", a, l.name, err)
	}
	return nil
}

// Remove takes an address off the interface; one that is not there is none to take off.
func (l *Link) Remove(a netip.Addr) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELADDR, unix.NLM_F_ACK)
	l.about(req, a, 0)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("taking %s off %s: %w", a, l.name, err)
	}
	return nil
}

// Ours are the addresses on the interface that bear our mark, ordered.
func (l *Link) Ours() ([]netip.Addr, error) {
	is, err := netlink.LinkByIndex(l.index)
	if err == nil && is.Attrs().Name != l.name {
		err = fmt.Errorf("it is called %s now", is.Attrs().Name)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the interface %s again: %w", l.name, err)
	}
	all, err := list()
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of %s: %w", l.name, err)
	}
	var out []netip.Addr
	for _, o := range all {
		if o.ours && o.index == l.index {
			out = append(out, o.address)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// assigned is an address of the host.
type assigned struct {
	address netip.Addr
	index   int
	ours    bool
}

// list lists the addresses of the host. One that changes meanwhile breaks it off: it is tried again, once.
func list() ([]assigned, error) {
	out, err := dump()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		out, err = dump()
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
		o := assigned{index: int(msg.Index)}
		for _, attr := range attrs {
			switch attr.Attr.Type {
			case unix.IFA_ADDRESS:
				address, _ := netip.AddrFromSlice(attr.Value)
				o.address = address.Unmap()
			case ifaProto:
				o.ours = len(attr.Value) > 0 && attr.Value[0] == ours
			}
		}
		if o.address.IsValid() {
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
	l.about(req, a, unix.IFA_F_NODAD)
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
	msg.Index, msg.Prefixlen, msg.Scope = uint32(l.index), uint8(a.BitLen()), unix.RT_SCOPE_UNIVERSE
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.AsSlice()))
	if a.Is6() && flags != 0 {
		req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	}
}
